"""Messages of the protocol, version 1: JSON, checked at both ends.

Unknown keys are ignored, so that a newer peer can say more.

Every request is a :class:`Request` and every reply a :class:`Reply`; the other models are their bodies and what is
published. Times are seconds since 1970 (float), sizes bytes, ``job`` is the pod's UID.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bridge.poolapi.announcement import Announcement
from bridge.poolapi.identifiers import Owner, PoolName, Uid
from bridge.poolapi.jobs import JobStatus
from bridge.poolapi.requests import JobParameters, JobSubmission, LogOptions, VolumeFile

VERSION = 1
UNKNOWN_LIBRARY = "UnknownLibrary"
"""Reason of a site that has no library with the digest of a :class:`ScriptWithoutLibrary`."""
WRONG_FOLDER = "WrongFolder"
"""Reason of a submitter with another folder than the request names. It has not carried out the request."""


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


class Submit(JobParameters, Message):
    """Body of ``submit``."""

    script: str | ScriptWithoutLibrary

    @classmethod
    def of(cls, submission: JobSubmission, script: str | ScriptWithoutLibrary) -> Submit:
        """Return the message for a submission, with this form of its script."""
        return cls(**{**dict(submission), "script": script})


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


class Logs(LogOptions, Message):
    """Body of ``logs``. The site publishes the chunks on ``<p>.<pool>.stream.<owner>.<stream>``."""

    stream: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]{8,64}$")]

    @classmethod
    def of(cls, options: LogOptions, stream: str) -> Logs:
        """Return the message for these options."""
        return cls(**{**dict(options), "stream": stream})


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
    """New content for a file of a volume: ``path`` is relative to the job's folder ``volumes``, ``data`` is base64."""

    path: str
    data: str
    mode: int = 0o600

    @classmethod
    def of(cls, file: VolumeFile) -> File:
        """Return the message for a file."""
        return cls(path=file.path, data=base64.b64encode(file.data).decode(), mode=file.mode)


class Files(Message):
    """Body of ``files``: refreshed files of a job that waits or runs (service account tokens)."""

    files: list[File]


class Announce(Announcement, Message):
    """An announcement on the wire.

    ``sequences`` has the number of the last event of each owner; for an owner that is not in it, no event was sent.
    """

    v: Literal[1] = 1
    sequences: dict[Owner, int] = {}
    digest: str = Field("", description="Of the BuildConfig.")
    library: str = Field("", description="Digest of the bash library that the site inserts into scripts without one.")


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
