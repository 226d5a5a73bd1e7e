"""A decision about groups, for every kind of place: the order of the groups, the result, and what is done with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from bridge.core import isolation
from bridge.core.workers import Workers
from bridge.telemetry.metrics import label_of
from bridge.workload import pods
from bridge.workload.resources import Resources
from scheduler import conditions
from scheduler.group_actions import URGENCY, Action, Pod, key_of
from scheduler.group_states import GroupState
from scheduler.nodes.occupancy import Occupancy, Occupant
from scheduler.pod_group import Group


@dataclass(frozen=True, slots=True)
class Local:
    """Leave the pod to the colocated Slurm."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a decision.

    ``planned`` are the pods that the actions bind: they count on their nodes from now on. ``states`` are the next
    states of the groups whose state changes, by key. ``refused`` are the full nodes of jobs that are cancelled, with
    what their pods take. ``local`` are the pods that are left to the colocated Slurm.
    """

    actions: list[Action]
    planned: list[Occupant] = field(default_factory=list)
    states: dict[str, GroupState] = field(default_factory=dict)
    refused: list[tuple[str, Resources]] = field(default_factory=list)
    local: list[Local] = field(default_factory=list)


def decide_each(
    view: conditions.View, members_of: Callable[[Group], Sequence[Pod]], decide_one: Callable[[Group], None]
) -> list[Action]:
    """Call ``decide_one`` for each group that has any of these members, the most urgent first.

    A defect in the decision about a group does not stop the others: return the conditions of the pods of such groups.
    """
    waiting: list[tuple[tuple[int, str, str], Group]] = []
    failed: list[Action] = []
    for group in view.groups:
        try:
            if members := members_of(group):
                waiting.append((min(map(pods.urgency, members)), group))
        except Exception as error:
            failed += conditions.due(view, group.open, conditions.unexpected(group, error))
    for _, group in sorted(waiting, key=itemgetter(0)):
        try:
            decide_one(group)
        except Exception as error:
            failed += conditions.due(view, group.open, conditions.unexpected(group, error))
    return failed


def carry_out(
    decision: Decision, occupancy: Occupancy, workers: Workers, act: Callable[[Action], None]
) -> Counter[str]:
    """Count the planned pods, and submit the actions to the workers; return the number of actions by kind."""
    for occupant in decision.planned:
        occupancy.assume(occupant)
    for node, taken in decision.refused:
        occupancy.refuse(node, taken)
    counts: Counter[str] = Counter()
    for action in decision.actions:
        kind = label_of(type(action))
        counts[kind] += 1
        try:
            workers.submit(key_of(action), lambda action=action: act(action), URGENCY[type(action)], kind=kind)  # type: ignore[misc]
        except Exception as error:
            isolation.report("scheduler", pods.key(action.pod), error)
    return counts
