"""Persistence of pools: their last announcements and the jobs that they hold, across restarts of the hub.

No decision depends on a store, and nothing waits for it. Data that this process has received from a site takes
precedence over data from a store. A record is a message of the protocol as JSON, with a version. It contains no
secrets: scripts are not stored, and only a valid BuildConfig is, which has none.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bridge.clock import Clock
from bridge.core.threads import Supervisor
from bridge.logs import kv
from bridge.pools.store.synchronizer import Key, KeyValueStore, StoreSynchronizer
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.model.identifiers import PoolName, Uid
from bridge.protocol.nats.envelope import GarbledError, explain, pack, parse
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Message
from bridge.script.buildconfig import BuildConfig
from bridge.telemetry.metrics import POOL_REMEMBERED

log = logging.getLogger(__name__)

AGAIN = 10.0
"""Seconds between two writes of an announcement if only its numbers have changed."""
MOST_JOBS = 50_000
"""Jobs of one pool, at most: a limit on the space that a faulty site can fill."""
_BEFORE = 0.001
WAIT = 3.0
"""Seconds for which the start waits for the store."""


POOLS, JOBS = "pools", "jobs"
MOST = 256 * 1024
"""Bytes of a record, at most."""
Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class PoolRecord(Message):
    """The last announcement of a pool, its time (seconds since 1970), and the announced BuildConfig."""

    v: Literal[1] = 1
    time: Moment
    announce: Announce
    buildconfig: BuildConfigMessage | None = None


class JobRecord(Message):
    """A job at a site. Jobs are only counted, so that the node of a silent pool stays while it has any."""

    v: Literal[1] = 1
    pool: PoolName
    job: Uid


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


@dataclass(slots=True)
class _MarkedValues:
    """The values of a pool that were last marked for a write.

    ``lasting_values``: those of the announcement. ``received_at``, ``marked_at`` and ``complete_at``: monotonic times
    of the announcement, of the mark, and of the snapshot.
    """

    lasting_values: tuple[object, ...] = ()
    received_at: float = float("-inf")
    marked_at: float = float("-inf")
    complete_at: float | None = None


class PoolPersistence:
    """Writes the state of ``pools`` to ``store``, and restores it at the start.

    ``leads``, ``name`` and ``reachable``: as for :class:`StoreSynchronizer`.
    """

    kinds = (POOLS, JOBS)

    def __init__(
        self,
        store: KeyValueStore,
        pools: NatsPools,
        clock: Clock,
        leads: Callable[[], bool],
        name: str,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pools, self._clock = pools, clock
        self._began = clock.monotonic()
        self._lock = threading.RLock()
        self._marked: dict[str, _MarkedValues] = {}
        self._jobs: dict[str, set[str]] = {}
        self._too_large: set[str] = set()
        self._synchronizer = StoreSynchronizer(store, self, clock, leads, name, reachable)
        pools.subscribe(self._changed)

    def start(self, supervisor: Supervisor, wait: float = WAIT) -> None:
        """Start the synchronization, and wait for the stored records for at most ``wait`` seconds."""
        self._synchronizer.start(supervisor)
        if not self._synchronizer.loaded.wait(wait):
            log.warning("the store has not answered in time: its records are restored later", extra=kv(seconds=wait))

    def compare_soon(self, *_: object) -> None:
        """Compare all records soon. Called when the connection to the store was lost or is restored."""
        self._synchronizer.compare_soon()

    def remembered(self, pool: str) -> int:
        """Return the number of known jobs at a pool, including restored ones."""
        return len(self._jobs.get(pool, ()))

    # --- changes of the pools, on any thread --------------------------------------------------------------------------
    def _changed(self, name: str, uid: str) -> None:
        with self._lock:
            pool = self._pools.pools().get(name)
            if pool is None:
                self._drop(name)
            elif not uid:
                self._mark_pool(pool)
            elif pool.complete_at() is not None:
                self._mark_job(name, uid, exists=pool.job(uid) is not None)

    def _mark_pool(self, pool: SubmitterPool) -> None:
        marked = self._marked.setdefault(pool.name, _MarkedValues())
        if (announced := pool.announced()) is not None:
            now, lasting_values = self._clock.monotonic(), (*_lasting_values(announced[0]), pool.buildconfig() is None)
            is_due = announced[1] != marked.received_at and now - marked.marked_at >= AGAIN
            if lasting_values != marked.lasting_values or is_due:
                marked.lasting_values, marked.received_at, marked.marked_at = lasting_values, announced[1], now
                self._synchronizer.mark(POOLS, pool.name)
        if (complete_at := pool.complete_at()) != marked.complete_at:
            marked.complete_at = complete_at
            jobs = pool.jobs()
            for uid in {*jobs, *self._jobs.get(pool.name, ())}:
                self._mark_job(pool.name, uid, exists=uid in jobs)
        if complete_at is not None:
            POOL_REMEMBERED.labels(pool.name).set(0)

    def _mark_job(self, name: str, uid: str, *, exists: bool) -> None:
        jobs = self._jobs.setdefault(name, set())
        if exists == (uid in jobs) or (exists and len(jobs) >= MOST_JOBS):
            return
        (jobs.add if exists else jobs.discard)(uid)
        self._synchronizer.mark(JOBS, job_key(name, uid))

    def _drop(self, name: str) -> None:
        """Delete the records of a pool that was removed."""
        if self._marked.pop(name, None) is not None:
            self._synchronizer.mark(POOLS, name)
            log.info("the records of a pool are deleted", extra=kv(pool=name, jobs=self.remembered(name)))
        for uid in self._jobs.pop(name, ()):
            self._synchronizer.mark(JOBS, job_key(name, uid))
        POOL_REMEMBERED.remove_by_labels({"pool": name})

    # --- called by the synchronizer, on its thread --------------------------------------------------------------------
    def all_keys(self) -> Collection[Key]:
        """Return the keys of all records."""
        with self._lock:
            pools = [(POOLS, name) for name in self._marked]
            return [*pools, *((JOBS, job_key(name, uid)) for name, jobs in self._jobs.items() for uid in jobs)]

    def value(self, kind: str, key: str) -> bytes | None:
        """Return a record as JSON; ``None`` if it does not exist or is too large."""
        with self._lock:
            record = self._pool_record(key) if kind == POOLS else self._job_record(key)
        if record is None:
            return None
        try:
            return write(record)
        except GarbledError as error:
            if key not in self._too_large:
                self._too_large.add(key)
                log.warning("a record was not stored", extra=kv(kind=kind, key=key, error=error))
            return None

    def merge(self, stored: Mapping[str, Mapping[str, bytes]], changed: Collection[Key]) -> None:
        """Restore the records for which this process has received nothing newer."""
        unusable: dict[str, str] = {}
        for name, data in stored[POOLS].items():
            try:
                record = read_pool(name, data)
                if (POOLS, name) not in changed or name in self._pools.pools():  # otherwise it was removed
                    self._recall(record)
            except GarbledError as error:
                unusable[f"{POOLS}/{name}"] = str(error)
        for key, data in stored[JOBS].items():
            try:
                job = read_job(key, data)
            except GarbledError as error:
                unusable[f"{JOBS}/{key}"] = str(error)
            else:
                if (JOBS, key) not in changed:
                    self._recall_job(job)
        with self._lock:
            for name, jobs in self._jobs.items():
                if (pool := self._pools.pools().get(name)) is not None and pool.complete_at() is None:
                    POOL_REMEMBERED.labels(name).set(len(jobs))
        if unusable:
            first_problem = next(iter(unusable.items()))
            extra = kv(records=len(unusable), key=first_problem[0][:100], error=first_problem[1][:200])
            log.warning("invalid records in the store are ignored", extra=extra)

    def _recall(self, record: PoolRecord) -> None:
        name, now = record.announce.pool, self._clock.monotonic()
        # before the start of this process, even if the clocks of the hubs differ: it has not received it itself
        received_at = min(self._began - _BEFORE, now - (self._clock.time() - record.time))
        with self._lock:
            pool = self._pools.pools().get(name)
            if pool is None or pool.announced() is None:
                lacks_config = record.buildconfig is None
                self._marked[name] = _MarkedValues((*_lasting_values(record.announce), lacks_config), received_at, now)
        self._pools.recall(record.announce, received_at, record.buildconfig)

    def _recall_job(self, record: JobRecord) -> None:
        with self._lock:
            pool = self._pools.pools().get(record.pool)
            if pool is None or pool.complete_at() is not None:
                return  # the pool does not exist, or its snapshot decides
            jobs = self._jobs.setdefault(record.pool, set())
            if len(jobs) < MOST_JOBS:
                jobs.add(record.job)

    def _pool_record(self, name: str) -> PoolRecord | None:
        pool = self._pools.pools().get(name)
        announced = pool.announced() if pool is not None else None
        if pool is None or announced is None:
            return None
        announce, received_at = announced
        config, message = pool.buildconfig(), None
        if config is not None:
            message = BuildConfigMessage(pool=name, digest=announce.digest, config=config.dump())
        time = self._clock.time() - (self._clock.monotonic() - received_at)
        return PoolRecord(time=max(0.0, round(time, 1)), announce=announce, buildconfig=message)

    def _job_record(self, key: str) -> JobRecord | None:
        name, _, uid = key.partition("/")
        return JobRecord(pool=name, job=uid) if uid in self._jobs.get(name, ()) else None


def _lasting_values(announce: Announce) -> tuple[object, ...]:
    """Return the values of an announcement whose change is written at once: all except those that change often."""
    return tuple(value for name, value in announce if name not in ("sequences", "time", "free", "jobs", "submitter"))
