"""What to do for pods and jobs that should end together: pure.

Nothing is ended before slurmctld itself has reported it twice (``ObservedJob.confirmations``). A missing answer, or an
answer of a proxy, ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.brake import Brake
from bridge.slurm import states
from bridge.slurm.models import ObservedJob, PodRef, Snapshot
from bridge.workload import pods

Pod = Mapping[str, Any]

GONE_REASON = "JobGone"
GONE_TEXT = "Slurm knows the job no more"
REQUEUED_REASON = "Requeued"
REQUEUED_TEXT = "Slurm took the node away and put the job back into its queue"


@dataclass(frozen=True, slots=True)
class Release:
    """Cancel what lives of the pod's jobs, then take the finalizer off. ``unseen``: a job that the snapshot lacks."""

    pod: Pod
    job_ids: tuple[int, ...]
    unseen: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """End the pod: its job is over."""

    pod: Pod
    job_id: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Have the poller look for a job that a pod names and the snapshot does not show."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a second job of a pod that is bound to another one's node."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Say on the pod that its job is missing, while the brake holds the pod, or that it is there again."""

    pod: Pod
    missing: bool


@dataclass(frozen=True, slots=True)
class Orphan:
    """Look whether the job's pods are really gone, and then cancel it."""

    job_id: int
    pods: tuple[PodRef, ...]


Action = Release | End | Ask | Cancel | Mark | Orphan


@dataclass(slots=True)
class Memory:
    """Bound pods whose job was seen waiting or elsewhere: UID -> (sequence, times seen in different answers)."""

    displaced: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """All that a decision may depend on.

    ``slurm_names`` maps the names of all Kubernetes nodes but virtual ones to Slurm's; ``silent`` holds those that are
    not Ready, ``virtual`` the names of virtual nodes. No pod is ended for a missing job unless ``brake`` allows it;
    ``None``: there is no brake.
    """

    pods: Iterable[Pod]
    snapshot: Snapshot
    slurm_names: Mapping[str, str]
    memory: Memory
    silent: Set[str] = frozenset()
    virtual: Set[str] = frozenset()
    brake: Brake | None = None


def decide(view: WorkloadView) -> list[Action]:
    """Decide for every pod and every job; nothing before a first complete answer of slurmctld."""
    if not view.snapshot.sequence:
        return []
    actions: list[Action] = []
    open_uids: set[str] = set()
    all_uids: set[str] = set()
    everyone = list(view.pods)
    for pod in everyone:
        all_uids.add(pods.uid(pod))
        if not _over(view, pod):
            open_uids.add(pods.uid(pod))
    for pod in everyone:
        action = _braked(view, pod, _pod(view, pod, open_uids))
        if action is not None:
            actions.append(action)
    for uid in view.memory.displaced.keys() - open_uids:
        del view.memory.displaced[uid]
    actions.extend(
        Orphan(known.job.job_id, known.job.link.pods)
        for known in view.snapshot.jobs.values()
        if known.job.link is not None and _lives(known) and not any(ref.uid in all_uids for ref in known.job.link.pods)
    )
    return actions


def is_missing(action: Action) -> bool:
    """Whether a pod is ended because its job is missing."""
    return isinstance(action, End) and action.reason == GONE_REASON


def _braked(view: WorkloadView, pod: Pod, action: Action | None) -> Action | None:
    """Hold back the end of a pod that the brake does not allow, and have the pod say so."""
    if view.brake is None:
        return action
    uid, marked = pods.uid(pod), pods.condition(pod, names.JOB_MISSING).get("status") == "True"
    if action is not None and is_missing(action) and uid not in view.brake.allowed:
        return None if marked else Mark(pod, missing=True)
    if action is None and marked and uid not in view.brake.missing:
        return Mark(pod, missing=False)
    return action


def _over(view: WorkloadView, pod: Pod) -> bool:
    """Whether no container of the pod runs any more, as far as anybody can tell.

    The kubelet writes a final phase once all containers have ended, also on a pod that was deleted with a grace period
    of 0 and that only the finalizer keeps: such a deletion itself confirms nothing. Where the kubelet can't write (its
    node is gone or not Ready), a pod that was deleted by force is let go when Slurm itself has ended its job.
    """
    if pods.is_finished(pod):
        return True
    if not (pods.is_deleted(pod) and pods.is_bound(pod)) or pod["metadata"].get("deletionGracePeriodSeconds") != 0:
        return False
    node = pod["spec"]["nodeName"]
    return (node not in view.slurm_names or node in view.silent) and _job_is_over(view, pod)


def _job_is_over(view: WorkloadView, pod: Pod) -> bool:
    """Whether slurmctld has said twice that the job on the pod's label has ended, or that there is none."""
    labelled = pods.job_id(pod)
    known = view.snapshot.jobs.get(labelled) if labelled is not None else None
    return known is not None and not _lives(known) and known.confirmations >= 2


