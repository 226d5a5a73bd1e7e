"""The decision of the workload controller, for pods and jobs that end together. Pure.

No pod is terminated before slurmctld itself has reported the end of its job twice (``ObservedJob.confirmations``). A
missing answer, or an answer of a proxy, terminates no pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from bridge import job_ends, names
from bridge.core import isolation
from bridge.slurm import states
from bridge.slurm.components import is_over
from bridge.slurm.models import ObservedJob
from bridge.workload import links, pods
from controllers.workload.workload_actions import (
    Action,
    Ask,
    CancelRemainingComponents,
    CancelSecond,
    Decision,
    Displaced,
    End,
    Label,
    Mark,
    Orphan,
    Pod,
    Release,
    Report,
    Suspension,
    Waiting,
    WorkloadView,
)

DISPLACED_ANSWERS = 3
"""Number of different snapshots that show a displaced job before its pod is terminated."""


_Step = tuple[Action | None, Displaced | None]
"""The action for one pod, and how often its job was displaced."""


def decide(view: WorkloadView) -> Decision:
    """Decide for every pod and every job. Return no actions before the first complete answer of slurmctld."""
    jobs = view.snapshot.jobs
    if not view.snapshot.sequence:
        return Decision([], view.displaced)
    actions: list[Action] = []
    displaced: dict[str, Displaced] = {}
    waiting: dict[str, Waiting] = {}
    candidates: list[tuple[Pod, str, bool]] = []
    all_keys, at_pools = set[str](), set[str]()
    for pod in view.pods:
        uid = pods.uid(pod)
        last = view.waiting.get(uid)
        # identity suffices: the cache and merging.observed() keep an object until its data change
        if last is not None and last.pod is pod and jobs.get(last.observed.job.job_id) is last.observed:
            waiting[uid] = last
            continue
        try:
            candidates.append((pod, links.key(pod), _has_ended(view, pod)))
            at_pools |= _keys_at_pool(view, pod)
        except Exception as error:
            actions += _report_error(pod, error)
            # its key is not known; without any, the job of this pod would look like an orphan and be cancelled
            all_keys.add(uid)
    all_keys.update(pod.key for pod in waiting.values())
    open_keys = all_keys | {key for _, key, has_ended in candidates if not has_ended}
    for pod, key, has_ended in candidates:
        try:
            action, displacement = _decide_pod(view, pod, key, has_ended, open_keys)
            action = None if isinstance(action, End) and key in at_pools and not pods.is_bound(pod) else action
            action = _apply_brake(view, pod, action)
            settled = action is None and displacement is None and not has_ended
            awaited_job = _awaited_job(view, pod, key) if settled else None
            if action is None and pods.has_error(pod):
                action = Report(pod, "")
        except Exception as error:
            actions += _report_error(pod, error)
            continue
        if action is not None:
            actions.append(action)
        if displacement is not None:
            displaced[pods.uid(pod)] = displacement
        if awaited_job is not None:
            waiting[pods.uid(pod)] = Waiting(pod, awaited_job, key)
    all_keys.update(key for _, key, _ in candidates)
    return Decision([*actions, *_decide_jobs(jobs, waiting, all_keys)], displaced, waiting)


def _decide_jobs(jobs: Mapping[int, ObservedJob], waiting: Mapping[str, Waiting], keys: Set[str]) -> Iterator[Action]:
    awaited = {pod.observed.job.job_id for pod in waiting.values()}
    for job_id, observed in jobs.items():
        if job_id in awaited:
            continue
        try:
            action = _decide_job(job_id, observed, keys)
        except Exception as error:
            isolation.report("workload", f"job {job_id}", error)
            continue
        if action is not None:
            yield action


def _report_error(pod: Pod, error: Exception) -> list[Action]:
    """Report an unexpected error in the condition of the pod, if that is due."""
    text = str(isolation.report("workload", pods.key(pod), error))
    return [Report(pod, text)] if pods.error_patch(pod, text, "") is not None else []


def _decide_job(job_id: int, observed: ObservedJob, all_keys: Set[str]) -> Orphan | CancelRemainingComponents | None:
    """Decide for one job: it ends with the last of its pods, and with its first component."""
    link = observed.job.link
    if link is None:
        return None
    if _is_live(observed):
        return Orphan(job_id, link) if all_keys.isdisjoint(link.keys) else None
    # two answers, as for pods; what is left of the job holds its nodes for nothing
    is_partly_over = observed.is_confirmed and not observed.missing and not is_over(observed.job)
    return CancelRemainingComponents(job_id, link) if is_partly_over else None


def is_missing(action: Action) -> bool:
    """Whether the action terminates a pod because its job is missing."""
    return isinstance(action, End) and action.end.reason == job_ends.GONE.reason


def _apply_brake(view: WorkloadView, pod: Pod, action: Action | None) -> Action | None:
    """Replace the end of a pod that the brake does not allow by a condition on the pod."""
    if view.brake is None:
        return action
    uid, marked = pods.uid(pod), pods.is_marked_missing(pod)
    if action is not None and is_missing(action) and uid not in view.brake.allowed:
        return None if marked else Mark(pod, missing=True)
    if action is None and marked and uid not in view.brake.missing:
        return Mark(pod, missing=False)
    return action


def _has_ended(view: WorkloadView, pod: Pod) -> bool:
    """Whether all containers of the pod have ended.

    The kubelet writes a final phase after all containers have ended. It does so also for a pod that was deleted with a
    grace period of 0 and that only the finalizer keeps: such a deletion alone confirms nothing. If the kubelet cannot
    write (its node is gone or not Ready), a pod that was deleted by force counts as over when Slurm has ended its job.
    """
    if pods.is_finished(pod):
        return True
    if not (pods.is_deleted(pod) and pods.is_bound(pod)) or pod["metadata"].get("deletionGracePeriodSeconds") != 0:
        return False
    node = pod["spec"]["nodeName"]
    return (node not in view.slurm_names or node in view.silent) and _job_is_over(view, pod)


def _job_is_over(view: WorkloadView, pod: Pod) -> bool:
    """Whether slurmctld has reported twice that the pod's job has ended or does not exist, or the pod never had one."""
    job_id = pods.job_id(pod)
    if job_id is None:
        return not any(_is_live(view.snapshot.jobs[job_id]) for job_id in view.snapshot.by_uid.get(links.key(pod), ()))
    observed = view.snapshot.jobs.get(job_id)
    # a job that is not in the snapshot may be one that no poll has read yet
    return observed is not None and not _is_live(observed) and observed.is_confirmed


