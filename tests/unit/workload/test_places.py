from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.workload import eligibility, places


def pod(annotation: str | None = None, *tolerations: dict[str, str]) -> dict[str, Any]:
    annotations = {} if annotation is None else {names.POOLS: annotation}
    return {"metadata": {"annotations": annotations}, "spec": {"tolerations": list(tolerations)}}


def tolerates(value: str) -> dict[str, str]:
    return {"key": names.POOL_TAINT, "value": value, "effect": "NoSchedule"}


def test_a_pod_that_tolerates_no_pool_is_local_whatever_its_annotation_says() -> None:
    assert places.of(pod()) == places.LOCAL
    assert places.of(pod("a")) == places.LOCAL
    assert places.of(pod(None, {"operator": "Exists"})) == places.LOCAL


def test_tolerations_alone_mean_pools_alone() -> None:
    where = places.of(pod(None, tolerates("b"), tolerates("a")))
    assert (where.named, where.remote, where.local) == (("b", "a"), True, False)
    assert places.of(pod(None, {"key": names.POOL_TAINT, "operator": "Exists"})).named == ("*",)


def test_the_annotation_gives_the_order() -> None:
    where = places.of(pod("c,local,*", tolerates("a")))
    assert where.ordered(["a", "b", "c"]) == ["c", "local", "a", "b"]
    assert places.of(pod("x,a", tolerates("a"))).ordered(["a", "b"]) == ["a"]


@given(st.lists(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True), min_size=1, unique=True))
def test_what_is_asked_for_is_tolerated(named: list[str]) -> None:
    built = places.tolerations(places.parse(",".join(named)))
    for name in named:
        taint = {"key": names.POOL_TAINT, "value": name, "effect": "NoSchedule"}
        assert eligibility.tolerates(built, taint) == (name != names.LOCAL_POOL)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        words = places.parse(text)
    except ValueError:
        return
    assert places.parse(",".join(words)) == words


@pytest.mark.parametrize("text", ["", "a,,b", "A", "a b", "-a", "a-", "a;b"])
def test_what_is_no_list_of_pools_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a comma list"):
        places.parse(text)


ANYTHING = {"operator": "Exists"}


@pytest.mark.parametrize(
    "toleration",
    [
        ANYTHING,
        {"operator": "Exists", "effect": "NoSchedule"},
        {"key": names.POOL_TAINT, "operator": "Exists"},
        {"key": names.POOL_TAINT, "operator": "Equal", "value": "a"},
        {"key": names.POOL_TAINT, "value": "a", "effect": ""},
    ],
)
def test_a_pool_of_the_annotation_is_tolerated_as_kubernetes_reads_it(toleration: dict[str, str]) -> None:
    assert places.of(pod("a", toleration)) == places.Places(("a",), remote=True)


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists", "effect": "NoExecute"},
        {"operator": "Equal", "value": "a"},
        {"key": "other", "operator": "Exists"},
        {"key": names.POOL_TAINT, "value": ""},
        {"key": names.POOL_TAINT, "value": "a", "effect": "NoExecute"},
    ],
)
def test_what_tolerates_no_pool_of_the_annotation_is_no_way_there(toleration: dict[str, str]) -> None:
    assert places.of(pod("a", toleration)) == places.LOCAL
    assert places.of(pod(None, toleration)) == places.LOCAL


def test_a_pod_that_tolerates_everything_goes_to_any_pool_it_asks_for_and_nowhere_else() -> None:
    assert places.of(pod("*", ANYTHING)) == places.Places(("*",), remote=True)
    assert places.of(pod("local,b", ANYTHING)) == places.Places(("local", "b"), remote=True)
    assert places.of(pod("local", ANYTHING)) == places.LOCAL
    assert places.of(pod(None, ANYTHING)) == places.LOCAL
