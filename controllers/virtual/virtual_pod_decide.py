"""The decision for one pod on a virtual node, or for a job without a pod. Pure.

The site is authoritative for the state of jobs, the API server for the pods that should exist. A job is submitted only
if the site certainly has none of this pod. A deleted pod is removed after the site has confirmed its end. The
silence of a site ends no pod.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge import job_ends, names
from bridge.core.job_lifecycle import State
from bridge.protocol.model import pod_status as statuses
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.pod_status import Status
from bridge.script import sizing, volume_files
from bridge.workload import pods
from controllers.virtual import hub_status, race_decide
from controllers.virtual.pod_state import LOOK_AGAIN, Pod, PodAction, PodView

CANCEL_AGAIN = 10.0
"""Seconds after which a cancellation request is repeated if the job has not ended."""
BRAKED_AGAIN = 1.0
"""Seconds until the next decision for a pod with a lost job that the brake holds."""
QUEUE_NEWS = 15.0
"""Minimum seconds between two patches that change only the reason for which a job is pending."""
ORPHAN_GRACE = 30.0
"""Grace period of a job without a pod, in seconds: that of its pod is not known."""
LOST = job_ends.LOST.reason
LOST_TEXT = "the site {pool} does not know job {job} any more"
MISSING_TEXT = "the batch system of {pool} does not know job {job} any more, and its script has recorded no end"
_CONTAINERS = frozenset({"containerStatuses", "initContainerStatuses"})


class Submit(PodAction):
    """Submit the pod's job to the site."""


class Look(PodAction):
    """Request the state of the job from the site."""


@dataclass(frozen=True, slots=True)
class Write(PodAction):
    """Write the job's state to the pod. ``job_id``: the id to write, if the pod has another one or none."""

    job: JobStatus
    status: Status
    patch: Status
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Fail(PodAction):
    """Set the pod to Failed: its job is lost. ``unknown``: the site has no record of the job."""

    reason: str
    message: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Mark(PodAction):
    """Set the pod's condition for a missing job, while the brake holds the pod, or clear it."""

    missing: bool


@dataclass(frozen=True, slots=True)
class Cancel(PodAction):
    """Cancel the job, with ``grace`` seconds to end. The pod stays until the site has confirmed the end."""

    grace: float


class Forget(PodAction):
    """Delete the job and its files at a pool that cannot list its jobs, because no later snapshot shows them."""


@dataclass(frozen=True, slots=True)
class Remove(PodAction):
    """Write the final status of a deleted pod, and remove it: the site has confirmed its end."""

    status: Status
    patch: Status
    job: JobStatus | None = None


@dataclass(frozen=True, slots=True)
class Orphan:
    """Request the pod of this job from the API server. If it is gone, cancel the job, or delete it if it has ended."""

    job: JobStatus


class Refresh(PodAction):
    """Send to the site the files of volumes that have changed, and fresh service account tokens."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again after ``seconds`` seconds."""

    seconds: float


Action = Submit | Look | Write | Fail | Mark | Cancel | Forget | Remove | Orphan | Refresh | Wait | race_decide.Action
_PAUSED = Submit | Look | Fail | Cancel | Forget | Remove | Orphan | Refresh | race_decide.Action
"""Actions that wait for the back-off after a failure."""


def decide(view: PodView) -> Action | None:
    """Return the action; ``None`` if nothing is to be done until the pod or its job changes."""
    action = _decide(view)
    if isinstance(action, _PAUSED) and view.now < view.entry.not_before:
        return Wait(view.entry.not_before - view.now)
    if isinstance(action, Write) and view.now < view.entry.refused_until and action.job == view.entry.refused:
        return Wait(view.entry.refused_until - view.now)
    return action


def _decide(view: PodView) -> Action | None:
    pod, job = view.pod, view.job or _answer(view)
    if pod is None:
        return _without_pod(view)
    if pods.is_finished(pod):
        return _finished(view, pod, job)
    if pods.is_deleted(pod):
        return _deleted(view, pod, job)
    if job is not None:
        return _running(view, pod, job)
    if remote_job(pod):
        return _missing(view, pod)
    return _unsubmitted(view, pod)


def _answer(view: PodView) -> JobStatus | None:
    """Return the last answer of the site, unless a later snapshot lacks the job."""
    entry, complete = view.entry, view.pool.complete_at
    return entry.answer if complete is None or complete < entry.lifecycle.answered_at else None


