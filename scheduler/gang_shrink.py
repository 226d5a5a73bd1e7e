"""The nodes that a running gang releases: Slurm shows a drained node as DRAINING while a job has it. Pure.

A member that is evicted from such a node gets a job of its own elsewhere (:mod:`scheduler.gang_apart`). The job of the
gang is shrunk to its other nodes when no pod is left on the node and none can be bound there any more. The request to
Slurm names the nodes that the job keeps, so it may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Set

from bridge.slurm import states
from bridge.slurm.models import Job, JobPart, ObservedJob
from bridge.workload import pods
from scheduler import gang_apart, gang_states
from scheduler.gang_states import Gang
from scheduler.pod_actions import Shrink
from scheduler.pod_states import PodState
from scheduler.rules import SchedulerView

WHY = "no new pod can run there, and no pod of the group is left there"


def decide(view: SchedulerView, gang: Gang, state: PodState, live: list[ObservedJob]) -> Shrink | None:
    """Return the action for the first component of the running job that has nodes to release; ``None`` if none has.

    ``live`` are the jobs of the gang that are pending or allocated.
    """
    # of two live jobs, one is cancelled first (gang_decide)
    if len(live) != 1 or view.now < state.shrink_retry_at:
        return None
    job = live[0].job
    closed = view.placements.closed
    if closed.isdisjoint(job.nodes) or not _runs(gang, state, job):
        return None
    used = _used(gang, job)
    if used is None:
        return None
    for part in job.parts or (job,):
        released = tuple([node for node in part.nodes if node in closed and node not in used])
        if 0 < len(released) < len(part.nodes):  # Slurm does not take the last node from a component
            pod = next(pod for pod in gang.running if gang_apart.stays(pod, job))
            return Shrink(pod, job.job_id, released, WHY, part.job_id if isinstance(part, JobPart) else 0)
    return None


def _runs(gang: Gang, state: PodState, job: Job) -> bool:
    """Whether the job has started, and a member runs in it and stays."""
    if not states.is_allocated(job.states) or "CONFIGURING" in job.states or not gang_apart.others_run(gang, job):
        return False
    return state.started_job == job.job_id or gang.has_started(job.job_id, gang.waiting)


def _used(gang: Gang, job: Job) -> Set[str] | None:
    """Return the nodes on which a member runs or may be bound; ``None`` if a pod does not name its node."""
    used = {pods.slurm_node(pod) for pod in gang.running}
    members, _ = gang_states.matching_members(gang, job)
    used |= {*gang_states.assign_places(members, job).values()} if members.waiting else set()
    return None if "" in used else used
