"""The nodes that a running group releases: Slurm shows a drained node as DRAINING while a job has it. Pure.

A member that is evicted from such a node gets a job of its own elsewhere (:mod:`scheduler.group_apart`). The job of the
group is shrunk to its other nodes when no pod is left on the node and none can be bound there any more. The request to
Slurm names the nodes that the job keeps, so it may be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Set

from bridge.slurm import states
from bridge.slurm.models import Job, JobPart, ObservedJob
from bridge.workload import pods
from scheduler import group_apart, member_places
from scheduler.group_actions import Shrink
from scheduler.group_states import GroupState
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView

WHY = "no new pod can run there, and no pod of the group is left there"


def decide(view: SchedulerView, group: Group, state: GroupState, live: list[ObservedJob]) -> Shrink | None:
    """Return the action for the first component of the running job that has nodes to release; ``None`` if none has.

    ``live`` are the jobs of the group that are pending or allocated.
    """
    # of two live jobs, one is cancelled first (group_decide)
    if not group.running or len(live) != 1 or view.now < state.shrink_retry_at:
        return None
    job = live[0].job
    closed = view.placements.closed
    if closed.isdisjoint(job.nodes) or not _runs(group, state, job):
        return None
    used = _used(group, job)
    if used is None:
        return None
    for part in job.parts or (job,):
        released = tuple([node for node in part.nodes if node in closed and node not in used])
        if 0 < len(released) < len(part.nodes):  # Slurm does not take the last node from a component
            return Shrink(group, job.job_id, released, WHY, part.job_id if isinstance(part, JobPart) else 0)
    return None


def _runs(group: Group, state: GroupState, job: Job) -> bool:
    """Whether the job has started, and a member runs in it and stays."""
    if not states.is_allocated(job.states) or "CONFIGURING" in job.states or not group_apart.others_run(group, job):
        return False
    return state.started_job == job.job_id or group.has_started(job.job_id, group.waiting)


def _used(group: Group, job: Job) -> Set[str] | None:
    """Return the nodes on which a member runs or may be bound; ``None`` if a pod does not name its node."""
    used = {pods.slurm_node(pod) for pod in group.running}
    members, _ = member_places.matching_members(group, job)
    used |= {*member_places.assign_places(members, job).values()} if members.waiting else set()
    return None if "" in used else used
