"""The messages of the protocol, version 1: JSON, validated by the receiver.

Unknown keys are ignored, so that a newer peer can add keys.

Every request is a :class:`Request` and every reply a :class:`Reply`. The other models are the bodies of requests and
replies, and messages without a reply. Times are seconds since 1970 (float), sizes are bytes, ``job`` is the pod's UID.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints

from bridge.protocol.model.announcement import Announcement
from bridge.protocol.model.identifiers import Owner, PoolName, Ticket, Uid, Value
from bridge.protocol.model.jobs import MOST_USAGES, JobStatus, JobUsage
from bridge.protocol.model.requests import JobParameters, LogOptions, VolumeFile
from bridge.protocol.model.sessions import CommandOptions

VERSION = 1
UNKNOWN_LIBRARY = "UnknownLibrary"
"""Reason of a site that has no library with the digest of a :class:`ScriptWithoutLibrary`."""
WRONG_FOLDER = "WrongFolder"
"""Reason of a submitter with another folder than the request names. It has not carried out the request."""
MOST_LISTED = 5000
"""Jobs in a page of a snapshot."""
Submitter = Annotated[str, StringConstraints(max_length=128)]
Sequence = Annotated[int, Field(lt=2**63)]
"""Number of an event. The hub keeps it, and the submitter, for each job."""
StreamId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{8,64}$")]


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @classmethod
    def of(cls, value: Value, **others: object) -> Self:
        """Return the message with the fields of a value, and with others."""
        return cls(**{**dict(value), **others})


class Empty(Message):
    """The body of a request or of a reply without content."""


EMPTY = Empty()


class Request(Message):
    """The envelope of every request. The site refuses it after ``deadline``.

    ``owner``: the cluster that sends the request; it reaches only the jobs of this cluster. ``folder``: id of the
    site's folder that the request concerns; a submitter with another folder refuses it. Empty: any folder.
    """

    v: Literal[1] = 1
    pool: PoolName
    owner: Owner
    folder: str = ""
    job: Uid | Literal[""] = ""
    deadline: float
    body: dict[str, Any] = {}


class Problem(Message):
    """The error of a request that was not carried out."""

    reason: str
    message: str
    retryable: bool = False
    hint: str = ""


class Reply(Message):
    """The envelope of every reply: it has either ``body`` or ``error``.

    ``folder``: id of the folder that the submitter has read the answer from.
    """

    v: Literal[1] = 1
    folder: str = ""
    body: dict[str, Any] = {}
    error: Problem | None = None


class ScriptWithoutLibrary(Message):
    """A script without its bash library. The site inserts the library of this digest (SHA-256) in the middle."""

    before: str
    library: str
    after: str


class SubmitMessage(JobParameters, Message):
    """Body of ``submit``."""

    script: str | ScriptWithoutLibrary


class CancelMessage(Message):
    """Body of ``cancel``. ``forget``: also delete the job's folder, once the job has ended.

    ``withdrawn``: the pod has no place at the pool now, but may get one again. The site ends only a job that waits for
    its grant, and accepts every later submission of the pod.
    """

    grace: float = Field(30, ge=0)
    forget: bool = False
    withdrawn: bool = False


class Grant(Message):
    """Body of ``grant``: the script with this ticket may begin. The hub has bound the pod to the pool before."""

    ticket: Ticket


class Status(Message):
    """Reply to ``status``, ``cancel`` and ``grant``; ``None``: the site does not know the job."""

    status: JobStatus | None = None


class SubmittedMessage(Status):
    """Reply to ``submit``. ``existed``: the site had the job already."""

    status: JobStatus
    existed: bool = False


class Snapshot(Message):
    """Body of ``snapshot``: requests the next ``limit`` jobs of the owner after UID ``after``, sorted by UID."""

    after: str = ""
    limit: int = Field(500, ge=1, le=MOST_LISTED)


class UnreadableJob(Message):
    """A job whose state is invalid. It must not make the page invalid, which would hide all other jobs."""

    job: Uid


class SnapshotPage(Message):
    """Reply to ``snapshot``. ``more``: further jobs follow. ``submitter`` and ``sequence``: as in :class:`Event`.

    A job without a valid UID makes the page invalid, because the page would show that job as gone.
    """

    submitter: Submitter
    sequence: Sequence
    jobs: Annotated[
        tuple[Annotated[JobStatus | UnreadableJob, Field(union_mode="left_to_right")], ...],
        FailFast(),
        Field(max_length=MOST_LISTED),
    ]
    more: bool = False


class UsageRequest(Message):
    """Body of ``usage``: the jobs to measure."""

    jobs: list[Uid] = Field(max_length=MOST_USAGES)


class UsageAnswer(Message):
    """Reply to ``usage``. Jobs of which nothing is known are left out."""

    jobs: Annotated[tuple[JobUsage, ...], FailFast(), Field(max_length=MOST_USAGES)]


class Logs(LogOptions, Message):
    """Body of ``logs``. Both ends of the stream publish chunks: see :mod:`bridge.protocol.nats.two_way`."""

    stream: StreamId


class Exec(CommandOptions, Message):
    """Body of ``exec``. Chunks as for ``logs``."""

    stream: StreamId


class Connect(Message):
    """Body of ``connect``: a port of the pod, on its own address 127.0.0.1 or ::1. Chunks as for ``logs``."""

    port: int = Field(ge=1, le=65535)
    stream: StreamId


class Reach(Message):
    """Body of ``reach``: a pod's connections to Services (:mod:`bridge.relay`). Chunks as for ``logs``."""

    stream: StreamId


