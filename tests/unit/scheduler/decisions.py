"""Decisions of the scheduler about pods, a snapshot of Slurm and nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from bridge.config.hub import Config
from bridge.slurm.models import Snapshot
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler import group_decide, pod_group
from scheduler.group_actions import Action, Submit
from scheduler.group_states import NEW, Failure, GroupState, GroupStates
from scheduler.nodes.occupancy import Occupancy, Occupant
from scheduler.nodes.placement import Placements
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView
from tests.builders import VERSION, Object, slurm_nodes


def occupied(**taken: Resources) -> Occupancy:
    """Return the occupancy of nodes, each with one pod that requests this much, by the name of the node."""
    there = Occupancy("ours")
    for node, requests in taken.items():
        there.assume(Occupant(f"on-{node}", f"ns/on-{node}", node, requests, ours=True, link_key=f"on-{node}"))
    return there


def placements(nodes: Iterable[NodeView], **more: Any) -> Placements:
    """Return the placements on nodes that are idle in Slurm."""
    views = list(nodes)
    return Placements(views, slurm_nodes(*(one.slurm_name for one in views)), {}, **more)


def view(
    pods: list[Object],
    snapshot: Snapshot,
    place: Placements,
    *,
    states: GroupStates | None = None,
    now: float = 1000.0,
    gangs: Iterable[Group] = (),
    **more: Any,
) -> SchedulerView:
    """Return what the scheduler decides on for bare pods and ``gangs``.

    The monotonic time and the time of day are both ``now``.
    """
    fields = {"version": VERSION, "config": Config(), "now": now, "time": now, "occupancy": Occupancy("ours")}
    groups = [*map(pod_group.of_one, pods), *gangs]
    return SchedulerView(groups, snapshot, place, {} if states is None else states.by_uid, **fields | more)


def submit(pod: Object) -> Submit:
    """Return the action that submits a job for a bare pod."""
    return Submit(pod_group.of_one(pod))


def submitted(job_id: int, at: float) -> GroupState:
    """Return the state of a group whose job no snapshot has shown yet."""
    return NEW.submitted(job_id, at, ())


def unknown(at: float) -> GroupState:
    """Return the state of a group whose submission got no answer."""
    state = NEW.without_answer(at, "SlurmUnknownOutcome", "no answer")
    return replace(state, failure=Failure(1, at, "SlurmUnknownOutcome", "no answer"))


def refused(retry_at: float) -> GroupState:
    """Return the state of a group whose submission Slurm has refused."""
    return replace(NEW, failure=Failure(1, retry_at, "SlurmRefused", "too many nodes"))


PENDING = NEW.pending(0.0, 0.0)
ALLOCATED = NEW.allocated(0.0)


def look(
    pods: list[Object], snapshot: Snapshot, place: Placements, *, states: GroupStates | None = None, **more: Any
) -> list[Action]:
    """Decide once, store the next states of the pods in ``states``, and return the actions."""
    decision = group_decide.decide(view(pods, snapshot, place, states=states, **more))
    if states is not None:
        states.merge(decision.states)
    return decision.actions
