"""Which pools give a place to a pod that races."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.workload import eligibility, places
from scheduler import pod_group
from scheduler.group_actions import Action, BindToPool, SetCondition, SetPlaces
from scheduler.places import candidates, place_decide, place_view
from scheduler.places.candidates import Candidate
from tests import builders
from tests.unit.scheduler.decisions import occupied

TOLERATIONS = [{"key": key, "operator": "Exists"} for key in (names.VIRTUAL_TAINT, names.POOL_TAINT)]


def pod(pools: str = "*", recorded: str | None = None, placement: str | None = "race", **spec: Any) -> dict[str, Any]:
    given = {names.POOLS: pools, names.PLACES: recorded, names.PLACEMENT: placement}
    annotations = {key: value for key, value in given.items() if value is not None}
    identity = {"name": "p", "resourceVersion": "7"}
    spec = {"requests": {"cpu": "1"}, "tolerations": TOLERATIONS, **spec}
    return builders.pod(annotations=annotations, metadata=identity, **spec)


def node(name: str, taint: str = "") -> eligibility.NodeView:
    taints = [{"key": names.POOL_TAINT, "value": taint, "effect": "NoSchedule"}] if taint else []
    return builders.node_view(name, allocatable={"cpu": "8", "pods": "100"}, taints=taints)


def pool(name: str, problem: str = "", races: bool = True) -> place_view.PoolView:
    return place_view.PoolView(node(name, name), problem, races)


def look(
    the_pod: Any, *pools: place_view.PoolView, most: int = 3, full: str = "", **more: Any
) -> Action | place_decide.Local | None:
    occupancy = occupied(**{name: {"cpu": Decimal(8)} for name in full.split()})
    options: dict[str, Any] = {"policy": "order", "weights": {}, "now": 100.0, "nodes": (), "states": {}}
    view = place_view.PlaceView(
        [pod_group.of_one(the_pod)],
        {p.node.name: p for p in pools},
        **options | {"occupancy": occupancy, "most_places": most} | more,
    )
    decision = place_decide.decide(view)
    results = [*decision.actions, *decision.local]
    assert len(results) < 2
    return results[0] if results else None


def raced(*args: Any, **more: Any) -> tuple[str, ...]:
    """Return the places of the race that is decided."""
    action = look(*args, **more)
    assert isinstance(action, SetPlaces)
    return action.places


def test_a_pod_that_races_is_queued_also_at_full_pools():
    assert raced(pod("b,a"), pool("a"), pool("b"), full="a b") == ("b", "a")


def test_without_the_annotation_or_the_setting_it_is_bound_at_once():
    assert isinstance(look(pod(placement=None), pool("a"), pool("b")), BindToPool)
    assert isinstance(look(pod(), pool("a"), pool("b"), most=0), BindToPool)


def test_a_member_of_a_gang_does_not_race_on_its_own():
    the_pod = pod(recorded="a,b")
    annotations = the_pod["metadata"]["annotations"]
    assert places.open_pools(the_pod) == ("a", "b")
    annotations[names.GROUP] = '{"kind":"job","name":"j","uid":"g1","size":2,"minimum":2}'
    assert places.open_pools(the_pod) == ()
    assert isinstance(look(the_pod, pool("a"), pool("b")), BindToPool)
    annotations[names.PLACE_IN_JOB] = "g/1/2"
    assert places.open_pools(the_pod) == ("a", "b")


def test_a_site_may_refuse():
    action = look(pod(), pool("a"), pool("b", races=False), pool("c"))
    assert isinstance(action, SetPlaces)
    assert action.places == ("a", "c")
    assert action.why == f"queued at a, c; not b ({candidates.NO_RACE})"


def test_one_possible_place_is_no_race():
    assert isinstance(look(pod(), pool("a"), pool("b", races=False)), BindToPool)


def test_recorded_places_are_told_once_and_not_written_again():
    the_pod = pod(recorded="a,b")
    action = look(the_pod, pool("a"), pool("b"))
    assert isinstance(action, SetCondition)
    assert (action.reason, action.message) == ("Racing", "queued at a, b")


def test_a_present_place_is_kept_before_a_new_one_with_room():
    action = look(pod(recorded="b,c"), pool("a"), pool("b"), pool("c"), most=2, full="b c")
    assert isinstance(action, SetCondition)
    assert action.message == f"queued at b, c; not a ({candidates.NO_PLACE_LEFT})"


def test_a_silent_place_gives_its_number_to_another_pool_only():
    silent = pool("b", problem="not ready: SiteSilent")
    alone = look(pod(recorded="a,b"), pool("a"), silent, most=2)
    assert isinstance(alone, SetCondition)
    assert raced(pod(recorded="a,b"), pool("a"), silent, pool("c"), most=2) == ("a", "c")


def test_the_colocated_slurm_is_a_place_and_keeps_it():
    nodes = (node("n1"),)
    assert raced(pod("a,local"), pool("a"), nodes=nodes) == ("a", "local")
    recorded = pod("a,local", recorded="a,local")
    assert isinstance(look(recorded, pool("a"), nodes=nodes), place_decide.Local)  # after a restart
    assert look(recorded, pool("a"), nodes=nodes, at_slurm={"u1"}) is None
    assert look(recorded, pool("a"), nodes=(), at_slurm={"u1"}, has_job=lambda _: True) is None


@pytest.mark.parametrize("recorded", ["a,b,local", "a,b", None])
def test_the_colocated_slurm_keeps_the_place_of_a_job_if_fewer_places_are_allowed(recorded: str | None):
    the_pod = pod("a,b,local", recorded=recorded)
    there = {"at_slurm": {"u1"}, "has_job": lambda _: True}
    assert raced(the_pod, pool("a"), pool("b"), nodes=(), most=2, **there) == ("a", "local")


def test_slurm_is_no_place_where_none_is_configured():
    assert raced(pod("a,b,local"), pool("a"), pool("b"), nodes=(), colocated=False) == ("a", "b")


def test_a_pod_without_a_place_any_more_is_said_so():
    assert raced(pod(recorded="a,b"), pool("c", races=False)) == ()


some_candidates = st.lists(
    st.builds(Candidate, st.sampled_from("abcdefgh"), *[st.sampled_from(["", "why"])] * 3),
    unique_by=lambda c: c.name,
    max_size=8,
)


@given(some_candidates, st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8), st.integers(2, 5))
def test_the_selection_keeps_its_rules(found: list[Candidate], kept: list[str], most: int):
    chosen = candidates.select(found, kept, most)
    by_name = {c.name: c for c in found}
    assert len(chosen.selected) <= most
    assert list(chosen.selected) == [c.name for c in found if c.name in chosen.selected]
    assert chosen.refused.keys() == by_name.keys() - set(chosen.selected)
    assert all(chosen.refused.values())
    for name in chosen.selected:
        assert not by_name[name].problem
        assert name in kept or not by_name[name].silent
    again = candidates.select(found, chosen.selected, most)
    assert again.selected == chosen.selected, "a second decision changes nothing"
    ready = [c for c in found if not c.problem and not c.silent]
    if len(chosen.selected) < most:
        assert {c.name for c in ready} <= set(chosen.selected)


def test_a_place_counts_only_where_the_pod_may_go():
    """A user can write the annotation: the selection and the tolerations, which admission checks, decide."""
    assert places.open_pools(pod("a,b", recorded="a,c,local")) == ("a",)
    narrow = [{"key": names.POOL_TAINT, "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
    assert places.open_pools(pod("a,b", recorded="a,b", tolerations=narrow)) == ("a",)
    assert places.open_pools(pod("a,b", recorded="a,b", placement=None)) == ()
    assert places.open_pools(pod("a,b", recorded="A!,b")) == ()


def test_a_job_is_of_use_where_the_pod_is_bound_or_has_a_place():
    assert places.keeps_job(pod(recorded="a,b"), "a")
    assert not places.keeps_job(pod(recorded="a,b"), "c")
    assert places.keeps_job(pod(recorded="a,b", nodeName="c"), "c")
    assert not places.keeps_job(pod(recorded="a,b", nodeName="c"), "a")


def test_the_grant_is_one_binding_with_both_preconditions():
    body = places.grant_binding(pod(recorded="a,b"), "a", "t1")
    assert (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) == ("u1", "7")
    bound = pod(recorded="a,b", nodeName="a")
    bound["metadata"]["annotations"] |= body["metadata"]["annotations"]
    assert places.is_granted(bound, "a", "t1")
    assert not places.is_granted(bound, "a", "t2")
    assert not places.is_granted(bound, "b", "t1")
    assert not places.is_granted(pod(recorded="a,b"), "a", "t1")
