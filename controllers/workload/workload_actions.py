"""The actions of the workload controller: what a decision returns and ``workload_act.py`` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import job_ends
from bridge.slurm.models import JobLink

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Release:
    """Cancel the live jobs of the pod, then remove the finalizer. ``unseen``: a job that is not in the snapshot.

    ``remote``: the pod is bound to a pool, so the job id is removed with the finalizer.
    """

    pod: Pod
    job_ids: tuple[int, ...]
    unseen: int | None = None
    remote: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Terminate the pod, or shorten its grace period: its job is over."""

    pod: Pod
    job_id: int
    end: job_ends.End

    @property
    def reason(self) -> str:
        """The reason of the end."""
        return self.end.reason

    @property
    def text(self) -> str:
        """The text of the end, to follow ``Slurm job 14``."""
        return self.end.text


@dataclass(frozen=True, slots=True)
class Ask:
    """Let the poller read a job that is on a pod, but not in the snapshot."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a second job of a pod that is bound to the node of another job."""

    pod: Pod
    job_id: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Set the condition of a pod: its job is missing while the brake holds the pod, or it is found again."""

    pod: Pod
    missing: bool


@dataclass(frozen=True, slots=True)
class Suspension:
    """Set the condition of a bound pod: Slurm has suspended its job, or the job has left this state."""

    pod: Pod
    job_id: int
    suspended: bool


@dataclass(frozen=True, slots=True)
class Label:
    """Set the label with the job id on a bound pod: API servers before 1.33 do not copy it from the binding."""

    pod: Pod
    job_id: int


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
class Report:
    """Set the condition of a pod: an unexpected error about it; an empty ``message``: there is none any more."""

    pod: Pod
    message: str


Action = Release | End | Ask | Cancel | Mark | Report | Suspension | Label | Orphan | CancelRemainingComponents