def remote_job(pod: Pod) -> str:
    """Return the job id on the pod, ``<pool>/<job id>``; empty if no job was recorded."""
    text: str = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB, "")
    return text


def _without_pod(view: PodView) -> Action | None:
    if view.racer is not None:
        return _racing(view, view.racer, view.job or _answer(view))
    # before the first list of pods, each job would seem to have no pod
    if view.job is None or not view.pool.synced:
        return None
    if view.now < view.entry.reread_at:
        return Wait(view.entry.reread_at - view.now)
    return Wait(CANCEL_AGAIN) if view.job.phase != "ended" and _just_cancelled(view) else Orphan(view.job)


def _racing(view: PodView, pod: Pod, job: JobStatus | None) -> Action | None:
    """Decide for a place of a pod without a node."""
    if job is None:
        action = _unsubmitted(view, pod)
        return race_decide.Offer(pod) if isinstance(action, Submit) else action
    if job.missing or race_decide.is_of_other_gang(pod, job):
        return Wait(CANCEL_AGAIN) if _just_cancelled(view) else race_decide.Withdraw(pod)
    if job.phase == "queued" and isinstance(action := _refresh(view, pod), Refresh):
        return action
    action_or_delay = race_decide.decide(pod, job, view.entry, view.now)
    return Wait(action_or_delay) if isinstance(action_or_delay, float) else action_or_delay


def _finished(view: PodView, pod: Pod, job: JobStatus | None) -> Action | None:
    """Decide for a finished pod: cancel its job. Its folder stays at the site, for the logs, as long as the pod."""
    if job is not None and job.phase in ("queued", "running"):
        return Wait(CANCEL_AGAIN) if _just_cancelled(view) else Cancel(pod, _grace(view, pod))
    is_known = job is not None or view.pool.complete_at is not None
    # grace period 0: it has been removed already, and a finalizer of others keeps it
    is_removable = pod["metadata"].get("deletionGracePeriodSeconds") != 0 or pods.has_intent(pod)
    if is_known and pods.is_deleted(pod) and is_removable:
        return _forget(view, pod) or Remove(pod, dict(pod["status"]), {})
    return None


def _forget(view: PodView, pod: Pod) -> Forget | None:
    return Forget(pod) if pods.has_intent(pod) and not view.entry.forgotten else None


def _deleted(view: PodView, pod: Pod, job: JobStatus | None) -> Action | None:
    metadata = pod["metadata"]
    if job is not None and job.phase == "ended" and (forget := _forget(view, pod)):
        # the status first: its end is in the record that the site deletes
        return _write(view, pod, job) or forget
    if job is not None and job.phase == "ended":
        status = statuses.pod_status(pod, job, view.pool.address, view.time, view.families)
        return Remove(pod, status, hub_status.patch(pod.get("status") or {}, status), job)
    if _holds_nothing(view, pod, job):
        status = hub_status.failed(pod, "Deleted", "", view.pool.address, view.time)
        return Remove(pod, status, hub_status.patch(pod.get("status") or {}, status))
    request = view.entry.cancellation
    # a request from before this deletion had another grace period
    if request is not None and request.deletion == metadata["deletionTimestamp"] and _just_cancelled(view):
        if job is None and isinstance(look := _look(view, pod), Look):
            return look  # the site may have deleted the job when it ended
        write = _write(view, pod, job) if job is not None else None
        return write or Wait(request.at + CANCEL_AGAIN - view.now)
    return Cancel(pod, _grace(view, pod))


def _holds_nothing(view: PodView, pod: Pod, job: JobStatus | None) -> bool:
    """Whether the site certainly has no job of the pod: it has said so, or no request was sent."""
    pool, lifecycle = view.pool, view.entry.lifecycle
    if job is not None or lifecycle.is_absent:
        return job is None
    never_sent = lifecycle.state is State.WANTED and not remote_job(pod)
    if not pool.lists:
        return never_sent and not pods.has_intent(pod)
    # a snapshot requested after this process became the leader has all jobs that former leaders have submitted
    return never_sent and pool.complete_at is not None and pool.complete_at >= pool.leading_since


def _just_cancelled(view: PodView) -> bool:
    request = view.entry.cancellation
    return request is not None and view.now - request.at < CANCEL_AGAIN


