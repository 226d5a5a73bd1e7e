from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.workload import pool_selection
from bridge.workload.tolerations import tolerates as is_tolerated
from tests import builders
from tests.counted import Count, Items


def pod(annotation: str | None = None, *tolerations: dict[str, str]) -> dict[str, Any]:
    annotations = {} if annotation is None else {names.POOLS: annotation}
    return builders.pod(annotations=annotations, tolerations=list(tolerations))


def tolerates(value: str) -> dict[str, str]:
    return {"key": names.POOL_TAINT, "value": value, "effect": "NoSchedule"}


def test_a_pod_that_tolerates_no_pool_is_local_whatever_its_annotation_says() -> None:
    assert pool_selection.of(pod()) == pool_selection.LOCAL
    assert pool_selection.of(pod("a")) == pool_selection.LOCAL
    assert pool_selection.of(pod(None, {"operator": "Exists"})) == pool_selection.LOCAL


def test_tolerations_alone_mean_pools_alone() -> None:
    where = pool_selection.of(pod(None, tolerates("b"), tolerates("a")))
    assert (where.named, where.remote, where.local) == (("b", "a"), True, False)
    assert pool_selection.of(pod(None, {"key": names.POOL_TAINT, "operator": "Exists"})).named == ("*",)


def test_the_annotation_gives_the_order() -> None:
    where = pool_selection.of(pod("c,local,*", tolerates("a")))
    assert where.ordered(["a", "b", "c"]) == ["c", "local", "a", "b"]
    assert pool_selection.of(pod("x,a", tolerates("a"))).ordered(["a", "b"]) == ["a"]


@given(st.lists(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True), min_size=1, unique=True))
def test_what_is_asked_for_is_tolerated(named: list[str]) -> None:
    built = pool_selection.tolerations(pool_selection.parse(",".join(named)))
    for name in named:
        taint = {"key": names.POOL_TAINT, "value": name, "effect": "NoSchedule"}
        assert is_tolerated(built, taint) == (name != names.LOCAL_POOL)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        words = pool_selection.parse(text)
    except ValueError:
        return
    assert pool_selection.parse(",".join(words)) == words


@pytest.mark.parametrize("text", ["", "a,,b", "A", "a b", "-a", "a-", "a;b"])
def test_what_is_no_list_of_pools_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a comma list"):
        pool_selection.parse(text)


ANYTHING = {"operator": "Exists"}


@pytest.mark.parametrize(
    ("toleration", "remote"),
    [
        (ANYTHING, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": names.POOL_TAINT, "operator": "Exists"}, True),
        ({"key": names.POOL_TAINT, "operator": "Equal", "value": "a"}, True),
        ({"key": names.POOL_TAINT, "value": "a", "effect": ""}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "value": "a"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": names.POOL_TAINT, "value": ""}, False),
        ({"key": names.POOL_TAINT, "value": "a", "effect": "NoExecute"}, False),
    ],
)
def test_a_pool_of_the_annotation_is_tolerated_as_kubernetes_reads_it(toleration: dict[str, str], remote: bool) -> None:
    selected = pool_selection.PoolSelector(("a",), remote=True) if remote else pool_selection.LOCAL
    assert pool_selection.of(pod("a", toleration)) == selected
    assert remote or pool_selection.of(pod(None, toleration)) == pool_selection.LOCAL


def test_a_pod_that_tolerates_everything_goes_to_any_pool_it_asks_for_and_nowhere_else() -> None:
    assert pool_selection.of(pod("*", ANYTHING)) == pool_selection.PoolSelector(("*",), remote=True)
    assert pool_selection.of(pod("local,b", ANYTHING)) == pool_selection.PoolSelector(("local", "b"), remote=True)
    assert pool_selection.of(pod("local", ANYTHING)) == pool_selection.LOCAL
    assert pool_selection.of(pod(None, ANYTHING)) == pool_selection.LOCAL


def test_the_tolerations_of_a_pod_are_not_compared_with_each_of_its_pools() -> None:
    count, body = Count(), pod(",".join(f"p{index}" for index in range(200)))
    others = [{"key": f"o{index}", "operator": "Exists"} for index in range(200)]
    body["spec"]["tolerations"] = Items(others, count)
    assert pool_selection.of(body) == pool_selection.LOCAL
    assert count.value <= 3 * len(others)