def _lives(known: ObservedJob) -> bool:
    return not known.missing and states.end_of(known.job.states) is None


def _pod(view: WorkloadView, pod: Pod, open_uids: set[str]) -> Action | None:
    labelled = pods.job_id(pod)
    if _over(view, pod):
        return _release(view, pod, labelled, open_uids)
    if pods.is_bound(pod) and (extra := _second_job(view, pod, labelled)) is not None:
        return Cancel(pod, extra)
    if labelled is None or pods.is_deleted(pod):
        return None
    known = view.snapshot.jobs.get(labelled)
    if known is None:
        return Ask(pod, labelled)
    if known.job.link is not None and not any(ref.uid == pods.uid(pod) for ref in known.job.link.pods):
        # a slurmctld that has lost its state counts from one again
        if not pods.is_bound(pod) or not _seen_enough(view, pod):
            return None
        return End(pod, labelled, GONE_REASON, f"{GONE_TEXT}: its number is another job's now")
    if not _lives(known):
        return _end(pod, known) if known.confirmations >= 2 else None
    if pods.is_bound(pod) and _displaced(view, pod, known):
        return End(pod, labelled, REQUEUED_REASON, REQUEUED_TEXT)
    return None


def _second_job(view: WorkloadView, pod: Pod, labelled: int | None) -> int | None:
    """Return a live job of a bound pod beside the one that gave it its node; ``None`` if there is none.

    Such a job is a request that slurmctld carried out late, after the scheduler asked again: before the bind the
    scheduler cancels it. A pod on a virtual node needs no job at all. A job that another pod carries is not touched.
    """
    ids = view.snapshot.by_uid.get(pods.uid(pod), ())
    if ids in ((), (labelled,)):
        return None
    if pod["spec"]["nodeName"] not in view.virtual:
        kept = view.snapshot.jobs.get(labelled) if labelled in ids and labelled is not None else None
        if kept is None or not _lives(kept):
            return None
    for job_id in ids:
        known = view.snapshot.jobs[job_id]
        alone = known.job.link is not None and all(ref.uid == pods.uid(pod) for ref in known.job.link.pods)
        if job_id != labelled and alone and _lives(known):
            return job_id
    return None


def _release(view: WorkloadView, pod: Pod, labelled: int | None, open_uids: set[str]) -> Action | None:
    """Release the jobs of a pod that is over, unless another pod of the same job still runs."""
    ids: list[int] = []
    for job_id in view.snapshot.by_uid.get(pods.uid(pod), ()):
        known = view.snapshot.jobs[job_id]
        shared = known.job.link is not None and any(ref.uid in open_uids for ref in known.job.link.pods)
        if _lives(known) and not shared:
            ids.append(job_id)
    unseen = labelled if pods.is_held(pod) and labelled is not None and labelled not in view.snapshot.jobs else None
    if not ids and not pods.is_held(pod):
        return None
    return Release(pod, tuple(ids), unseen)


def _end(pod: Pod, known: ObservedJob) -> Action | None:
    job = known.job
    if known.missing:
        reason, text = GONE_REASON, GONE_TEXT
    else:
        end = states.end_of(job.states)
        if end is None:
            return None
        reason, text = end.reason, end.text
        if not pods.is_bound(pod) and "CANCELLED" not in job.states:
            # the pod still waits: the scheduler asks Slurm again
            return None
    if known.missing and not pods.is_bound(pod):
        return None
    return End(pod, job.job_id, reason, text)


def _displaced(view: WorkloadView, pod: Pod, known: ObservedJob) -> bool:
    """Whether two answers in a row show the job of a bound pod waiting again, or on another node."""
    uid, job = pods.uid(pod), known.job
    settled = states.is_allocated(job.states) and bool(job.nodes) and _slurm_node(view, pod) in job.nodes
    moved = states.is_pending(job.states) or (states.is_allocated(job.states) and bool(job.nodes) and not settled)
    if not moved:
        view.memory.displaced.pop(uid, None)
        return False
    return _seen_enough(view, pod)


def _slurm_node(view: WorkloadView, pod: Pod) -> str:
    """Return Slurm's name of the bound pod's node: as it was when Slurm gave it, whatever the Node says today."""
    given: str = (pod["metadata"].get("annotations") or {}).get(names.SLURM_NODE_ANNOTATION, "")
    node = pod["spec"]["nodeName"]
    return given or view.slurm_names.get(node, node)


def _seen_enough(view: WorkloadView, pod: Pod) -> bool:
    """Count in how many different answers a bound pod's job was not where it should be; whether that is enough."""
    uid = pods.uid(pod)
    sequence, times = view.memory.displaced.get(uid, (view.snapshot.sequence, 0))
    if view.snapshot.sequence > sequence or times == 0:
        times += 1
        view.memory.displaced[uid] = (view.snapshot.sequence, times)
    return times >= 3
