"""What a site publishes about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from bridge.protocol.model.identifiers import PoolName, Value

Id = Annotated[int, Field(ge=0, lt=2**32)]


class JobUser(Value):
    """The user that every job of a site runs as. A site whose jobs have different users announces none.

    ``most_uid`` and ``most_gid``: the largest ids of a container in podman's user namespace; ``None``: they are not
    known, because the jobs run on other machines.
    """

    uid: Id
    gid: Id | None = None
    most_uid: Id | None = None
    most_gid: Id | None = None


class Announcement(Value):
    """A site's resources and state; a submitter publishes it at start, on change and every ``period`` seconds.

    ``capacity`` and ``free`` map resource names to Kubernetes quantities. ``leaving``: this submitter stops, and it
    knows of no other submitter of the pool.
    """

    pool: PoolName
    submitter: str
    folder: str = Field("", max_length=128, description="Id of the folder that the submitter keeps its jobs in.")
    time: float
    period: float
    version: str
    batch: str = Field("", description="Kind and version of the batch system.")
    runtime: str = Field("", description="Kind and version of the container runtime.")
    capacity: dict[str, str] = Field(default_factory=dict)
    free: dict[str, str] = Field(default_factory=dict)
    jobs: dict[str, int] = Field({}, description="Jobs by phase, of all owners.")
    user: JobUser | None = Field(None, description="The user of all jobs; None: they have several, or it is not known.")
    labels: dict[str, str] = Field(default_factory=dict)
    taints: list[str] = Field([], description="key=value:Effect")
    problem: str = Field("", description="Why the site accepts no job now, e.g. the batch system does not answer.")
    leaving: bool = False
    gangs: bool = Field(False, description="Whether the batch system runs a group of pods as one job.")
    heterogeneous_gangs: bool = Field(False, description="Whether the pods of a group may request different resources.")
    commands: bool = Field(False, description="Whether commands run in the containers of running jobs.")
    reach: bool = Field(False, description="Whether pods may reach Services of their cluster.")
    ports: bool = Field(False, description="Whether the site connects to ports of running jobs.")


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a pool accepts submissions. ``reason`` and ``message`` are empty if it does.

    ``reason`` is CamelCase, for conditions of the virtual node; ``message`` is one sentence. ``transient``: the state
    ends without an intervention, for example because a message of the site is still on its way.
    """

    reason: str = ""
    message: str = ""
    transient: bool = False

    @property
    def ok(self) -> bool:
        """Whether the pool accepts submissions."""
        return not self.reason

    @property
    def problem(self) -> str:
        """The message, if somebody has to act; otherwise empty."""
        return "" if self.transient else self.message


READY = Readiness()
