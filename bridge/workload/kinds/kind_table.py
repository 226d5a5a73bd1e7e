"""The table of the kinds, and the values of the annotation ``bridge.vk.io/gang``."""

from __future__ import annotations

from bridge import names
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import job_kinds, pod_group_kinds
from bridge.workload.kinds.kind import Kind, Pod

KINDS: tuple[Kind, ...] = (
    pod_group_kinds.WORKLOAD,
    pod_group_kinds.WORKLOAD_REF,
    pod_group_kinds.POD_GROUP,
    job_kinds.LWS,  # before Kueue, which also sets its label on the pods of a LeaderWorkerSet
    pod_group_kinds.KUEUE,
    job_kinds.JOBSET,
    job_kinds.JOB,
)
"""In the order of precedence: a pod belongs to the first group that it claims."""

GANG_VALUES = {
    "true": "the pods of a group share one job",
    "all": "all pods of a JobSet share one job",
    "false": "each pod has a job of its own",
}


def claimed(pod: Pod) -> tuple[Kind, str] | None:
    """Return the kind and the name of the group that the pod claims; ``None`` if it claims none."""
    for kind in KINDS:
        name = kind.owner_name(pod)
        if name is not None:
            return kind, name
    return None


def check_gang(value: str, subject: str) -> None:
    """Raise :class:`InvalidGroupError` if the annotation ``bridge.vk.io/gang`` of ``subject`` is invalid."""
    if value not in GANG_VALUES:
        raise InvalidGroupError(
            f"annotation {names.GANG} of {subject}: {value[:120]!r} is not allowed; allowed: {', '.join(GANG_VALUES)}"
        )