def _awaited_job(view: WorkloadView, pod: Pod, key: str) -> ObservedJob | None:
    """Return the live job for which a pod waits that is neither bound nor deleted nor marked; else ``None``."""
    job_id = pods.job_id(pod)
    if job_id is None or pods.is_bound(pod) or pods.is_deleted(pod) or pods.is_marked_missing(pod):
        return None
    observed = view.snapshot.jobs.get(job_id)
    link = observed.job.link if observed is not None and _is_live(observed) else None
    return observed if link is not None and key in link.keys else None


def _is_live(observed: ObservedJob) -> bool:
    return not observed.missing and states.end_of(observed.job.states) is None


def _decide_pod(view: WorkloadView, pod: Pod, key: str, has_ended: bool, open_keys: set[str]) -> _Step:
    """Decide for one pod; ``key`` is the key of its job."""
    job_id, before = pods.job_id(pod), view.displaced.get(pods.uid(pod))
    if has_ended:
        return _release(view, pod, key, job_id, open_keys), None
    # before the rules for jobs: the label may still name the Slurm job that lost the race
    if _is_at_pool(view, pod):
        return _on_pool(view, pod), None
    # only after the bind: before it, the scheduler decides which of two jobs the pod keeps
    if pods.is_bound(pod) and (extra := _second_job(view, pod, job_id)) is not None:
        return CancelSecond(pod, extra), before
    # a deletion with a longer grace period goes on: the end of the job shortens it to max_grace
    if job_id is None or pods.is_ending(pod, view.max_grace):
        return None, before
    observed = view.snapshot.jobs.get(job_id)
    if observed is None:
        # no answer about the job: the binding may be newer than the snapshot. slurmctld is asked by the id
        return (None if job_id in view.expected else Ask(pod, job_id)), before
    if observed.job.link is not None and key not in observed.job.link.keys:
        # a slurmctld that has lost its state assigns job ids from 1 again
        if not pods.is_bound(pod):
            return None, before
        displacement = _count_displacement(view, before)
        end = replace(job_ends.GONE, text=f"{job_ends.GONE.text}: another job has its ID now")
        return (End(pod, job_id, end) if displacement.answers >= DISPLACED_ANSWERS else None), displacement
    if not _is_live(observed):
        # two answers: a 404 of a proxy, or a restart of slurmctld, must not terminate a pod
        return (_end(pod, observed) if observed.is_confirmed else None), before
    if not pods.is_bound(pod):
        return None, before
    if not _is_displaced(view, pod, observed):
        return _suspension(pod, observed) or _label(pod, job_id), None
    displacement = _count_displacement(view, before)
    # a requeue by Slurm raises the count of restarts; without one, somebody has taken the node from the running job
    is_shrunk = states.is_allocated(observed.job.states) and not observed.job.restarts
    end = job_ends.NODE_REMOVED if is_shrunk else job_ends.REQUEUED
    return (End(pod, job_id, end) if displacement.answers >= DISPLACED_ANSWERS else None), displacement


def _is_at_pool(view: WorkloadView, pod: Pod) -> bool:
    return pods.is_bound(pod) and pod["spec"]["nodeName"] in view.virtual


def _keys_at_pool(view: WorkloadView, pod: Pod) -> set[str]:
    """Return the key of a pod that runs at a pool.

    Other members of its group may still wait for their Bindings to the pool, and name the job that lost the race. It is
    cancelled, and they must not end with it.
    """
    return {links.key(pod)} if _is_at_pool(view, pod) and not pods.is_finished(pod) else set()


