"""Actions for all members of a group at once, and their texts. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from bridge.slurm.models import Job
from bridge.workload import pods
from scheduler import rules
from scheduler.group_actions import Action, CancelAndResubmit, Hold, Pod
from scheduler.group_states import NEW, GroupState
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView

INCOMPLETE = "GangIncomplete"
"""Reason of the condition of a member that waits for other members."""
OTHERS = "Slurm job {} was submitted for pods that request something else than the pods that exist now"
"""All members of a heterogeneous job are present, but a component has none or too few of them."""

Steps = tuple[list[Action], GroupState]
"""The actions for the members, and the next state of the group."""


def hold(group: Group, job_id: int) -> list[Action]:
    """Return the actions for the members that a binding alone does not hold."""
    return [Hold(pod, job_id) for pod in group.waiting if pods.lacks_hold(pod, job_id)]


def label(group: Group, job_id: int) -> list[Action]:
    """Return the actions that set the job on the members that wait for longer, or whose job was cancelled."""
    return [Hold(pod, job_id) for pod in group.waiting if pods.job_id(pod) != job_id]


def set_conditions(view: SchedulerView, members: Iterable[Pod], reason: str, message: str) -> list[Action]:
    """Return the actions that write a condition to the members for which it is due."""
    conditions = (
        rules.set_condition(view, pod, view.states.get(pods.uid(pod), NEW), reason, message) for pod in members
    )
    return [action for action in conditions if action is not None]


def tell(
    view: SchedulerView, group: Group, job_id: int, members: Iterable[Pod], reason: str, message: str
) -> list[Action]:
    """Return the actions that set the job on members that lack it; if none does, those that say why members wait."""
    return label(group, job_id) or set_conditions(view, members, reason, message)


def count_text(group: Group, count: int, needed: int = 0) -> str:
    """Return the text about the members that are present and those that are needed, by default the minimum."""
    owner = f" of {group.ref.kind} {group.ref.name}" if group.ref is not None else ""
    return f"{count} of {needed or group.minimum} pods{owner} are present"


def incomplete(group: Group) -> str:
    """Return the text for a group that has less waiting members than its minimum; empty if it may start."""
    present = len(group.waiting)
    if present < group.minimum and (present := present + group.succeeded()) < group.minimum:
        return count_text(group, present)
    return ""


def keep_job(
    view: SchedulerView, group: Group, state: GroupState, job: Job, actions: list[Action], text: str, until: float = 0
) -> Steps:
    """Return the ``actions`` of a wait; after a limited time, cancel the allocated job instead."""
    is_overdue, state = rules.busy(view, state, until)
    if is_overdue:
        text = f"after {view.config.busy_node_timeout:.0f} s: {text}"
        return [CancelAndResubmit(group, job.job_id, text)], state
    return actions, state
