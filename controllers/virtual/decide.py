"""What to do for one pod on a virtual node, or for a job without a pod: pure.

The site is the truth about what runs there, the API server about what is wanted. A job is never asked for twice, a pod
that is deleted goes only once the site has confirmed that nothing of it is left, and silence ends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.poolapi.jobs import JobStatus
from bridge.workload import pods
from controllers.virtual import status as statuses
from controllers.virtual import status_patch, synthetic_status
from controllers.virtual.status import Status

Pod = Mapping[str, Any]

CANCEL_AGAIN = 10.0
"""Seconds after which a site that has not ended a job is told again."""
LOOK_AGAIN = 5.0
"""Seconds between the two answers that make a job lost."""
BRAKED_AGAIN = 1.0
"""Seconds until a pod is looked at again whose job is lost, and that the brake does not let fail yet."""
QUEUE_NEWS = 15.0
"""Seconds at least between two patches that change nothing but why a job waits."""
ORPHAN_GRACE = 30.0
"""Seconds that a job without a pod has to end: nobody knows any more what its pod allowed."""
LOST = "JobLost"
LOST_TEXT = "the site {pool} knows nothing of job {job} any more"
MISSING_TEXT = "the batch system of {pool} no longer knows job {job}, and its script did not write down an end"
_CONTAINERS = frozenset({"containerStatuses", "initContainerStatuses"})


@dataclass(slots=True)
class Entry:
    """What this process knows about one pod beyond both sides' views; all times are monotonic.

    ``answer``: the site's last direct answer and when it came, for while its view lacks the job. ``sent_until``: until
    when a request whose outcome is unknown may still be carried out. ``nothing``: how often the site has said that it
    holds nothing, and since when. ``cancelled``: the deletion (its timestamp) that the site was told of. ``settled``:
    the states of pod (its resourceVersion) and job between which nothing differs. ``told``: Events that were written.
    ``note``: what the Event BridgeSubmitted adds.
    ``deleted``: the pod's deletionTimestamp, and when it was first seen.
    """

    not_before: float = 0.0
    failures: int = 0
    answer: JobStatus | None = None
    answered_at: float = 0.0
    sent_until: float | None = None
    nothing: int = 0
    nothing_at: float = 0.0
    cancelled: str = ""
    cancelled_at: float = 0.0
    written_at: float = 0.0
    refresh_at: float | None = None
    settled: tuple[str, JobStatus] | None = None
    told: frozenset[str] = frozenset()
    note: str = ""
    deleted: str = ""
    deleted_at: float = 0.0

    def see(self, pod: Pod | None, now: float) -> None:
        """Remember when a deletion was first seen: the API server's clock may be another."""
        text = pod["metadata"].get("deletionTimestamp") if pod is not None else None
        if text and text != self.deleted:
            self.deleted, self.deleted_at = text, now

    def is_settled(self, pod: Pod | None, job: JobStatus | None) -> bool:
        """Whether these very states were looked at before, and nothing was to be done."""
        if self.settled is None or pod is None:
            return False
        return self.settled[1] is job and self.settled[0] == pod["metadata"]["resourceVersion"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool, as far as a pod's fate depends on it. ``complete_at``: when the last complete snapshot was asked for.

    ``leading_since``: since when this process leads; ``synced``: whether the pool's pods have been listed.
    """

    name: str
    synced: bool
    complete_at: float | None
    buildable: bool
    leading_since: float
    address: str


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod (``None``: there is none of that UID), its job as the pool's view shows it, and what is remembered.

    ``may_fail``: whether the brake lets the pod fail for a lost job; ``held``: whether the brake holds it.
    """

    pod: Pod | None
    job: JobStatus | None
    entry: Entry
    pool: PoolView
    now: float
    time: float
    may_fail: bool = True
    held: bool = False


@dataclass(frozen=True, slots=True)
class Submit:
    """Give the pod to the site."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the site for the job."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Write:
    """Write what the site says on the pod; ``job_id`` is set when the pod does not carry it yet."""

    pod: Pod
    job: JobStatus
    status: Status
    patch: Status
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """End a pod whose job is lost."""

    pod: Pod
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Say on the pod that its job is missing, while the brake holds the pod, or that it is there again."""

    pod: Pod
    missing: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job, within ``grace`` seconds; the pod stays until the site has confirmed it."""

    pod: Pod
    grace: float


@dataclass(frozen=True, slots=True)
class Remove:
    """The site has nothing of the deleted pod any more: write its last status, and delete it."""

    pod: Pod
    status: Status
    patch: Status


@dataclass(frozen=True, slots=True)
class Orphan:
    """A job without a pod: make sure at the API server, then end it, or forget it once it has ended."""

    job: JobStatus


@dataclass(frozen=True, slots=True)
class Refresh:
    """Give the site fresh service account tokens."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing now; look again after so many seconds."""

    seconds: float


Action = Submit | Look | Write | Fail | Mark | Cancel | Remove | Orphan | Refresh | Wait


def decide(view: PodView) -> Action | None:
    """Decide; ``None``: nothing until something changes."""
    action = _decide(view)
    if (
        isinstance(action, Submit | Look | Fail | Cancel | Remove | Orphan | Refresh)
        and view.now < view.entry.not_before
    ):
        return Wait(view.entry.not_before - view.now)
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
    return _new(view, pod)


def _answer(view: PodView) -> JobStatus | None:
    """Give the last direct answer, unless a snapshot that was asked for after it lacks the job."""
    entry, complete = view.entry, view.pool.complete_at
    return entry.answer if complete is None or complete < entry.answered_at else None


def remote_job(pod: Pod) -> str:
    """The job that the pod carries, ``<pool>/<job id>``; empty when the site has not taken it yet."""
    text: str = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB, "")
    return text


