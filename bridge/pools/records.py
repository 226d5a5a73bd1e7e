"""What is kept of pools in a store: the wire's own messages as JSON, with a version and the time. Pure.

No secret is in a record: a BuildConfig has none (and what is no BuildConfig is not kept), scripts are not kept.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bridge.poolapi.identifiers import PoolName, Uid
from bridge.script.buildconfig import BuildConfig
from bridge.wire.envelope import GarbledError, explain, pack, parse
from bridge.wire.messages import Announce, BuildConfigMessage, Message

POOLS, JOBS = "pools", "jobs"
MOST = 256 * 1024
"""Bytes of a record."""
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
LONGEST = 1024
"""Characters of a word: a site may say anything."""
Words = Annotated[str, Field(max_length=LONGEST)]


class PoolRecord(Message):
    """A pool's last announcement, when it came (seconds since 1970), and the BuildConfig that it names."""

    v: Literal[1] = 1
    time: Moment
    announce: Announce
    buildconfig: BuildConfigMessage | None = None


class JobRecord(Message):
    """A job that a site holds. ``time``: when this hub first saw it there."""

    v: Literal[1] = 1
    pool: PoolName
    job: Uid
    namespace: Words
    name: Words
    job_id: Words = ""
    time: Moment


def job_key(pool: str, job: str) -> str:
    """Give the key of a job: a site that makes up others' jobs spoils only its own."""
    return f"{pool}/{job}"


def write(record: PoolRecord | JobRecord) -> bytes:
    """Write a record; raises GarbledError when it is too large, or can't be written."""
    return _bounded(pack(record))


def read_pool(key: str, data: bytes) -> PoolRecord:
    """Read what was kept under a pool's name; raises GarbledError unless it is a record of just that pool."""
    record = parse(PoolRecord, _bounded(data))
    if record.announce.pool != key:
        raise GarbledError(f"about pool {record.announce.pool}")
    if (message := record.buildconfig) is not None:
        if message.pool != key or message.digest != record.announce.digest:
            raise GarbledError("with a BuildConfig of another pool, or another one")
        try:
            BuildConfig.model_validate(message.config)
        except ValidationError as error:
            raise GarbledError(f"BuildConfig: {explain(error)}") from None
    return record


def read_job(key: str, data: bytes) -> JobRecord:
    """Read what was kept under a job's key; raises GarbledError unless it is a record of just that job."""
    record = parse(JobRecord, _bounded(data))
    if job_key(record.pool, record.job) != key:
        raise GarbledError(f"about job {record.job} of pool {record.pool}")
    return record


def _bounded(data: bytes) -> bytes:
    if len(data) > MOST:
        raise GarbledError(f"{len(data)} bytes, at most {MOST} are kept")
    return data
