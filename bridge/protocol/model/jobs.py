"""The state of a job at a site and of its containers, and what these use of CPU and memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, FailFast, Field
from pydantic.dataclasses import dataclass

from bridge.core.job_lifecycle import Event
from bridge.protocol.model.identifiers import Namespace, PodName, Ticket, Uid

_RECORD = ConfigDict(extra="ignore")
# Data classes: the hub keeps one JobStatus for each job, and a data class takes a fifth of the memory of a model.

LONGEST_TEXT, LONGEST_MESSAGE, MOST_CONTAINERS, MOST_OCCURRENCES = 1024, 4096, 256, 8
"""Characters of a text and of a message, containers of a list, and occurrences of a container. The rest is cut off:
these values limit the memory that a faulty site can fill. Kubernetes limits a termination message to 4,096 bytes."""
GRANTED = "Granted"
"""Reason of a queued job whose script has started and has its grant, but has not recorded that it begins."""
EVENTS = {"queued": Event.QUEUED, "unknown": Event.QUEUED, "running": Event.STARTED, "ended": Event.ENDED}
"""What an answer shows of a job, by its phase."""
Text = Annotated[str, AfterValidator(lambda text: text[:LONGEST_TEXT])]
LongText = Annotated[str, AfterValidator(lambda text: text[:LONGEST_MESSAGE])]
Number = Annotated[int, AfterValidator(lambda number: max(-(2**31), min(number, 2**31 - 1)))]
"""A number of Kubernetes, which has 32 bits."""
_LARGEST = 2**62
MOST_USAGES = 500
"""Jobs in one request for their use of CPU and memory."""
_LATEST = 1e11
"""Seconds since 1970, in the year 5138. A job can claim any time, which must not spoil the answer about others."""


def _cut(most: int, value: object) -> object:
    """Return the beginning of a list, before its elements are validated: a faulty site may send millions."""
    return value[:most] if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class Termination:
    """How one run of a container ended."""

    exit_code: Number
    signal: Number = 0
    reason: Text = ""
    message: LongText = ""
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class Occurrence:
    """Something that happened to a container and becomes an Event of its pod, with the reason of a kubelet.

    ``count``: how often, since the start of the job. ``at``: the last time, in seconds since 1970.
    """

    reason: Text
    message: Text = ""
    count: Number = 1
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class ContainerState:
    """The state of one container, as the job's script recorded it. ``last`` is the run before a restart."""

    name: Text
    state: Literal["waiting", "running", "terminated"] = "waiting"
    reason: Text = ""
    message: LongText = ""
    started_at: float | None = None
    ended: Termination | None = None
    restarts: Number = 0
    started: bool = Field(default=False, description="The startup probe has succeeded and postStart has ended.")
    ready: bool = False
    last: Termination | None = None
    occurrences: Annotated[tuple[Occurrence, ...], FailFast(), BeforeValidator(partial(_cut, MOST_OCCURRENCES))] = ()


Containers = Annotated[list[ContainerState], FailFast(), BeforeValidator(partial(_cut, MOST_CONTAINERS))]


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class JobStatus:
    """The state of one job.

    Parameters
    ----------
    job
        UID of the pod.
    owner
        The cluster that submitted the job. Empty for a job that was submitted before jobs had owners.
    job_id
        The batch system's name of the job.
    phase
        ``queued``: the batch system has the job. ``running``: its script runs. ``ended``: no process of it runs, and
        none will. ``unknown``: the batch system cannot be queried; the last known state stands.
    gang
        Name of the job of the pod's group (:class:`~bridge.protocol.model.requests.PlaceInJob`); empty: the job
        is the pod's.
    missing
        The batch system no longer lists the job, and the site has no evidence that it has ended. The hub cancels the
        job, unless so many jobs are missing at once that the mass-termination guard engages.
    outcome
        The phase of the pod, once the job has ended.
    reason
        CamelCase: why the job is pending, or why it ended.
    submitted_at, started_at, ended_at
        Seconds since 1970.
    asks
        The ticket of the script, which has started and waits for its grant. Empty: it does not wait.
    unused
        The job of a pod that races has ended without a grant: it has started no container, and none will start.
    """

    job: Uid
    owner: Text = ""
    namespace: Namespace
    name: PodName
    job_id: Text = ""
    phase: Literal["queued", "running", "ended", "unknown"]
    missing: bool = False
    outcome: Literal["", "Succeeded", "Failed"] = ""
    asks: Ticket | Literal[""] = ""
    unused: bool = False
    gang: Text = ""
    reason: Text = ""
    message: LongText = ""
    host: Text = ""
    ip: Text = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    init_containers: Containers = Field(default_factory=list)
    containers: Containers = Field(
        default_factory=list, description="May include init containers: the hub takes the kind from the pod."
    )


def pod_of(job: JobStatus) -> Mapping[str, Any]:
    """Return the identity of a job's pod in the form of a pod, for requests about a job whose pod is gone."""
    return {"metadata": {"namespace": job.namespace, "name": job.name, "uid": job.job}}


def identity_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the state of a pod's job that name the pod."""
    metadata = pod["metadata"]
    return {"job": metadata["uid"], "namespace": metadata["namespace"], "name": metadata["name"]}


Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class ContainerUse:
    """The use of one run of a container: the one after so many ``restarts``.

    ``cpu``: seconds of CPU time since its start. ``memory``: bytes of its working set.
    """

    name: Text
    restarts: int
    cpu: Amount
    memory: Annotated[int, Field(ge=0, le=_LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class JobUsage:
    """The use of the running containers of a job, measured ``at``, in seconds since 1970."""

    job: Uid
    at: Annotated[Amount, AfterValidator(lambda seconds: min(seconds, _LATEST))]
    containers: Annotated[list[ContainerUse], FailFast(), BeforeValidator(partial(_cut, MOST_CONTAINERS))]
