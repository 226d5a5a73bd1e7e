"""The records of pools in a store: messages of the protocol as JSON, with a version and the time. Pure.

A record contains no secrets: scripts are not stored, and only a valid BuildConfig is, which has none.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bridge.protocol.model.identifiers import PoolName, Uid
from bridge.protocol.nats.envelope import GarbledError, explain, pack, parse
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Message
from bridge.script.buildconfig import BuildConfig

POOLS, JOBS = "pools", "jobs"
MOST = 256 * 1024
"""Bytes of a record, at most."""
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
LONGEST = 1024
"""Characters of a string, at most: strings come from the site."""
Words = Annotated[str, Field(max_length=LONGEST)]


class PoolRecord(Message):
    """The last announcement of a pool, its time (seconds since 1970), and the announced BuildConfig."""

    v: Literal[1] = 1
    time: Moment
    announce: Announce
    buildconfig: BuildConfigMessage | None = None


class JobRecord(Message):
    """A job at a site. ``time``: when a hub first saw it there, in seconds since 1970."""

    v: Literal[1] = 1
    pool: PoolName
    job: Uid
    namespace: Words
    name: Words
    job_id: Words = ""
    time: Moment


def job_key(pool: str, job: str) -> str:
    """Return the key of a job. It includes the pool: a site that reports foreign jobs changes only its own records."""
    return f"{pool}/{job}"


def write(record: PoolRecord | JobRecord) -> bytes:
    """Return a record as JSON; raise GarbledError if it is too large or has no JSON form."""
    return _bounded(pack(record))


def read_pool(key: str, data: bytes) -> PoolRecord:
    """Parse the record stored under a pool's name; raise GarbledError unless it is a record of this pool."""
    record = parse(PoolRecord, _bounded(data))
    if record.announce.pool != key:
        raise GarbledError(f"a record of pool {record.announce.pool}")
    if (message := record.buildconfig) is not None:
        if message.pool != key or message.digest != record.announce.digest:
            raise GarbledError("its BuildConfig has another pool or another digest")
        try:
            BuildConfig.model_validate(message.config)
        except ValidationError as error:
            raise GarbledError(f"BuildConfig: {explain(error)}") from None
    return record


def read_job(key: str, data: bytes) -> JobRecord:
    """Parse the record stored under a job's key; raise GarbledError unless it is a record of this job."""
    record = parse(JobRecord, _bounded(data))
    if job_key(record.pool, record.job) != key:
        raise GarbledError(f"a record of job {record.job} of pool {record.pool}")
    return record


def _bounded(data: bytes) -> bytes:
    if len(data) > MOST:
        raise GarbledError(f"{len(data)} bytes; the limit is {MOST}")
    return data
