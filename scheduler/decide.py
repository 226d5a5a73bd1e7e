"""What to do for every waiting pod, decided at once from one view: pure.

The order of writes that makes "never two jobs for a pod, never a bind without an allocation, never a job left behind":

1. Submit. The job carries the pod's UID. A crash from here on leaves a job that the next look finds by UID; a job whose
   pod is gone is found by the workload controller. No submit while the outcome of an earlier one is unknown, nor before
   a complete list of jobs has been read.
2. Hold: one patch puts the job's id and the finalizer on the pod (UID as precondition). If the pod is gone by then, the
   job is cancelled. From here on the pod can't vanish before its job is released.
3. Bind, only to the node of a job that slurmctld shows as allocated, UID again as precondition, and the id on the pod.
   While the kubelet there would reject the pod, since pods whose jobs are over have not ended yet, the bind waits.
4. Release: cancel first, finalizer off only when Slurm has confirmed. If two jobs of a pod are ever seen (a request
   that slurmctld carried out late), the one on the pod stays, else the older, and the other is cancelled before a bind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import clock
from bridge.config import Config
from bridge.slurm import states
from bridge.slurm.models import ApiVersion, ObservedJob, Snapshot
from bridge.workload import pods
from scheduler import full_nodes
from scheduler.attempts import Attempt, Attempts
from scheduler.conditions import is_news
from scheduler.full_nodes import FullNode
from scheduler.occupancy import Occupancy
from scheduler.placement import Placements

Pod = Mapping[str, Any]

SETTLE = 5.0
"""Seconds that slurmctld must have answered without a break before a lost submit counts as not done."""
TELL_AFTER = 3.0
"""Seconds a job must wait before the pod's condition says so: most start sooner."""
WAKE_LIMIT = 900.0
"""Seconds for which a job keeps a node that Slurm starts until its kubelet is ready; Slurm itself gives up after its
ResumeTimeout, and requeues the job or ends it."""
TELL_UNKNOWN_AFTER = 20.0
"""The same for a job whose reason has not been looked at yet: in a burst, most have started by then."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Ask Slurm for room."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Hold:
    """Put the job on the pod that it belongs to (found by UID after a crash)."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the pod to the Kubernetes node of its allocated job; ``slurm_node`` is Slurm's name of it."""

    pod: Pod
    job_id: int
    node: str
    started: float
    slurm_node: str


@dataclass(frozen=True, slots=True)
class Release:
    """Cancel the jobs of a pod that was deleted while it waited, then let it go."""

    pod: Pod
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a second job of a pod."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give back a job that can't be used, and ask again: first off the pod, then cancelled."""

    pod: Pod
    job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Exclude:
    """Tell Slurm of nodes that became forbidden, or allowed, while the job waits."""

    pod: Pod
    job_id: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Say on the pod why it waits."""

    pod: Pod
    reason: str
    message: str


Action = Submit | Hold | Bind | Release | Cancel | GiveBack | Exclude | Tell


@dataclass(frozen=True, slots=True)
class SchedulerView:
    """All that a decision may depend on; times are monotonic seconds, but for ``time``: seconds since the epoch.

    ``inherited_at`` is the time until which a former leader may have sent requests; 0 where there was none, or where
    what it sent is known by now (:func:`is_settled`). ``braked``: many jobs are missing, so Slurm is asked for none.
    """

    pods: Iterable[Pod]
    snapshot: Snapshot
    placements: Placements
    attempts: Attempts
    version: ApiVersion
    config: Config
    now: float
    time: float
    occupancy: Occupancy
    leading_since: float = 0
    inherited_at: float = 0
    braked: bool = False


def decide(view: SchedulerView) -> list[Action]:
    """Decide for every pod of the view, most urgent pods first; at most one action a pod."""
    ready = view.snapshot.sequence > 0 and view.snapshot.began >= view.leading_since
    if not ready:
        return []
    waiting = sorted(filter(pods.is_open, view.pods), key=pods.urgency)
    actions = (_one(view, pod, view.attempts.of(pods.uid(pod))) for pod in waiting)
    return [action for action in actions if action is not None]


def _one(view: SchedulerView, pod: Pod, attempt: Attempt) -> Action | None:
    snapshot = view.snapshot
    known = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(pods.uid(pod), ())]
    live = [entry for entry in known if lives(entry, attempt)]
    if attempt.submitted:
        seen = any(entry.job.job_id == attempt.submitted for entry in known)
        if seen or snapshot.began > attempt.submitted_at + SETTLE:
            attempt.submitted = 0
        else:
            return _release(pod, [*(e.job.job_id for e in live), attempt.submitted]) if pods.is_deleted(pod) else None
    if pods.is_deleted(pod):
        if _unsettled(view, attempt) or not pods.is_held(pod):
            return _release(pod, [e.job.job_id for e in live]) if live else None
        return _release(pod, [e.job.job_id for e in live])
    if attempt.bound or pods.is_gated(pod):
        return None
    if not live:
        attempt.busy_since = 0
        return _ask(view, pod, attempt, known)
    job = _keep(pod, live)
    for entry in live:
        if entry is not job:
            return Cancel(pod, entry.job.job_id)
    attempt.unknown_at = 0
    if states.is_allocated(job.job.states):
        return _allocated(view, pod, attempt, job)
    attempt.busy_since = 0
    return _pending(view, pod, attempt, job)


def lives(entry: ObservedJob, attempt: Attempt) -> bool:
    """Whether a job still holds, or may get, room: it has not ended, and this process has not cancelled it."""
    over = entry.missing or states.end_of(entry.job.states) is not None
    return not over and entry.job.job_id not in attempt.cancelled


def _keep(pod: Pod, live: list[ObservedJob]) -> ObservedJob:
    labelled = pods.job_id(pod)
    return next((entry for entry in live if entry.job.job_id == labelled), live[0])


def _release(pod: Pod, job_ids: list[int]) -> Release:
    return Release(pod, tuple(job_ids))


def is_settled(snapshot: Snapshot, sent_at: float) -> bool:
    """Whether the snapshot shows the outcome of every request that was sent until ``sent_at``.

    slurmctld has then answered for ``SETTLE`` seconds without a break since that time, and works requests off in less.
    One that a hung proxy or slurmrestd holds back for longer ends as a second job, which is cancelled.
    """
    return not snapshot.error and snapshot.began >= max(sent_at, snapshot.settled_since) + SETTLE


def _unsettled(view: SchedulerView, attempt: Attempt) -> bool:
    """Whether a submit whose outcome was lost, or a former leader's, may still turn up as a job."""
    if view.inherited_at and not is_settled(view.snapshot, view.inherited_at):
        return True
    if not attempt.unknown_at:
        return False
    if not is_settled(view.snapshot, attempt.unknown_at):
        return True
    attempt.unknown_at = 0
    return False


