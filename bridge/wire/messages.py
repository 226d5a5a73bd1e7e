"""Messages of the protocol, version 1: JSON, checked at both ends.

Unknown keys are ignored, so that a newer peer can say more.

Every request is a :class:`Request` and every reply a :class:`Reply`; the other models are their bodies and what is
published. Times are seconds since 1970 (float), sizes bytes, ``job`` is the pod's UID.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.dataclasses import dataclass

VERSION = 1
UNKNOWN_LIBRARY = "UnknownLibrary"
"""Why a site refuses a :class:`ScriptWithoutLibrary` that it can't make whole."""
WRONG_FOLDER = "WrongFolder"
"""Why a submitter refuses a request about another folder than its own: the request was not carried out."""
UID_PATTERN = r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$"
POOL_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"

Uid = Annotated[str, StringConstraints(pattern=UID_PATTERN)]
Owner = Uid
"""Whose a job is: the UID of the namespace kube-system of its cluster."""
NAMESPACE_PATTERN = POOL_PATTERN
NAME_PATTERN = r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$"
Namespace = Annotated[str, StringConstraints(pattern=NAMESPACE_PATTERN)]
PodName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
PoolName = Annotated[str, StringConstraints(pattern=POOL_PATTERN)]


class Message(BaseModel):
    """A part of the protocol."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Request(Message):
    """The envelope of every request. After ``deadline`` it is not carried out any more.

    ``owner``: the cluster that asks; a site shows and does nothing about the jobs of another. ``folder``: id of the
    site's folder that the request is about; a submitter with another folder refuses. Empty: whichever it has.
    """

    v: Literal[1] = 1
    pool: PoolName
    owner: Owner
    folder: str = ""
    job: Uid | Literal[""] = ""
    deadline: float
    body: dict[str, Any] = {}


class Problem(Message):
    """Why a request was not carried out."""

    reason: str
    message: str
    retryable: bool = False
    hint: str = ""


class Reply(Message):
    """The envelope of every reply: exactly one of ``body`` and ``error`` says something.

    ``folder``: id of the folder that the answer is read from.
    """

    v: Literal[1] = 1
    folder: str = ""
    body: dict[str, Any] = {}
    error: Problem | None = None


class ScriptWithoutLibrary(Message):
    """A script without the bash library in its middle, which the site puts in: the one of this digest (SHA-256)."""

    before: str
    library: str
    after: str


class Submit(Message):
    """Body of ``submit``: one pod as one script, and what to ask the batch system for."""

    namespace: Namespace
    name: PodName
    script: str | ScriptWithoutLibrary
    cpus: int = Field(1, ge=1)
    memory: int = Field(0, ge=0, description="Bytes; 0: the site's default.")
    gpus: int = Field(0, ge=0)
    gpu_resource: str = Field("", description="Name of the extended resource that the GPUs were asked for by.")
    time_limit: float | None = Field(None, description="Seconds; none: the site's default.")
    flags: list[str] = Field([], description="More words for the batch system's submit command, as the user gave them.")
    flavor: str = ""
    grace: float = Field(30, ge=0, description="terminationGracePeriodSeconds.")


_RECORD = ConfigDict(extra="ignore")
"""Of data classes: what is kept of every job takes a fifth of what a model does."""


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class Ended:
    """How one run of a container ended."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class ContainerState:
    """One container as its script wrote it down; ``last`` is the run before a restart."""

    name: str
    state: Literal["waiting", "running", "terminated"] = "waiting"
    reason: str = ""
    message: str = ""
    started_at: float | None = None
    ended: Ended | None = None
    restarts: int = 0
    started: bool = Field(default=False, description="The startup probe, and postStart, are over.")
    ready: bool = False
    last: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class JobStatus:
    """One job as the submitter sees it.

    ``phase``: ``queued`` (the batch system has it), ``running`` (its script runs), ``ended`` (nothing of it runs and
    nothing will), ``unknown`` (the batch system can't be asked; keep what was known).
    ``outcome`` holds the pod's phase once ended. ``reason`` is CamelCase: why it waits, or why it ended.
    ``missing``: the batch system no longer knows the job, which runs as far as the site can tell. The hub decides: it
    cancels the job, unless so many are missing at once that the brake on mass ending engages.
    ``owner`` is the cluster that submitted it; empty for a job from before jobs had owners.
    """

    job: Uid
    owner: str = ""
    namespace: Namespace
    name: PodName
    job_id: str = ""
    phase: Literal["queued", "running", "ended", "unknown"]
    missing: bool = False
    outcome: Literal["", "Succeeded", "Failed"] = ""
    reason: str = ""
    message: str = ""
    host: str = ""
    ip: str = ""
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    init_containers: list[ContainerState] = Field(default_factory=list)
    containers: list[ContainerState] = Field(
        default_factory=list, description="A site need not tell the two kinds apart: the pod does."
    )


