"""Requests of the hub to a pool."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from bridge import names
from bridge.protocol.model.identifiers import Namespace, PodName, Uid, Value
from bridge.workload.remote_gangs import MOST_MEMBERS

HOST_NAME_PATTERN = f"^{names.DNS_LABEL}(\\.{names.DNS_LABEL})*$"
MPI_PATTERN = f"^({'|'.join(names.MPI_WAYS)})$"
HostName = Annotated[str, StringConstraints(pattern=HOST_NAME_PATTERN, max_length=253)]


class PlaceInJob(Value):
    """The place of a pod in the one job of its group at a site. The site submits the job once it has all members.

    The members of a gang differ in ``names`` and ``rank``, from 0 to ``size - 1``, and, if the site announces
    ``heterogeneous_gangs``, in their resources, flavor, flags, time limit and ``per_node``. A later submission with the
    rank of a member that is over is that member's successor in the same job, with the same resources.
    """

    gang: Uid = Field(description="Names the group's job at the site.")
    rank: int = Field(ge=0, lt=MOST_MEMBERS)
    size: int = Field(ge=2, le=MOST_MEMBERS)
    per_node: int = Field(1, ge=1, description="Members that may share a machine.")
    mpi: str = Field("none", pattern=MPI_PATTERN, description="How the members' processes form one MPI job.")
    names: list[HostName] = Field([], max_length=16, description="Names by which the other members reach this one.")


class EqualPods(Value):
    """The pods of one controller. Those with equal parameters may be one array of the batch system."""

    owner: Uid = Field(description="UID of the controller.")
    wanted: bool | None = Field(None, description="Whether the pods are to be an array; none: the site's default.")


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
    place: PlaceInJob | None = Field(None, description="Of a pod whose group is one job; none: the job is the pod's.")
    array: EqualPods | None = Field(None, description="Pods with which it may be in an array; none: the job is alone.")


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
