from typing import Any

import pytest

from admission import pool_rules
from bridge import names


def pod(annotation: str | None = None, *tolerated: str) -> dict[str, Any]:
    annotations = {} if annotation is None else {names.POOLS: annotation}
    tolerations = [
        {"key": names.POOL_TAINT, "operator": "Exists"} if value == "*" else {"key": names.POOL_TAINT, "value": value}
        for value in tolerated
    ]
    return {"metadata": {"annotations": annotations}, "spec": {"tolerations": tolerations}}


@pytest.mark.parametrize("body", [pod("a"), pod("b,a"), pod("local,a"), pod(None, "a", "b"), pod()])
def test_what_the_namespace_opens_is_allowed(body: dict[str, Any]) -> None:
    assert pool_rules.forbidden(body, "a,b") == []


@pytest.mark.parametrize(
    ("body", "what"), [(pod("a,c"), "'c'"), (pod("*"), "'*'"), (pod(None, "c"), "'c'"), (pod(None, "*"), "'*'")]
)
def test_what_it_does_not_open_is_forbidden_and_named(body: dict[str, Any], what: str) -> None:
    (problem,) = pool_rules.forbidden(body, "a,b")
    assert what in problem
    assert "allowed: a, b" in problem


@pytest.mark.parametrize("namespace", [None, "*", "a,*"])
def test_a_namespace_may_open_everything(namespace: str | None) -> None:
    assert pool_rules.forbidden(pod("c", "d"), namespace) == []


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    (own,) = pool_rules.invalid(pod("A pool"), None)
    assert own.startswith(f"annotation {names.POOLS}: 'A pool' is not")
    (theirs,) = pool_rules.invalid(pod("a"), "a,,b")
    assert "the namespace's" in theirs
    assert pool_rules.forbidden(pod("A pool"), "a") == []


@pytest.mark.parametrize(("way", "problems"), [("pmi2", 0), ("none", 0), ("pmix", 0), ("", 1), ("openmpi", 1)])
def test_the_ways_of_mpi(way: str, problems: int) -> None:
    body = pod("a,b")
    body["metadata"]["annotations"][names.MPI] = way
    found = pool_rules.invalid(body, None)
    assert len(found) == problems
    assert all(f"{way!r} is not allowed; allowed: none, pmi2, pmix" in problem for problem in found)


@pytest.mark.parametrize(
    ("ways", "problems"),
    [("torch", 0), ("hostfile , torch", 0), ("", 1), ("torch,", 1), ("Torch", 1), ("mpi,torch", 1)],
)
def test_what_members_get_to_find_each_other(ways: str, problems: int) -> None:
    body = pod("a,b")
    body["metadata"]["annotations"][names.RENDEZVOUS] = ways
    found = pool_rules.invalid(body, None)
    assert (
        found
        == [f"annotation {names.RENDEZVOUS}: {ways!r} is not allowed; allowed: torch, hostfile, or both"] * problems
    )


@pytest.mark.parametrize(("text", "problems"), [("true", 0), ("false", 0), ("", 1), ("True", 1), ("yes", 1)])
def test_the_values_of_the_array_annotation(text: str, problems: int) -> None:
    body = pod("a")
    body["metadata"]["annotations"][names.ARRAY] = text
    expected = [f"annotation {names.ARRAY}: {text!r} is not allowed; allowed: 'true', 'false'"] * problems
    assert pool_rules.invalid(body, None) == expected


def test_a_placement_is_race_or_not_set() -> None:
    body = pod("a,b")
    body["metadata"]["annotations"][names.PLACEMENT] = "race"
    assert pool_rules.invalid(body, None) == []
    body["metadata"]["annotations"][names.PLACEMENT] = "spread"
    assert pool_rules.invalid(body, None) == [f"annotation {names.PLACEMENT}: 'spread' is not allowed; allowed: 'race'"]
