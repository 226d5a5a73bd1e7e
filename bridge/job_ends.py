"""The table of ends: how a job ends, on the colocated Slurm and at a site, and what that means for its pod.

Batch systems and controllers map what they see to a row. Docs and the condition ``DisruptionTarget`` follow the table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class End:
    """One row: the end of a job.

    Parameters
    ----------
    reason
        CamelCase, for the pod and its Event.
    text
        A predicate, to follow ``Slurm job 14``.
    disruption
        Whether something other than the pod caused the end: the pod gets ``DisruptionTarget=True``, and a Job may
        exclude it from its back-off limit.
    source
        Who reports the end, for the docs.
    at_site
        The reason of a pod at a site, where kubelets have a reason of their own for this end.
    """

    reason: str
    text: str
    disruption: bool
    source: str
    at_site: str = ""

    @property
    def site_reason(self) -> str:
        """The reason of a pod at a site."""
        return self.at_site or self.reason


COMPLETED = End("JobCompleted", "completed", True, "Slurm, colocated: `COMPLETED` (the placeholder ended, not the pod)")
FAILED = End("JobFailed", "failed", True, "Slurm, colocated: `FAILED` (the placeholder failed, not the pod)")
CANCELLED = End(
    "Cancelled", "was cancelled", True, "Slurm: `CANCELLED`; HTCondor: removed; PBS: deleted; NuNet: cancelled"
)
TIME_LIMIT = End(
    "TimeLimit",
    "was terminated because it reached its time limit",
    False,
    "Slurm: `TIMEOUT`; PBS: walltime; HTCondor: `allowed_execute_duration`; a plain host: its time limit",
    "DeadlineExceeded",
)
DEADLINE = End(
    "Deadline",
    "was terminated because it could not complete before its deadline",
    False,
    "Slurm: `DEADLINE`",
    "DeadlineExceeded",
)
OUT_OF_MEMORY = End(
    "OutOfMemory",
    "was terminated because it used more memory than it requested",
    False,
    "Slurm: `OUT_OF_MEMORY`; PBS and HTCondor: memory limit; a plain host: its memory watch",
    "OOMKilled",
)
NODE_FAIL = End(
    "NodeFail",
    "was terminated because one of its nodes failed",
    True,
    "Slurm: `NODE_FAIL`; HTCondor: the machine is lost; a plain host: a restart of the machine",
)
BOOT_FAIL = End("BootFail", "was terminated because one of its nodes did not boot", True, "Slurm: `BOOT_FAIL`")
PREEMPTED = End("Preempted", "was preempted by another job", True, "Slurm: `PREEMPTED`")
REVOKED = End("Revoked", "was revoked because another cluster of the federation runs it", True, "Slurm: `REVOKED`")
GONE = End("JobGone", "no longer exists", True, "Slurm, colocated: two answers without the job")
LOST = End("JobLost", "no longer exists at the site", True, "a site: two answers without the job, or a lost record")
REQUEUED = End("Requeued", "was removed from its node and requeued", True, "Slurm, colocated: three answers")
NODE_REMOVED = End(
    "NodeRemoved", "no longer has the node of the pod", True, "Slurm, colocated: the job runs without the node"
)
KILLED = End(
    "Killed",
    "was terminated by a signal, or because of its use of CPUs",
    False,
    "PBS: CPU limits; a plain host: a signal",
)
HELD = End("Held", "was held", False, "HTCondor: a hold that is not a limit")

ENDS = (
    *(COMPLETED, FAILED, CANCELLED, TIME_LIMIT, DEADLINE, OUT_OF_MEMORY, NODE_FAIL, BOOT_FAIL, PREEMPTED, REVOKED),
    *(GONE, LOST, REQUEUED, NODE_REMOVED, KILLED, HELD),
)
"""All rows."""
_OTHER_NAMES = frozenset({"NodeFailed", "NodeFailure", "BootFailure"})
"""Reasons of a failed node from submitters before the table, and from interLink plugins."""
_DISRUPTIONS = _OTHER_NAMES | {name for end in ENDS if end.disruption for name in (end.reason, end.site_reason)}


def is_disruption(reason: str) -> bool:
    """Whether the reason of an ended job, as a site reports it, is a disruption of the pod."""
    return reason in _DISRUPTIONS
