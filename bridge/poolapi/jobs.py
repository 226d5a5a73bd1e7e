"""The state of a job at a site, and of its containers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from bridge.poolapi.identifiers import Namespace, PodName, Ticket, Uid

_RECORD = ConfigDict(extra="ignore")
# Data classes: the hub keeps one JobStatus for each job, and a data class takes a fifth of the memory of a model.


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class Termination:
    """How one run of a container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class ContainerState:
    """The state of one container, as the job's script recorded it. ``last`` is the run before a restart."""

    name: str
    state: Literal["waiting", "running", "terminated"] = "waiting"
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    ended: Termination | None = None
    restarts: int = 0
    started: bool = Field(default=False, description="The startup probe has succeeded and postStart has ended.")
    ready: bool = False
    last: Termination | None = None


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
    missing
        The batch system no longer lists the job, and the site has no evidence that it has ended. The hub cancels the
        job, unless so many jobs are missing at once that the brake on mass ending engages.
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
    owner: str = ""
    namespace: Namespace
    name: PodName
    job_id: str = ""
    phase: Literal["queued", "running", "ended", "unknown"]
    missing: bool = False
    outcome: Literal["", "Succeeded", "Failed"] = ""
    asks: Ticket | Literal[""] = ""
    unused: bool = False
    reason: str = ""
    message: str = ""
    host: str = ""
    ip: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    init_containers: list[ContainerState] = Field(default_factory=list)
    containers: list[ContainerState] = Field(
        default_factory=list, description="May include init containers: the hub takes the kind from the pod."
    )


def pod_of(job: JobStatus) -> Mapping[str, Any]:
    """Return the identity of a job's pod in the form of a pod, for requests about a job whose pod is gone."""
    return {"metadata": {"namespace": job.namespace, "name": job.name, "uid": job.job}}
