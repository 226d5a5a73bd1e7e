"""Partial reconciliations decide what a whole one would decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.models import ObservedJob, Snapshot
from bridge.workload import pods
from scheduler import group_decide
from scheduler.group_states import GroupStates
from scheduler.nodes.occupancy import Occupancy
from scheduler.places.slurm_place import changed_keys
from scheduler.rules import SchedulerView
from tests import builders
from tests.builders import node_view
from tests.unit.scheduler import decisions

NODES = ("n1", "n2")
PLACEMENTS = decisions.placements(node_view(name, allocatable={"cpu": "4"}) for name in NODES)


def pod(number: int, cpu: int, priority: int) -> dict[str, Any]:
    requests = {"cpu": str(cpu)}
    return builders.pod(f"u{number}", job=number, requests=requests, schedulerName="ours", priority=priority)


def observed(number: int, state: str, node: str) -> ObservedJob:
    return builders.observed(number, state, f"u{number}", nodes=(node,) if state == "RUNNING" else ())


def snapshot(sequence: int, jobs: dict[int, ObservedJob]) -> Snapshot:
    return builders.snapshot(*jobs.values(), sequence=sequence, began=1000.0 + sequence)


def view(some: list[dict[str, Any]], snap: Snapshot, states: GroupStates, occupancy: Occupancy) -> SchedulerView:
    return decisions.view(some, snap, PLACEMENTS, states=states, occupancy=occupancy)


_STATES = st.sampled_from(["PENDING", "RUNNING", "CANCELLED"])
_UNITS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 2), _STATES, _STATES, st.sampled_from(NODES)), min_size=1, max_size=8
)


@given(_UNITS, st.lists(st.integers(1, 4), max_size=2))
def test_a_partial_decision_is_the_part_of_a_whole_one(
    units: list[tuple[int, int, str, str, str]], running: list[int]
) -> None:
    everyone = [pod(number, cpu, priority) for number, (cpu, priority, *_) in enumerate(units, 1)]
    first = {number: observed(number, state, node) for number, (_, _, state, _, node) in enumerate(units, 1)}
    second = {
        number: first[number] if state == before else observed(number, state, node)
        for number, (_, _, before, state, node) in enumerate(units, 1)
    }
    occupancy, states = Occupancy("ours"), GroupStates()
    others = [pod(number, cpu, 0) for number, cpu in enumerate(running, 100)]
    for number, other in enumerate(others):
        other["spec"]["nodeName"] = NODES[number % 2]
        occupancy.changed("add", None, other)
    before = snapshot(1, first)
    decided = group_decide.decide(view(everyone, before, states, occupancy))
    states.merge(decided.states)
    for occupant in decided.planned:
        occupancy.assume(occupant)
    bound = {occupant.uid for occupant in decided.planned}
    waiting = [one for one in everyone if pods.uid(one) not in bound]
    after = snapshot(2, second)
    for other in others:
        occupancy.changed("delete", other, None)
    chosen = changed_keys(before, after) | states.allocated
    whole = group_decide.decide(view(waiting, after, states, occupancy))
    part = group_decide.decide(view([one for one in waiting if pods.uid(one) in chosen], after, states, occupancy))
    assert part.actions == [action for action in whole.actions if pods.uid(action.pod) in chosen]
    assert part.planned == whole.planned
    assert part.states == {uid: state for uid, state in whole.states.items() if uid in chosen}


def test_the_keys_of_changed_new_and_vanished_jobs() -> None:
    same, one, gone = observed(1, "PENDING", ""), observed(2, "PENDING", ""), observed(3, "PENDING", "")
    changed, new = replace(one, confirmations=1), observed(4, "RUNNING", "n1")
    before = snapshot(1, {1: same, 2: one, 3: gone})
    assert changed_keys(before, snapshot(2, {1: same, 2: changed, 4: new})) == {"u2", "u3", "u4"}
    assert changed_keys(before, before) == set()
