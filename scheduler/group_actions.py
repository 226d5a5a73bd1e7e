"""The actions for groups and their members: what a decision returns and :mod:`scheduler.group_act` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.workload import pods
from bridge.workload.remote_gangs import Place
from scheduler.pod_group import Group
from scheduler.volumes.volume_nodes import Write

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _JobAction:
    """An action about the job of a group: one at a time for all members."""

    group: Group

    @property
    def pod(self) -> Pod:
        """The pod that gets the Events about the action."""
        return self.group.first


class Submit(_JobAction):
    """Submit a job for the waiting members of the group."""


@dataclass(frozen=True, slots=True)
class BindTogether(_JobAction):
    """Allocate the resource claims of all these members of the group, then bind the members in this order.

    If one cannot be bound, those after it are not: in a race, the first Binding is the grant of the group.
    """

    binds: tuple[Bind, ...]


@dataclass(frozen=True, slots=True)
class Release(_JobAction):
    """Cancel the jobs of a group whose open members are all deleted, then remove the finalizers of these members."""

    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CancelSecond(_JobAction):
    """Cancel a second job of a group."""

    job_id: int


@dataclass(frozen=True, slots=True)
class CancelAndResubmit(_JobAction):
    """Remove the id of a job that cannot be used from the waiting members of the group, then cancel the job.

    A new job is submitted later; after a short time if ``soon``, because the next job excludes the refused node.
    """

    job_id: int
    why: str
    soon: bool = False
    reason: str = "NodeRefused"


@dataclass(frozen=True, slots=True)
class Withdraw(_JobAction):
    """Remove the ids of jobs that have lost the race from the waiting members of the group, then cancel the jobs."""

    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Exclude(_JobAction):
    """Set the excluded nodes of a pending job, or of the component with this number and its own id.

    ``before`` are the nodes that the job excludes now. If slurmctld refuses the update because it no longer has one of
    them, the job of the group is cancelled, and a new one is submitted.
    """

    job_id: int
    nodes: tuple[str, ...]
    part: int = 0
    component: int = 0
    before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shrink(_JobAction):
    """Let the running job of a group, or its component with this id, release ``nodes`` on which no member runs."""

    job_id: int
    nodes: tuple[str, ...]
    why: str
    component: int = 0


class Join(_JobAction):
    """Let the waiting members of the group join the object that has taken the name of their group."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Set the job id, and the finalizer if it is missing, on a pod that is not bound yet."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Unhold:
    """Remove the finalizer of a deleted member that was never bound. The job stays for the other members."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the pod to the node of its allocated job; the same write sets the job id on the pod.

    ``node`` is the name in Kubernetes, ``slurm_node`` the name in Slurm. ``started`` is the start of the job in seconds
    since the epoch. ``component`` is the id of the component that has the node; 0: the job is not heterogeneous. Up to
    ``sharing`` members of the group share the node, this one included. ``later``: other members have started before,
    and the job may have lost the node since, which its state does not show.
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
class BindVolumes:
    """Bind the claims of a pod on the allocated node. The pod itself is bound when its claims are."""

    pod: Pod
    writes: tuple[Write, ...]


@dataclass(frozen=True, slots=True)
class SetApart:
    """Give a member of a group a job of its own, because the job of the group has no place for it."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class _PoolAction:
    """An action about members of the group with this key, each with its place in the group's job at a pool, if any."""

    key: str
    members: tuple[tuple[Pod, Place | None], ...]

    @property
    def pod(self) -> Pod:
        """The first of these pods."""
        return self.members[0][0]


@dataclass(frozen=True, slots=True)
class BindToPool(_PoolAction):
    """Bind members of the group with this key to the pool's virtual node, each with its place in the group's job there.

    The first Binding decides which job this is. A process that has lost its leadership may still have one on the way,
    so the others follow only when the API server has accepted the first. A pod with a job alone has no place. ``grant``
    is the grant of the members that are bound already, of a group that has raced.
    """

    pool: str
    why: str
    grant: str = ""


@dataclass(frozen=True, slots=True)
class SetPlaces(_PoolAction):
    """Record the places of the group with this key, in the order of preference; the controllers submit the jobs.

    Each member of a group gets its place in the group's job, too; a bare pod has none. A group that does not race has
    no places but those in its job.
    """

    places: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class SetCondition:
    """Write the reason for the wait into the condition PodScheduled of the pod."""

    pod: Pod
    reason: str
    message: str


JobAction = Submit | BindTogether | Release | CancelSecond | CancelAndResubmit | Withdraw | Exclude | Shrink | Join
PoolAction = BindToPool | SetPlaces
Action = JobAction | PoolAction | Hold | Unhold | Bind | BindVolumes | SetApart | SetCondition
URGENCY: dict[type[Action], int] = {
    Bind: 1,
    BindTogether: 1,
    BindToPool: 2,
    BindVolumes: 2,
    Release: 2,
    Unhold: 2,
    CancelSecond: 2,
    CancelAndResubmit: 3,
    Withdraw: 3,
    SetPlaces: 3,
    Submit: 4,
    Hold: 5,
    Join: 5,
    SetApart: 5,
    Exclude: 6,
    Shrink: 6,
    SetCondition: 9,
}
"""The order in which the workers carry out actions; smaller first."""


def key_of(action: Action) -> str:
    """Return the key of the workers for an action: those about a job are one at a time for all members of the group."""
    if isinstance(action, JobAction):
        return action.group.key
    return action.key if isinstance(action, PoolAction) else pods.uid(action.pod)


def hold(group: Group, job_id: int) -> list[Action]:
    """Return the actions for the members that a binding alone does not hold."""
    return [Hold(pod, job_id) for pod in group.waiting if pods.lacks_hold(pod, job_id)]


def label(group: Group, job_id: int) -> list[Action]:
    """Return the actions that set the job on the members that wait for longer, or whose job was cancelled."""
    return [Hold(pod, job_id) for pod in group.waiting if pods.job_id(pod) != job_id]
