"""A group whose job runs: members for which the job has no place, and nodes that it releases. Pure.

Once the minimum of a group runs, a member without a place gets a job of its own: a pod of a controller that was scaled
up, of a rolling update, or the successor of a pod on a node that is drained.
``docs/developers/architecture.md`` has the table.

The job releases a drained node, which Slurm shows as DRAINING while a job has it, when no pod is left on the node and
none can be bound there any more. The request to Slurm names the nodes that the job keeps, so it may be repeated after a
crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace

from bridge.slurm import states
from bridge.slurm.models import Job, JobPart, ObservedJob
from bridge.workload import pods
from scheduler import member_places
from scheduler.group_actions import Pod, Shrink
from scheduler.group_states import GroupState
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView, is_live

RELEASE = "no new pod can run there, and no pod of the group is left there"


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


def shrink(view: SchedulerView, group: Group, state: GroupState, live: list[ObservedJob]) -> Shrink | None:
    """Return the action for the first component of the running job that has nodes to release; ``None`` if none has.

    ``live`` are the jobs of the group that are pending or allocated.
    """
    # of two live jobs, one is cancelled first (group_decide)
    if not group.running or len(live) != 1 or view.now < state.shrink_retry_at:
        return None
    job = live[0].job
    closed = view.placements.closed
    if closed.isdisjoint(job.nodes) or not _runs_on(group, state, job):
        return None
    used = _used(group, job)
    if used is None:
        return None
    for part in job.parts or (job,):
        released = tuple([node for node in part.nodes if node in closed and node not in used])
        if 0 < len(released) < len(part.nodes):  # Slurm does not take the last node from a component
            return Shrink(group, job.job_id, released, RELEASE, part.job_id if isinstance(part, JobPart) else 0)
    return None


def _runs_on(group: Group, state: GroupState, job: Job) -> bool:
    """Whether the job has started, and a member runs in it and stays."""
    if not states.is_allocated(job.states) or "CONFIGURING" in job.states or not others_run(group, job):
        return False
    return state.started_job == job.job_id or group.has_started(job.job_id, group.waiting)


def _used(group: Group, job: Job) -> Set[str] | None:
    """Return the nodes on which a member runs or may be bound; ``None`` if a pod does not name its node."""
    used = {pods.slurm_node(pod) for pod in group.running}
    members, _ = member_places.matching_members(group, job)
    used |= {*member_places.assign_places(members, job).values()} if members.waiting else set()
    return None if "" in used else used