class Submitted(Message):
    """Reply to ``submit``; ``existed``: the job was there already."""

    status: JobStatus
    existed: bool = False


class Cancel(Message):
    """Body of ``cancel``: end the job; with ``forget``, also drop everything kept of it once it has ended."""

    grace: float = Field(30, ge=0)
    forget: bool = False


class Status(Message):
    """Reply to ``status`` and ``cancel``; ``None``: the site holds nothing of that job."""

    status: JobStatus | None = None


class Snapshot(Message):
    """Body of ``snapshot``: a page of all jobs of the owner that asks, in the order of their UIDs, after ``after``."""

    after: str = ""
    limit: int = Field(500, ge=1, le=5000)


class SnapshotPage(Message):
    """Reply to ``snapshot``. ``more``: ask again after the last one. ``submitter`` and ``sequence`` as in events."""

    submitter: str
    sequence: int
    jobs: list[JobStatus]
    more: bool = False


class Logs(Message):
    """Body of ``logs``: what ``kubectl logs`` asks for. Chunks come on ``<p>.<pool>.stream.<owner>.<stream>``."""

    container: str
    stream: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{8,64}$")]
    follow: bool = False
    tail: int | None = Field(None, ge=0)
    since: float | None = None
    timestamps: bool = False
    limit_bytes: int | None = Field(None, ge=1)
    previous: bool = False


class LogChunk(Message):
    """Head of a chunk, one line of JSON; the raw bytes follow it. The first chunk is number 1.

    ``end`` says that nothing follows; ``error`` why that is, if the log did not simply end.
    """

    number: int
    end: bool = False
    error: str = ""


class LogAck(Message):
    """Published by the reader on ``<p>.<pool>.ack.<owner>.<stream>``: how far it has read, or that it wants no more."""

    number: int = 0
    stop: bool = False


class File(Message):
    """A file of a volume, new: ``path`` is relative to the job's folder ``volumes``, ``data`` base64."""

    path: str
    data: str
    mode: int = 0o600


class Files(Message):
    """Body of ``files``: refreshed files of a job that waits or runs (service account tokens)."""

    files: list[File]


class Announce(Message):
    """Published at start, on change and every ``period`` seconds.

    ``capacity`` and ``free`` map resource names to Kubernetes quantities. ``sequences`` has the number of the last
    event of each owner; one that is not in it has had none. ``leaving``: this submitter stops, and no other is known
    to it.
    """

    v: Literal[1] = 1
    pool: PoolName
    submitter: str
    folder: str = Field("", description="Id of the folder that its jobs are kept in.")
    sequences: dict[Owner, int] = {}
    time: float
    period: float
    version: str
    batch: str = Field("", description="Kind and version of the batch system.")
    runtime: str = Field("", description="Kind and version of the container runtime.")
    capacity: dict[str, str] = {}
    free: dict[str, str] = {}
    jobs: dict[str, int] = Field({}, description="Jobs by phase, of all owners.")
    labels: dict[str, str] = {}
    taints: list[str] = Field([], description="key=value:Effect")
    problem: str = Field("", description="Why no job can be taken now, e.g. that the batch system does not answer.")
    digest: str = Field("", description="Of the BuildConfig.")
    library: str = Field("", description="Digest of the bash library that this site puts into a cut script.")
    leaving: bool = False


class BuildConfigMessage(Message):
    """Published at start and on change; the reply to ``describe`` too."""

    v: Literal[1] = 1
    pool: PoolName
    digest: str
    config: dict[str, Any]


class Description(Message):
    """Reply to ``describe``: what a hub that has just started wants to know at once."""

    announce: Announce
    buildconfig: BuildConfigMessage


class Event(Message):
    """Published to a job's owner when it changes.

    Numbers rise by one for each submitter and owner; a gap makes the hub ask for a snapshot.
    """

    v: Literal[1] = 1
    pool: PoolName
    submitter: str
    folder: str = Field("", description="Id of the folder that the job is kept in.")
    sequence: int
    status: JobStatus
