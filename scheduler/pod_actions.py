"""The actions of the scheduler: what a decision returns and :mod:`scheduler.pod_act` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduler.gang_states import Gang
from scheduler.volumes.volume_nodes import Write

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit a job for the pod, or for the ``gang`` of which it is a member."""

    pod: Pod
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """Set the job id, and the finalizer if it is missing, on a pod that is not bound yet."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the pod to the node of its allocated job; the same write sets the job id on the pod.

    ``node`` is the name in Kubernetes, ``slurm_node`` the name in Slurm. ``started`` is the start of the job in seconds
    since the epoch. ``component`` is the id of the component that has the node; 0: the job is not heterogeneous. Up to
    ``sharing`` members of the gang share the node, this one included. ``later``: other members have started before, and
    the job may have lost the node since, which its state does not show.
    """

    pod: Pod
    job_id: int
    node: str
    started: float
    slurm_node: str
    component: int = 0
    sharing: int = 1
    later: bool = False


@dataclass(frozen=True, slots=True)
class BindTogether:
    """Allocate the resource claims of all these members of the ``gang``, then bind the members."""

    pod: Pod
    gang: Gang
    binds: tuple[Bind, ...]


@dataclass(frozen=True, slots=True)
class BindVolumes:
    """Bind the claims of a pod on the allocated node. The pod itself is bound when its claims are."""

    pod: Pod
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Cancel the jobs of a deleted pod that was never bound, then remove its finalizer, and those of ``members``."""

    pod: Pod
    job_ids: tuple[int, ...]
    members: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a second job of a pod."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class CancelAndResubmit:
    """Remove the id of a job that cannot be used from the pod, or from all members of the ``gang``, then cancel it.

    A new job is submitted later; after a short time if ``soon``, because the next job excludes the refused node.
    """

    pod: Pod
    job_id: int
    why: str
    gang: Gang | None = None
    soon: bool = False
    reason: str = "NodeRefused"


@dataclass(frozen=True, slots=True)
class Exclude:
    """Set the excluded nodes of a pending job, or of the component with this number and its own id.

    ``before`` are the nodes that the job excludes now. If slurmctld refuses the update because it no longer has one of
    them, the job of the pod or of the ``gang`` is cancelled, and a new one is submitted.
    """

    pod: Pod
    job_id: int
    nodes: tuple[str, ...]
    part: int = 0
    component: int = 0
    before: tuple[str, ...] = ()
    gang: Gang | None = None


@dataclass(frozen=True, slots=True)
class Shrink:
    """Let the running job of a gang, or its component with this id, release ``nodes`` on which no member runs.

    ``pod`` is a member that runs in the job.
    """

    pod: Pod
    job_id: int
    nodes: tuple[str, ...]
    why: str
    component: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """Let the waiting members of the ``gang`` join the object that has taken the name of their group."""

    pod: Pod
    gang: Gang


@dataclass(frozen=True, slots=True)
class SetApart:
    """Give a member of a gang a job of its own, because the job of the gang has no place for it."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Write the reason for the wait into the condition PodScheduled of the pod."""

    pod: Pod
    reason: str
    message: str


Action = (
    Submit
    | Hold
    | Bind
    | BindTogether
    | BindVolumes
    | Release
    | Cancel
    | CancelAndResubmit
    | Exclude
    | Shrink
    | Join
    | SetApart
    | SetCondition
)