def _grace(view: PodView, pod: Pod) -> float:
    """Return the remaining grace period of the pod in seconds; it counts from when this process saw the deletion."""
    metadata, deletion = pod["metadata"], view.entry.deletion
    text = metadata.get("deletionTimestamp")
    if not text:
        return sizing.grace(pod["spec"])
    allowed = float(metadata.get("deletionGracePeriodSeconds") or 0)
    if deletion is None or deletion.timestamp != text:
        return allowed
    return max(0.0, allowed - (view.now - deletion.seen_at))


def _running(view: PodView, pod: Pod, job: JobStatus) -> Action | None:
    if race_decide.is_useless(pod, view.pool.name, job):
        return Wait(CANCEL_AGAIN) if _just_cancelled(view) else race_decide.Withdraw(pod)
    if job.missing and view.may_fail:
        return Fail(pod, LOST, MISSING_TEXT.format(pool=view.pool.name, job=job.job_id))
    if pods.is_marked_missing(pod) and not job.missing:
        return Mark(pod, missing=False)
    if job.unused:
        return Submit(pod)  # its script has ended without the grant
    granted = race_decide.grant(pod, view.pool.name, job, view.entry, view.now)
    if granted is not None:
        return _write(view, pod, job) or Wait(granted) if isinstance(granted, float) else granted
    if job.missing and view.held and not pods.is_marked_missing(pod):
        return Mark(pod, missing=True)
    write = _write(view, pod, job)
    if write is not None:
        return write
    if job.phase in ("queued", "running"):  # a job may wait longer than a token lives
        action = _refresh(view, pod)
        if isinstance(action, Refresh) or not job.missing:
            return action
    return Wait(BRAKED_AGAIN) if job.missing else None


def _refresh(view: PodView, pod: Pod) -> Refresh | Wait | None:
    """Decide about the files of the job's volumes."""
    entry, due = view.entry, view.entry.refresh_at
    files = entry.files
    if entry.stale or (files is not None and files.shown and files.shown != volume_files.shown(pod)):
        due = view.now
    if due is None:
        return None
    due = max(due, entry.refresh_after)
    return Refresh(pod) if view.now >= due else Wait(due - view.now)


def _write(view: PodView, pod: Pod, job: JobStatus) -> Action | None:
    before = pod.get("status") or {}
    status = statuses.pod_status(pod, job, view.pool.address, view.time, view.families)
    patch = hub_status.patch(before, status)
    recorded_id, job_id = remote_job(pod), None
    # a site may learn the id of the batch system later; until then, the job is named by the UID
    if job.phase != "unknown" and (job.job_id or not recorded_id):
        reported_id = f"{view.pool.name}/{job.job_id or job.job}"
        job_id = reported_id if reported_id != recorded_id else None
    if not patch and job_id is None:
        return None
    remaining = view.entry.written_at + QUEUE_NEWS - view.now
    if job_id is None and job.phase == "queued" and remaining > 0 and patch.keys() <= _CONTAINERS:
        return Wait(remaining)
    return Write(pod, job, status, patch, job_id)


def _missing(view: PodView, pod: Pod) -> Action | None:
    """Decide for a pod whose job the view lacks. It is lost if the site has said twice that it does not know it."""
    # before the first snapshot, a job that is not in the view is not missing
    if view.pool.complete_at is None:
        return None
    if not view.entry.lifecycle.is_lost:
        return _look(view, pod)
    if not view.may_fail:
        return Mark(pod, missing=True) if view.held and not pods.is_marked_missing(pod) else Wait(BRAKED_AGAIN)
    text = LOST_TEXT.format(pool=view.pool.name, job=remote_job(pod).partition("/")[2])
    return Fail(pod, LOST, text, unknown=view.pool.lists)


def _unsubmitted(view: PodView, pod: Pod) -> Action | None:
    pool = view.pool
    # without a snapshot, a former leader may have submitted the pod
    if pool.complete_at is None or not pool.ready or not pool.synced:
        return None
    return Submit(pod) if view.entry.lifecycle.may_submit else _look(view, pod)


def _look(view: PodView, pod: Pod) -> Look | Wait:
    seconds = view.entry.lifecycle.look_at(LOOK_AGAIN) - view.now
    return Wait(seconds) if seconds > 0 else Look(pod)