def _on_pool(view: WorkloadView, pod: Pod) -> Action | None:
    """Decide for a pod on a virtual node: it needs no Slurm job. A job that waited for it lost the race to the pool.

    The pool keeps the pod until its job there is over, so the finalizer goes as soon as no Slurm job is left.
    """
    if (extra := _second_job(view, pod, None)) is not None:
        return CancelSecond(pod, extra)
    return Release(pod, (), remote=True) if pods.is_held(pod) else None


def _second_job(view: WorkloadView, pod: Pod, pod_job_id: int | None) -> int | None:
    """Return a second live job of a bound pod; ``None`` if there is none.

    It comes from a request that slurmctld carried out late, after the scheduler had sent another one. Before the bind,
    the scheduler cancels it. A pod on a virtual node needs no job at all. A job with other pods is never returned.
    """
    key = links.key(pod)
    ids = view.snapshot.by_uid.get(key, ())
    if ids in ((), (pod_job_id,)):
        return None
    if pod["spec"]["nodeName"] not in view.virtual:
        # while the end of the pod's own job is in doubt, the second one may be the one that lives
        kept_job = view.snapshot.jobs.get(pod_job_id) if pod_job_id in ids and pod_job_id is not None else None
        if kept_job is None or not _is_live(kept_job):
            return None
    for job_id in ids:
        observed = view.snapshot.jobs[job_id]
        is_alone = observed.job.link is not None and observed.job.link.keys == (key,)
        if job_id != pod_job_id and is_alone and _is_live(observed):
            return job_id
    return None


def _release(view: WorkloadView, pod: Pod, key: str, pod_job_id: int | None, open_keys: set[str]) -> Action | None:
    """Release the jobs of a pod that is over, except jobs with another pod that is not over."""
    ids: list[int] = []
    for job_id in view.snapshot.by_uid.get(key, ()):
        observed = view.snapshot.jobs[job_id]
        if _is_live(observed) and observed.job.link is not None and open_keys.isdisjoint(observed.job.link.keys):
            ids.append(job_id)
    # a job that no poll has read; the cancellation reads its comment first, so it may be that of another pod
    unseen = pod_job_id if pods.is_held(pod) and pod_job_id not in view.snapshot.jobs else None
    if key in open_keys:  # another member of the group is not over
        unseen = None
    if not ids and not pods.is_held(pod):
        return None
    return Release(pod, tuple(ids), unseen)


def _end(pod: Pod, observed: ObservedJob) -> Action | None:
    job, is_bound = observed.job, pods.is_bound(pod)
    if observed.missing:
        return End(pod, job.job_id, job_ends.GONE) if is_bound else None
    end = states.end_of(job.states)
    # not bound: the scheduler submits a new job, but not after a cancellation: that would undo each ``scancel``
    if end is None or not (is_bound or "CANCELLED" in job.states):
        return None
    return End(pod, job.job_id, end)


def _suspension(pod: Pod, observed: ObservedJob) -> Suspension | None:
    """Return the change of the pod's condition, if it does not show whether the job is suspended."""
    suspended, job = "SUSPENDED" in observed.job.states, observed.job
    marked = pods.condition(pod, names.JOB_SUSPENDED).get("status") == "True"
    # a job that ends or is requeued while it is suspended has not been resumed
    if suspended == marked or not (suspended or states.is_allocated(job.states)):
        return None
    return Suspension(pod, job.job_id, suspended)


def _label(pod: Pod, job_id: int) -> Label | None:
    # the binding carries the label, but API servers before 1.33 do not copy it to the pod
    is_labelled = (pod["metadata"].get("labels") or {}).get(names.JOB_ID_LABEL) == str(job_id)
    return None if is_labelled else Label(pod, job_id)


def _is_displaced(view: WorkloadView, pod: Pod, observed: ObservedJob) -> bool:
    """Whether the job of a bound pod is pending again, or runs on another node."""
    job = observed.job
    if not states.is_allocated(job.states):
        return states.is_pending(job.states)
    # an answer without nodes, as during a change of the state, shows no other node
    return bool(job.nodes) and _slurm_node(view, pod) not in job.nodes


def _slurm_node(view: WorkloadView, pod: Pod) -> str:
    """Return the Slurm name of the bound pod's node: that of the allocation, even if the Node has changed since."""
    node = pod["spec"]["nodeName"]
    return pods.slurm_node(pod) or view.slurm_names.get(node, node)


def _count_displacement(view: WorkloadView, before: Displaced | None) -> Displaced:
    """Count that the snapshot shows a displaced job; each snapshot counts once."""
    if before is None:
        return Displaced(view.snapshot.sequence, 1)
    # the loop decides several times about one snapshot, and a confirmation must be another answer
    if view.snapshot.sequence <= before.sequence:
        return before
    return Displaced(view.snapshot.sequence, before.answers + 1)
