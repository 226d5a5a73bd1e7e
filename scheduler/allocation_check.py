"""Whether a planned binding still has its allocation. Pure.

A bind waits in the queue of the workers, and for the claims of the pod. Meanwhile, its job may end: it is cancelled by
a user or by podbridge itself, preempted, or one of its nodes fails. So the job is checked right before each Binding.
"""

from __future__ import annotations

from collections.abc import Set

from bridge.slurm import states
from bridge.slurm.models import Snapshot
from scheduler.group_actions import Bind


def lost(bind: Bind, key: str, snapshot: Snapshot, cancelled: Set[int]) -> str:
    """Return why the pod must not be bound to the node any more; empty if it may be.

    ``key`` is the key of the pod's job, ``snapshot`` the newest one, and ``cancelled`` holds the jobs that this process
    has cancelled since.
    """
    observed = snapshot.jobs.get(bind.job_id)
    if bind.job_id in cancelled:
        return "podbridge has cancelled the job"
    if observed is None or observed.missing:
        return "Slurm does not list the job"
    if observed.job.link is None or key not in observed.job.link.keys:
        return "the job is that of another pod"
    if not states.is_allocated(observed.job.states):
        return f"the job is {'+'.join(sorted(observed.job.states))}"
    if bind.slurm_node not in observed.job.nodes:
        return f"the job no longer has node {bind.slurm_node}"
    return ""