class StreamHead(Message):
    """Head of a chunk of a two-way stream: one line of JSON, followed by the data. Number 0: there is no data.

    ``seen``, ``taken``: the last chunk of the other direction that has arrived, and that its consumer has taken.
    ``end``: nothing follows on the channel. ``error``: why the site ends the stream. ``stop``: the sender has ended
    the stream.
    """

    number: int = 0
    seen: int = 0
    taken: int = 0
    channel: int = 0
    end: bool = False
    error: str = ""
    stop: bool = False


class File(Message):
    """New content for a file of a volume: ``path`` is relative to the job's folder ``volumes``, ``data`` is base64."""

    path: str
    data: str
    mode: int = 0o600

    @classmethod
    def encoded(cls, file: VolumeFile) -> File:
        """Return the message for a file."""
        return cls(path=file.path, data=base64.b64encode(file.data).decode(), mode=file.mode)


class Files(Message):
    """Body of ``files``: new content for files of a pending or running job.

    ``volumes``: the paths of all files in a volume; the site removes other ones. Older submitters ignore it.
    """

    files: list[File]
    volumes: dict[str, list[str]] = {}


class Announce(Announcement, Message):
    """An announcement on the wire.

    ``sequences`` has the number of the last event of each owner; for an owner that is not in it, no event was sent.
    """

    v: Literal[1] = 1
    sequences: dict[Owner, int] = {}
    digest: str = Field("", description="Of the BuildConfig.")
    library: str = Field("", description="Digest of the bash library that the site inserts into scripts without one.")


class BuildConfigMessage(Message):
    """A BuildConfig, published at start and on change, and part of the reply to ``describe``."""

    v: Literal[1] = 1
    pool: PoolName
    digest: str
    config: dict[str, Any]


class Description(Message):
    """Reply to ``describe``, which a hub sends at its start."""

    announce: Announce
    buildconfig: BuildConfigMessage


class Event(Message):
    """Published to the owner of a job when the job changes.

    ``sequence`` increases by one for each submitter and owner. After a gap the hub requests a snapshot.
    """

    v: Literal[1] = 1
    pool: PoolName
    submitter: Submitter
    folder: str = Field("", description="Id of the folder that holds the job.")
    sequence: Sequence
    status: JobStatus


Published = Announce | BuildConfigMessage | Event
"""What a site publishes. A row of :meth:`~bridge.protocol.nats.subjects.Subjects.published` has its subject."""
