"""Requests of the hub to a pool."""

from __future__ import annotations

from pydantic import Field

from bridge.protocol.model.identifiers import Namespace, PodName, Value


class JobParameters(Value):
    """The parameters of a job except its script."""

    namespace: Namespace
    name: PodName
    cpus: int = Field(1, ge=1)
    memory: int = Field(0, ge=0, description="Bytes; 0: the site's default.")
    gpus: int = Field(0, ge=0)
    gpu_resource: str = Field("", description="Name of the extended resource that the pod requests GPUs by.")
    time_limit: float | None = Field(None, description="Seconds; none: the site's default.")
    flags: list[str] = Field([], description="Further arguments of the batch system's submit command, from the user.")
    flavor: str = ""
    grace: float = Field(30, ge=0, description="terminationGracePeriodSeconds.")
    grant_wait: float | None = Field(
        None, gt=0, description="Seconds for which the script waits for a grant; none: it needs no grant."
    )


class JobSubmission(JobParameters):
    """One pod as one job: the complete bash script and its parameters."""

    script: str


class LogOptions(Value):
    """The options of ``kubectl logs``. ``since`` is in seconds since 1970."""

    container: str
    follow: bool = False
    tail: int | None = Field(None, ge=0)
    since: float | None = None
    timestamps: bool = False
    limit_bytes: int | None = Field(None, ge=1)
    previous: bool = False


class VolumeFile(Value):
    """A file of a job's volume. ``path`` is relative to the job's folder ``volumes``, or to the volume."""

    path: str
    data: bytes
    mode: int = 0o600
