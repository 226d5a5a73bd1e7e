"""The data of a decision, and its rules. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from bridge import clock
from bridge.config.hub import Config
from bridge.core.job_lifecycle import State
from bridge.slurm import states
from bridge.slurm.models import ObservedJob, Snapshot
from bridge.slurm.versions import ApiVersion
from bridge.workload import pods
from scheduler import conditions
from scheduler.group_actions import Action, Pod
from scheduler.group_states import NEW, GroupState, Wait
from scheduler.member_places import differ_without_slots
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import Placements
from scheduler.pod_group import Group

SETTLE = 5.0
"""Seconds without a failed poll after which a submission without an answer counts as not carried out."""
CLOCKS = 300.0
"""Largest difference in seconds between the clocks of the API server and of slurmctld. Munge accepts no larger one
between the hosts of Slurm."""
ALIKE_AFTER = 5.0
"""Seconds for which members without slots that request different resources wait for others. Any user of the namespace
may label a pod as a member: if it is created first, the members that request the same are likely to come soon."""


Steps = tuple[list[Action], GroupState]
"""The actions for the members of a group, and its next state."""


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """All data that a decision depends on. Times are monotonic seconds; only ``time`` is in seconds since the epoch.

    ``states`` are the states of groups by key, and of their members by UID; one without is
    :data:`~scheduler.group_states.NEW`. ``inherited_at`` is the time until which a former leader may have
    sent requests that slurmctld may still carry out (:func:`settled_at`); 0 if there are none. ``leading_since`` is the
    time since which this process leads, or at which slurmctld had carried out the requests of a former leader.
    ``braked``: many jobs are missing, so no job is submitted. ``updates`` is the number of pending jobs whose excluded
    nodes the decision may change. ``new`` holds the UIDs of pods that were created under this leadership
    (:class:`scheduler.former_requests.NewPods`). ``head`` are the ids of the jobs that Slurm probably starts next,
    ``None`` for all. ``cancelled`` are the jobs that this process has cancelled since the snapshot was requested.
    """

    groups: Sequence[Group]
    snapshot: Snapshot
    placements: Placements
    states: Mapping[str, GroupState]
    version: ApiVersion
    config: Config
    now: float
    time: float
    occupancy: Occupancy
    leading_since: float = 0
    inherited_at: float = 0
    braked: bool = False
    updates: int = 1000
    new: Set[str] = frozenset()
    head: Set[int] | None = None
    cancelled: Set[int] = frozenset()


def is_current(view: SchedulerView) -> bool:
    """Whether the snapshot was read under this leadership; no decision is made before."""
    return bool(view.snapshot.sequence) and view.snapshot.began >= view.leading_since


def is_live(observed: ObservedJob, cancelled: Set[int]) -> bool:
    """Whether a job is pending or allocated, and is not one of the jobs that this process has ``cancelled``."""
    has_ended = observed.missing or states.end_of(observed.job.states) is not None
    return not has_ended and observed.job.job_id not in cancelled


def is_unread(snapshot: Snapshot, state: GroupState) -> bool:
    """Whether a submitted job may exist although the snapshot does not contain it.

    The snapshot is older than the submission, or slurmctld has listed the job and its comment has not been read yet:
    after a failed poll, a poll reads only some of the jobs that this process has just submitted.
    """
    return snapshot.began <= state.lifecycle.answered_at + SETTLE or state.submitted_id in snapshot.unread


def is_settled(snapshot: Snapshot, sent_at: float, since: float = 0) -> bool:
    """Whether the snapshot shows the outcome of every request that was sent until ``sent_at`` (monotonic seconds).

    slurmctld has then answered every poll for ``SETTLE`` seconds since that time; it carries out a request in less. A
    request that a proxy or slurmrestd delays for longer ends as a second job, which is cancelled. Only jobs count that
    were submitted after ``since``, a time of slurmctld.
    """
    return not snapshot.error and snapshot.listed_for(since) >= settled_at(snapshot, sent_at)


def settled_at(snapshot: Snapshot, sent_at: float) -> float:
    """Return when slurmctld has carried out or lost every request that was sent until ``sent_at`` (monotonic)."""
    return max(sent_at, snapshot.settled_since) + SETTLE


def unsettled(view: SchedulerView, state: GroupState, members: Sequence[Pod]) -> tuple[bool, GroupState]:
    """Return whether a request about these pods may still appear as a job, and the next state.

    A former leader may have sent it, except for pods that were created under this leadership. The list of all jobs
    that was requested since then shows its job, as soon as the jobs have been read that are not older than the pods.
    """
    snapshot, lifecycle = view.snapshot, state.lifecycle
    if any(pods.uid(pod) not in view.new for pod in members):
        list_needed_at = view.leading_since
        if view.inherited_at:
            list_needed_at = max(list_needed_at, settled_at(snapshot, view.inherited_at))
            # a request that was sent before the error may be carried out after it (bridge.slurm.merging)
            if snapshot.error:
                return True, state
        if snapshot.listed_at < list_needed_at and (
            snapshot.requested_at < list_needed_at
            or snapshot.listed_for(_earliest_submission(snapshot, members)) < list_needed_at
        ):
            return True, state
    if lifecycle.state is not State.UNKNOWN:
        return False, state
    earliest = _earliest_submission(snapshot, members)
    if not is_settled(snapshot, lifecycle.until, earliest):
        return True, state
    return False, replace(state, lifecycle=lifecycle.denied(snapshot.listed_for(earliest)))


def waits_for_jobs(view: SchedulerView) -> bool:
    """Whether the decision about a group waits until the jobs of others have been read."""
    if view.snapshot.listed_at >= max(view.leading_since, view.inherited_at):
        return False
    return any(
        len(group.open) > len(group.gated) and not _has_job(view, group.key) and unsettled(view, NEW, group.pods)[0]
        for group in view.groups
    )


def _has_job(view: SchedulerView, key: str) -> bool:
    """Whether a job of the group is pending or allocated."""
    return any(
        is_live(observed, view.states.get(key, NEW).cancelled | view.cancelled) for observed in jobs_of(view, key)
    )


def jobs_of(view: SchedulerView, key: str) -> list[ObservedJob]:
    """Return the jobs of a group that the snapshot shows, the oldest first."""
    return [view.snapshot.jobs[job_id] for job_id in view.snapshot.by_uid.get(key, ())]


def may_predate_cancellation(view: SchedulerView, group: Group, state: GroupState) -> bool:
    """Whether the snapshot may be older than the cancellation of the jobs that it shows for a group.

    The controllers cancel the job of a group when no member is left, and they may be a process of their own. So a job
    counts only if it was seen, or submitted by this process, after the arrival of a member that still exists.
    """
    seen_at = max(view.snapshot.began, -math.inf if state.waiting_since is None else state.waiting_since)
    return group.present_since > seen_at


def waits_for_poll(view: SchedulerView) -> bool:
    """Whether the decision about a group with a job waits for a newer snapshot."""
    return any(
        may_predate_cancellation(view, group, view.states.get(group.key, NEW)) and _has_job(view, group.key)
        for group in view.groups
        if group.ref is not None
    )


def _earliest_submission(snapshot: Snapshot, members: Iterable[Pod]) -> float:
    """Return a time of slurmctld before which no job of these pods was submitted; 0 if there is none.

    It is the creation of the oldest pod, less ``CLOCKS``. A pod with a job id that the snapshot lacks has none.
    """
    earliest = math.inf
    for pod in members:
        created, job_id = pod["metadata"].get("creationTimestamp"), pods.job_id(pod)
        if not created or (job_id is not None and job_id not in snapshot.jobs):
            return 0
        earliest = min(earliest, clock.parse_rfc3339(created) - CLOCKS)
    return earliest


def obstacle(view: SchedulerView, state: GroupState, members: Sequence[Pod]) -> tuple[Wait | None, GroupState]:
    """Return why no job of these pods may be submitted now, and the next state; ``None`` if one may be."""
    if view.snapshot.error:
        return conditions.no_answer(view.snapshot.error), state
    if view.braked:
        return conditions.JOBS_MISSING, state
    is_unsettled, state = unsettled(view, state, members)
    if is_unsettled:
        is_unknown = state.lifecycle.state is State.UNKNOWN
        return conditions.UNKNOWN_OUTCOME if is_unknown else conditions.SILENT, state
    return conditions.failed(state, view.now), state


def awaits_alike(view: SchedulerView, group: Group, state: GroupState) -> tuple[Wait | None, GroupState]:
    """Return why members without slots that differ wait for others, and the next state of the group.

    Their age counts too: a scheduler that starts again and again does not wait each time.
    """
    if not differ_without_slots(group):
        return None, state
    since = view.now if state.differ_since is None else state.differ_since
    waited = max(view.now - since, view.time - max(map(pods.created_at, group.waiting)))
    wait = conditions.awaits_alike(ALIKE_AFTER) if waited < ALIKE_AFTER else None
    return wait, replace(state, differ_since=since)


def last_job(pod: Pod, state: GroupState, observed_jobs: Iterable[ObservedJob]) -> ObservedJob | None:
    """Return the job on the pod, else the last one that Slurm has shown; jobs that this process cancelled do not count.

    ``None`` if the job on the pod is unknown, or if there is none.
    """
    job_id = pods.job_id(pod)
    jobs = [observed for observed in observed_jobs if job_id in (None, observed.job.job_id)]
    jobs = jobs if job_id is not None else [observed for observed in jobs if observed.job.job_id not in state.cancelled]
    return max(jobs, key=lambda observed: observed.job.job_id, default=None)


def is_doubtful(state: GroupState, observed_jobs: Iterable[ObservedJob]) -> bool:
    """Whether one of the jobs that have ended may still live, because one answer of Slurm alone has said so.

    Jobs that this process has cancelled do not count. The job may be newer than the one on the pod.
    """
    # one answer may be that of a proxy, or of a slurmctld that has just restarted
    return any(not observed.is_confirmed and observed.job.job_id not in state.cancelled for observed in observed_jobs)


def without_job(view: SchedulerView, state: GroupState, observed_jobs: Iterable[ObservedJob]) -> GroupState:
    """Return the state of a group whose last job is over; unchanged if no job was known or expected.

    Several jobs in a row that have ended before the bind are replaced after a growing pause: their cause may last, for
    example a prolog that fails. Jobs that Slurm has lost do not count (:data:`scheduler.job_act.MOST_LOST`).
    """
    if not state.has_job:
        return state
    jobs = [
        observed.job
        for observed in observed_jobs
        # ids ascend: a lower one is an earlier job of the pod, whose end has been counted
        if observed.job.job_id not in state.cancelled and observed.job.job_id >= state.submitted_id
    ]
    latest = max(jobs, key=lambda job: job.job_id, default=None)
    end = states.end_of(latest.states) if latest is not None else None
    if latest is None or end is None:
        return state.without_job()
    text = f"Slurm job {latest.job_id} {end.text} before the bind; podbridge waits before it submits another one"
    return state.ended(view.now, end.reason, text)


def is_cancelled(pod: Pod, state: GroupState, observed: ObservedJob) -> bool:
    """Whether a user has cancelled the job of a pod that waits; the pod is then to be terminated.

    The job is on the pod, or was pending when this process last saw it. Otherwise podbridge itself may have cancelled
    it, for example before another process became the leader.
    """
    was_waiting = state.lifecycle.state is State.KNOWN
    return "CANCELLED" in observed.job.states and not observed.missing and (was_waiting or pods.job_id(pod) is not None)
