"""The actions for a pod on a virtual node: what a decision returns and ``virtual_pod_act.py`` carries out."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.pod_status import Status
from controllers.virtual import race_decide
from controllers.virtual.pod_state import Pod


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the pod's job to the site."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Look:
    """Request the state of the job from the site."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Write:
    """Write the job's state to the pod. ``job_id``: the id to write, if the pod has another one or none."""

    pod: Pod
    job: JobStatus
    status: Status
    patch: Status
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    """Set the pod to Failed: its job is lost. ``unknown``: the site has no record of the job."""

    pod: Pod
    reason: str
    message: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Set the pod's condition for a missing job, while the brake holds the pod, or clear it."""

    pod: Pod
    missing: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the job, with ``grace`` seconds to end. The pod stays until the site has confirmed the end."""

    pod: Pod
    grace: float


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the job and its files at a pool that cannot list its jobs, because no later snapshot shows them."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Remove:
    """Write the final status of a deleted pod, and remove it: the site has confirmed its end."""

    pod: Pod
    status: Status
    patch: Status
    job: JobStatus | None = None


@dataclass(frozen=True, slots=True)
class Orphan:
    """Request the pod of this job from the API server. If it is gone, cancel the job, or delete it if it has ended."""

    job: JobStatus


@dataclass(frozen=True, slots=True)
class Refresh:
    """Send to the site the files of volumes that have changed, and fresh service account tokens."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again after ``seconds`` seconds."""

    seconds: float


Action = Submit | Look | Write | Fail | Mark | Cancel | Forget | Remove | Orphan | Refresh | Wait | race_decide.Action
