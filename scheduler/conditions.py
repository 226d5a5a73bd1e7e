"""Why pods wait, as users see it: the condition PodScheduled=False, its Event, and the metric. Pure.

A decision returns why pods wait (:class:`~scheduler.group_states.Wait`). :func:`due` selects the pods whose condition
differs, and :class:`~scheduler.pod_writer.PodWriter` writes it. The meaning of each reason is in
``bridge/apps/view/wait_reasons.py``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from bridge import names
from bridge.core import isolation
from bridge.core.job_lifecycle import State
from bridge.slurm import job_words
from bridge.slurm.models import Job
from bridge.workload import pods
from scheduler.group_actions import Action, SetCondition, label
from scheduler.group_states import NEW, NODE, NODE_START, GroupState, Pod, ReportedCondition, Wait
from scheduler.pod_group import Group

MIN_INTERVAL = 15.0
"""Least time in seconds between two conditions that differ only in their message."""
MOST_CHARACTERS = 1024
"""Largest length of a message (:func:`bridge.workload.pods.condition_patch`)."""
TELL_AFTER = 3.0
"""Seconds for which a job is pending before the pod's condition reports it: most jobs start sooner."""
TELL_UNKNOWN_AFTER = 20.0
"""As ``TELL_AFTER``, for a job whose reason has not been read yet: in a burst, most jobs have started by then."""
NODE_BUSY, NODE_REFUSED = "NodeBusy", "NodeRefused"
WAITS = ("submit", "retry", "slurm", "bind", NODE_START, NODE, "gate", "release")
"""What a pod can wait for, as in ``podbridge_scheduler_pods``."""


class View(Protocol):
    """The data of a decision about any kind of place."""

    @property
    def groups(self) -> Iterable[Group]:
        """The groups that the decision is about, in any order."""

    @property
    def states(self) -> Mapping[str, GroupState]:
        """The states of groups by key, and of pods by UID."""

    @property
    def now(self) -> float:
        """The time in monotonic seconds."""


# --- what is written --------------------------------------------------------------------------------------------------
def due(view: View, members: Iterable[Pod], wait: Wait) -> list[Action]:
    """Return the actions that write a condition to the pods for which it is due."""
    if not wait.reason:
        return []
    return [
        SetCondition(pod, *wait)
        for pod in members
        if _is_due(view.states.get(pods.uid(pod), NEW).condition, pod, wait, view.now)
    ]


def due_with_job(view: View, group: Group, job_id: int, members: Iterable[Pod], wait: Wait) -> list[Action]:
    """Return the actions that set the job on members that lack it; if none does, those that say why members wait."""
    return label(group, job_id) or due(view, members, wait)


def _is_due(written: ReportedCondition | None, pod: Pod, wait: Wait, now: float) -> bool:
    """Whether a condition differs from the one there: in the pod's status only until this process has written one."""
    # cut as in the patch: the whole text would differ from the written one in every decision
    reason, message = wait.reason, wait.message[:MOST_CHARACTERS]
    if written is None:
        before = pods.condition(pod, names.POD_SCHEDULED)
        return bool((before.get("reason", ""), before.get("message", "")) != (reason, message))
    if (written.reason, written.message) == (reason, message):
        return False
    return written.reason != reason or now - written.at >= MIN_INTERVAL


def has_event(written: ReportedCondition | None, reason: str) -> bool:
    """Whether an Event is written with the condition: once for each reason in a row."""
    return written is None or written.reason != reason


def after_event(written: ReportedCondition | None, reason: str) -> ReportedCondition:
    """Return the record after an Event without a condition, which follows at once, and without a second Event."""
    if written is not None and written.reason == reason:
        return written
    return ReportedCondition(reason, "", -math.inf)


def counts(waiting: Mapping[str, Pod], state_of: Callable[[str], GroupState]) -> Counter[str]:
    """Return the number of pods by what they wait for; ``state_of`` returns the state of the group of a UID."""
    found: Counter[str] = Counter()
    for uid, pod in waiting.items():
        try:
            if pods.is_deleted(pod):
                found["release"] += 1
            else:
                found["gate" if pods.is_gated(pod) else waits_for(state_of(uid))] += 1
        except Exception as error:
            isolation.report("scheduler", pods.key(pod), error)
    return found