def _ask(view: SchedulerView, pod: Pod, attempt: Attempt, known: list[ObservedJob]) -> Action | None:
    labelled = pods.job_id(pod)
    if labelled is not None:
        entry = next((entry for entry in known if entry.job.job_id == labelled), None)
        if entry is not None and entry.confirmations < 2:
            return None
        if entry is not None and not entry.missing and "CANCELLED" in entry.job.states:
            # somebody cancelled the job of a waiting pod: the workload controller ends the pod
            return None
    if view.snapshot.error:
        return _tell(view, pod, attempt, "SlurmUnavailable", f"Slurm does not answer: {view.snapshot.error}")
    if view.braked:
        return _tell(view, pod, attempt, "SlurmJobsMissing", "many jobs are missing in Slurm: it is asked for none now")
    if _unsettled(view, attempt):
        if not attempt.unknown_at:
            return None
        return _tell(view, pod, attempt, "SlurmUnknownOutcome", "a request to Slurm got no answer: looking for its job")
    if view.now < attempt.not_before:
        reason, message = attempt.problem
        return _tell(view, pod, attempt, reason, message) if reason else None
    return Submit(pod)


def _pending(view: SchedulerView, pod: Pod, attempt: Attempt, entry: ObservedJob) -> Action | None:
    job = entry.job
    if pods.job_id(pod) != job.job_id or not pods.is_held(pod):
        return Hold(pod, job.job_id)
    attempt.pending_since = attempt.pending_since or view.now
    if view.version.exclude_nodes and view.now >= attempt.exclude_not_before:
        wanted = tuple(sorted(view.placements.of(pod, view.config.partition).refused))
        asked = attempt.excluded if attempt.excluded is not None else tuple(sorted(job.excluded_nodes))
        if wanted != asked:
            return Exclude(pod, job.job_id, wanted)
    if view.now - attempt.pending_since < (TELL_AFTER if job.reason else TELL_UNKNOWN_AFTER):
        return None
    where = f" in partition {job.partition}" if job.partition else ""
    why = job.reason or "not looked at yet"
    start = f", estimated start {clock.rfc3339(job.start_time - job.start_time % 60)}" if job.start_time else ""
    text = f"Slurm job {job.job_id} waits{where}: {why}{start}"
    return _tell(view, pod, attempt, "SlurmPending", text)


def _allocated(view: SchedulerView, pod: Pod, attempt: Attempt, entry: ObservedJob) -> Action | None:
    job = entry.job
    if not job.nodes:
        return None
    starting = view.placements.starting(job.nodes[0])
    if starting and (attempt.waking_since or view.placements.comes_and_goes(job.nodes[0])):
        attempt.waking_since = attempt.waking_since or view.now
        if view.now - attempt.waking_since < WAKE_LIMIT:
            if pods.job_id(pod) != job.job_id or not pods.is_held(pod):
                return Hold(pod, job.job_id)
            return _tell(view, pod, attempt, "SlurmNodeStarting", f"Slurm job {job.job_id} has its node: {starting}")
    why = view.placements.refusal(pod, job.nodes[0])
    if why:
        return GiveBack(pod, job.job_id, f"Slurm gave node {job.nodes[0]}, which Kubernetes refuses for the pod: {why}")
    node = view.placements.by_slurm_name[job.nodes[0]]
    full = full_nodes.find(pod, node, view.occupancy, view.snapshot)
    if full is not None:
        return _busy(view, pod, attempt, job.job_id, full)
    attempt.busy_since = 0
    view.occupancy.assume(pod, node.name)
    return Bind(pod, job.job_id, node.name, job.start_time, job.nodes[0])


def _busy(view: SchedulerView, pod: Pod, attempt: Attempt, job_id: int, full: FullNode) -> Action | None:
    """Keep the job until its node has room, for a limited time."""
    attempt.busy_since = attempt.busy_since or view.now
    timeout = view.config.busy_node_timeout
    if view.time >= max(full.until, view.time - (view.now - attempt.busy_since)) + timeout:
        return GiveBack(pod, job_id, f"node {full.node} has had {full.lack()} for {timeout:.0f} s: {full.names()}")
    if pods.job_id(pod) != job_id or not pods.is_held(pod):
        return Hold(pod, job_id)
    return _tell(view, pod, attempt, "NodeBusy", f"Slurm job {job_id} has node {full.node}: {full.message()}")


def _tell(view: SchedulerView, pod: Pod, attempt: Attempt, reason: str, message: str) -> Tell | None:
    return Tell(pod, reason, message) if is_news(pod, attempt, reason, message, view.now) else None
