"""The data that the decision of the workload controller depends on, and the actions that it returns. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge import job_ends
from bridge.control.brake import Brake
from bridge.slurm.models import JobLink, ObservedJob, Snapshot

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _PodAction:
    """An action for a pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class _JobAction(_PodAction):
    """An action for a pod and this job of it."""

    job_id: int


@dataclass(frozen=True, slots=True)
class Release(_PodAction):
    """Cancel the live jobs of the pod, then remove the finalizer. ``unseen``: a job that is not in the snapshot.

    ``remote``: the pod is bound to a pool, so the job id is removed with the finalizer.
    """

    job_ids: tuple[int, ...]
    unseen: int | None = None
    remote: bool = False


@dataclass(frozen=True, slots=True)
class End(_JobAction):
    """Terminate the pod, or shorten its grace period: its job is over."""

    end: job_ends.End


class Ask(_JobAction):
    """Let the poller read a job that is on a pod, but not in the snapshot."""


class CancelSecond(_JobAction):
    """Cancel a second job of a pod that is bound to the node of another job."""


@dataclass(frozen=True, slots=True)
class Mark(_PodAction):
    """Set the condition of a pod: its job is missing while the brake holds the pod, or it is found again."""

    missing: bool


@dataclass(frozen=True, slots=True)
class Suspension(_JobAction):
    """Set the condition of a bound pod: Slurm has suspended its job, or the job has left this state."""

    suspended: bool


class Label(_JobAction):
    """Set the label with the job id on a bound pod: API servers before 1.33 do not copy it from the binding."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """Check with the API server whether the pods of a job are gone, and then cancel the job."""

    job_id: int
    link: JobLink


@dataclass(frozen=True, slots=True)
class CancelRemainingComponents:
    """Cancel the remaining components of a heterogeneous job after one of its components has ended."""

    job_id: int
    link: JobLink


@dataclass(frozen=True, slots=True)
class Report(_PodAction):
    """Set the condition of a pod: an unexpected error about it; an empty ``message``: there is none any more."""

    message: str


Action = Release | End | Ask | CancelSecond | Mark | Report | Suspension | Label | Orphan | CancelRemainingComponents


@dataclass(frozen=True, slots=True)
class Displaced:
    """A bound pod whose job is pending again, runs on another node, or has another pod's comment.

    ``answers`` counts the different snapshots that showed it so; ``sequence`` is the sequence of the last one.
    """

    sequence: int
    answers: int


class Waiting(NamedTuple):
    """A pod that is not bound, and its live job: while both are the same objects, there is nothing to do for them."""

    pod: Pod
    observed: ObservedJob
    key: str


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """All data that a decision depends on.

    ``slurm_names`` maps the names of all Kubernetes nodes except virtual ones to their names in Slurm. ``silent`` holds
    the nodes that are not Ready, ``virtual`` the virtual nodes. ``displaced`` and ``waiting`` are those of the last
    decision, by UID. No pod is terminated for a missing job unless ``brake`` allows it; ``None``: there is no brake.
    ``expected`` holds the jobs that the poller will read in any case. ``max_grace`` is the maximum grace period, in
    seconds, of a pod whose job is over.
    """

    pods: Iterable[Pod]
    snapshot: Snapshot
    slurm_names: Mapping[str, str]
    displaced: Mapping[str, Displaced] = field(default_factory=dict)
    silent: Set[str] = frozenset()
    virtual: Set[str] = frozenset()
    brake: Brake | None = None
    expected: Set[int] = frozenset()
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    max_grace: float = 300


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a decision; ``displaced`` and ``waiting`` go into the next view."""

    actions: list[Action]
    displaced: Mapping[str, Displaced]
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