def _without_pod(view: PodView) -> Action | None:
    if view.job is None or not view.pool.synced:
        return None
    if view.entry.cancelled and view.job.phase != "ended":
        return Wait(CANCEL_AGAIN) if _just_cancelled(view) else Orphan(view.job)
    return Orphan(view.job)


def _finished(view: PodView, pod: Pod, job: JobStatus | None) -> Action | None:
    """Handle a pod that is over: so is its job. The folder stays at the site, for its logs, as long as the pod."""
    if job is not None and job.phase in ("queued", "running"):
        return Wait(CANCEL_AGAIN) if _just_cancelled(view) else Cancel(pod, _grace(view, pod))
    known = job is not None or view.pool.complete_at is not None
    if known and pods.is_deleted(pod) and pod["metadata"].get("deletionGracePeriodSeconds") != 0:
        return Remove(pod, dict(pod["status"]), {})
    return None


def _deleted(view: PodView, pod: Pod, job: JobStatus | None) -> Action | None:
    metadata = pod["metadata"]
    if job is not None and job.phase == "ended":
        status = statuses.pod_status(pod, job, view.pool.address, view.time)
        return Remove(pod, status, status_patch.patch(pod.get("status") or {}, status))
    if _holds_nothing(view, pod, job):
        status = synthetic_status.failed(pod, "Deleted", "", view.pool.address, view.time)
        return Remove(pod, status, status_patch.patch(pod.get("status") or {}, status))
    told = view.entry.cancelled == metadata["deletionTimestamp"]
    if told and _just_cancelled(view):
        write = _write(view, pod, job) if job is not None else None
        return write or Wait(view.entry.cancelled_at + CANCEL_AGAIN - view.now)
    return Cancel(pod, _grace(view, pod))


def _holds_nothing(view: PodView, pod: Pod, job: JobStatus | None) -> bool:
    """Whether the site surely holds nothing of the pod: it said so, or was never asked to take it."""
    entry, pool = view.entry, view.pool
    if job is not None or (entry.sent_until is not None and view.now <= entry.sent_until):
        return False
    if entry.nothing:
        return True
    # a snapshot from after the beginning of this process's lead shows whatever an earlier leader has submitted
    never_sent = entry.sent_until is None and not remote_job(pod)
    return never_sent and pool.complete_at is not None and pool.complete_at >= pool.leading_since


def _just_cancelled(view: PodView) -> bool:
    return bool(view.entry.cancelled) and view.now - view.entry.cancelled_at < CANCEL_AGAIN


def _grace(view: PodView, pod: Pod) -> float:
    """Seconds left of the pod's grace period, counted from when this process saw the deletion, by its own clock."""
    metadata, entry = pod["metadata"], view.entry
    text = metadata.get("deletionTimestamp")
    if not text:
        return float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
    allowed = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return max(0.0, allowed - (view.now - entry.deleted_at)) if entry.deleted == text else allowed


def _is_marked(pod: Pod) -> bool:
    return pods.condition(pod, names.JOB_MISSING).get("status") == "True"


def _running(view: PodView, pod: Pod, job: JobStatus) -> Action | None:
    if job.missing and view.may_fail:
        return Fail(pod, LOST, MISSING_TEXT.format(pool=view.pool.name, job=job.job_id))
    if _is_marked(pod) and not job.missing:
        return Mark(pod, missing=False)
    if job.missing and view.held and not _is_marked(pod):
        return Mark(pod, missing=True)
    write = _write(view, pod, job)
    if write is not None:
        return write
    entry = view.entry
    if entry.refresh_at is not None and job.phase in ("queued", "running"):  # a job may wait longer than a token lives
        if view.now >= entry.refresh_at:
            return Refresh(pod)
        return Wait(BRAKED_AGAIN if job.missing else entry.refresh_at - view.now)
    return Wait(BRAKED_AGAIN) if job.missing else None


def _write(view: PodView, pod: Pod, job: JobStatus) -> Action | None:
    before = pod.get("status") or {}
    status = statuses.pod_status(pod, job, view.pool.address, view.time)
    patch = status_patch.patch(before, status)
    known, job_id = remote_job(pod), None
    if job.phase != "unknown" and (job.job_id or not known):
        wanted = f"{view.pool.name}/{job.job_id or job.job}"
        job_id = wanted if wanted != known else None
    if not patch and job_id is None:
        return None
    left = view.entry.written_at + QUEUE_NEWS - view.now
    if job_id is None and job.phase == "queued" and left > 0 and patch.keys() <= _CONTAINERS:
        return Wait(left)
    return Write(pod, job, status, patch, job_id)


def _missing(view: PodView, pod: Pod) -> Action | None:
    """Handle a pod whose job the view lacks: it is lost only when the site itself has said so twice."""
    entry = view.entry
    if view.pool.complete_at is None:
        return None
    if entry.nothing >= 2 and not view.may_fail:
        return Mark(pod, missing=True) if view.held and not _is_marked(pod) else Wait(BRAKED_AGAIN)
    if entry.nothing >= 2:
        return Fail(pod, LOST, LOST_TEXT.format(pool=view.pool.name, job=remote_job(pod).partition("/")[2]))
    if entry.nothing and view.now - entry.nothing_at < LOOK_AGAIN:
        return Wait(LOOK_AGAIN)
    return Look(pod)


def _new(view: PodView, pod: Pod) -> Action | None:
    entry, pool = view.entry, view.pool
    if pool.complete_at is None or not pool.buildable or not pool.synced:
        return None
    if entry.sent_until is not None:
        if not entry.nothing:
            return Look(pod)
        if view.now <= entry.sent_until:
            return Wait(entry.sent_until - view.now)
    return Submit(pod)
