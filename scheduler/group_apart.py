"""The members of a group for which its job has no place, and the pods that take none any more. Pure.

Once the minimum of a group runs, a member without a place gets a job of its own: a pod of a controller that was scaled
up, of a rolling update, or the successor of a pod on a node that is drained.
``docs/developers/architecture.md`` has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from bridge.slurm.models import Job
from bridge.workload import pods
from scheduler import member_places
from scheduler.group_actions import Pod
from scheduler.group_states import GroupState
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView, is_live


def lost(view: SchedulerView, group: Group) -> list[Pod]:
    """Return the deleted members on silent nodes whose job is over: no kubelet reports the end of their containers."""
    deleted = [pod for pod in group.pods if pods.is_deleted(pod)]
    return [pod for pod in deleted if _is_running(pod) and _is_silent(view, pod) and _job_is_over(view, pod)]


def _is_running(pod: Pod) -> bool:
    return pods.is_bound(pod) and not pods.is_finished(pod)


def _is_silent(view: SchedulerView, pod: Pod) -> bool:
    """Whether the node of a bound pod is not Ready, or no longer exists."""
    slurm_node = pods.slurm_node(pod)
    node = view.placements.by_slurm_name.get(slurm_node)
    return node is None or not node.ready


def _job_is_over(view: SchedulerView, pod: Pod) -> bool:
    """Whether slurmctld has reported twice that the job of a bound pod has ended, or does not list it."""
    job_id, snapshot = pods.job_id(pod), view.snapshot
    if job_id is None:
        return False
    observed = snapshot.jobs.get(job_id)
    if observed is None:
        # an older list proves nothing: the job may have been submitted after it
        return job_id not in snapshot.unread and snapshot.listed_at >= view.leading_since
    return observed.is_confirmed and not is_live(observed, frozenset())


def with_start(group: Group, state: GroupState, job: Job) -> GroupState:
    """Return the state with the allocated job noted if the minimum of the members is bound to it.

    A member that had no place then may take that of a deleted one, and the minimum of later members may be larger. A
    component has places for the members that existed at the submission, so a heterogeneous job needs all of them.
    """
    if state.started_job == job.job_id or started(group, job) < needed(group, job):
        return state
    return replace(state, started_job=job.job_id)


def needed(group: Group, job: Job) -> int:
    """Return the number of members without which none of them starts in the job."""
    return job.link.size if job.parts and job.link is not None else group.minimum


def started(group: Group, job: Job) -> int:
    """Return the number of members that were bound to the job, or are not needed in it."""
    return group.started(job.job_id) + (0 if job.parts else group.succeeded(job))


def others_run(group: Group, job: Job) -> bool:
    """Whether a member runs in the job and stays: the job is not there for the waiting members alone."""
    return any(stays(pod, job) for pod in group.pods if _is_running(pod))


def stays(pod: Pod, job: Job) -> bool:
    """Whether a running member is in the job, and not deleted."""
    return pods.job_id(pod) == job.job_id and not pods.is_deleted(pod)


def without_place(view: SchedulerView, group: Group, job: Job, unplaced: Sequence[Pod]) -> tuple[list[Pod], list[Pod]]:
    """Return the members that wait for the place of a pod that ends, and those that get a job of their own.

    ``unplaced`` are the members without a place. A deleted pod on a silent node keeps its place.
    """
    if not unplaced:
        return [], []
    shape_of = member_places.shape_in(job)
    leaving_by_shape = Counter(
        shape_of(pod)
        for pod in group.running
        if pods.is_deleted(pod) and pods.job_id(pod) == job.job_id and not _is_silent(view, pod)
    )
    waiting: list[Pod] = []
    apart: list[Pod] = []
    for pod in unplaced:
        shape = shape_of(pod)
        leaving_by_shape[shape] -= 1
        (waiting if leaving_by_shape[shape] >= 0 else apart).append(pod)
    return waiting, apart