def waits_for(state: GroupState) -> str:
    """Return what a pod with this state waits for."""
    if state.node_wait is not None:
        return state.node_wait.what
    if state.bound_at is not None or state.lifecycle.state is State.STARTED:
        return "bind"
    if state.has_job:
        return "slurm"
    return "submit" if state.failure is None else "retry"


# --- why --------------------------------------------------------------------------------------------------------------
def unexpected(group: Group, error: Exception) -> Wait:
    """Report a defect in the decision about a group, and return it as the reason of its wait."""
    reported = isolation.report("scheduler", group.key, error)
    return Wait(reported.reason, str(reported))


def too_few(group: Group, count: int, needed: int = 0, more: str = "") -> Wait:
    """Return the wait for more members: ``count`` are present; by default, the minimum is needed."""
    owner = f" of {group.ref.kind} {group.ref.name}" if group.ref is not None else ""
    return Wait("GangIncomplete", f"{count} of {needed or group.minimum} pods{owner} are present{more}")


def incomplete(group: Group) -> Wait | None:
    """Return the wait of a group that has less waiting members than its minimum; ``None`` if it may start."""
    present = len(group.waiting)
    if present < group.minimum and (present := present + group.succeeded()) < group.minimum:
        return too_few(group, present)
    return None


def awaits_alike(seconds: float) -> Wait:
    """Return the wait of members without slots that differ: others may come that request the same."""
    return Wait(
        "GangIncomplete",
        f"the pods request different resources: podbridge waits {seconds:.0f} s for more pods of the group",
    )


def ending(count: int, job: str = "the last Slurm job of this group") -> Wait:
    """Return the wait for the members of the last job, which would run at the same time as those of the next."""
    return Wait("GangEnding", f"{count} pods of {job} have not ended yet")


def full(job: str, more: str = "") -> Wait:
    """Return the wait of a member for which a job has no place."""
    return Wait("GangFull", f"every place of {job} is taken by another pod{more}")


def differs(text: str) -> Wait:
    """Return the wait of a pod that requests something else than the members of the job."""
    return Wait("GangDiffers", f"the pod requests other resources {text}")


def differs_from_next(job: str = "job") -> Wait:
    """Return the wait of a pod that requests something else than the members of the next job."""
    text = f"the next {job} of the group is for members that request other resources or settings than the pod"
    return Wait("GangDiffers", text)


def failed(state: GroupState, now: float) -> Wait | None:
    """Return the wait after a failed submission or an unusable job; ``None`` if another one may be submitted."""
    if state.failure is None or now >= state.failure.retry_at:
        return None
    return Wait(state.failure.reason, state.failure.message)


def no_answer(error: str) -> Wait:
    """Return the wait for an answer of Slurm."""
    return Wait("SlurmUnavailable", f"Slurm does not answer: {error}")


JOBS_MISSING = Wait("SlurmJobsMissing", "many jobs are missing in Slurm: podbridge submits no job now")
UNKNOWN_OUTCOME = Wait(
    "SlurmUnknownOutcome",
    "a request to Slurm got no answer: podbridge waits until its job appears or is known not to exist",
)
SILENT = Wait("", "")
"""The wait is short: no condition is written."""


def pending(job: Job, waited: float, now: float) -> Wait:
    """Return the wait for a job that has been pending for ``waited`` seconds; ``now`` is in seconds since 1970."""
    if waited < (TELL_AFTER if job.reason else TELL_UNKNOWN_AFTER):
        return SILENT
    return Wait("SlurmPending", job_words.waiting(job, now))


def node_starting(job_id: int, missing: str) -> Wait:
    """Return the wait for a node that Slurm starts, or whose kubelet is not ready."""
    return Wait("SlurmNodeStarting", f"Slurm job {job_id} is allocated; {missing}")


def of_job(job_id: int, wait: Wait) -> Wait:
    """Return the wait of a member whose job is allocated."""
    return Wait(wait.reason, f"Slurm job {job_id}: {wait.message}")


def no_room(message: str, *, may_open: bool) -> Wait:
    """Return the wait for a pool: none takes the pods now if one ``may_open``, or else none at all."""
    return Wait("NoRoomNow" if may_open else "Unschedulable", message)


def racing(places: Sequence[str], refused: str) -> Wait:
    """Return the wait of a pod that is queued at several places."""
    text = f"queued at {', '.join(places) or 'no pool'}"
    return Wait("Racing", f"{text}; not {refused}" if refused else text)
