"""All jobs of a directory in memory, in order. Each change is published. All of it can be read again from disk."""

from __future__ import annotations

import bisect
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.core.isolation import isolated
from bridge.core.job_lifecycle import NEVER, NEW, Event, Lifecycle
from bridge.logs import kv
from bridge.protocol.model.jobs import JobStatus
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.jobs import job_status, member_record
from bridge.site.jobs.job_actions import KILL_ALLOWANCE
from bridge.site.jobs.job_record import Cancellation, JobRecord
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

FIRST_STATE = 10.0
"""Seconds for which the first state of a script that has begun is awaited. Scripts write it 1 to 5 seconds after their
begin, later the more pods of a group share the machine (see ``BEGIN_TIME``)."""


@dataclass(slots=True)
class Entry:
    """One job in memory."""

    record: JobRecord
    status: JobStatus
    lifecycle: Lifecycle
    """Of its batch job in the lists that this process requests; shown when this process has read its id. Monotonic."""
    killed_at: float | None = None
    """Monotonic time at which this process last cancelled its batch job."""
    read_at: float = 0.0
    without_secrets: bool = False
    """Whether the secrets of the job, which has ended, were removed."""
    timed_cancellation: Cancellation | None = None
    """The cancellation request from which ``kill_at`` was computed."""
    kill_at: float = float("inf")
    """Monotonic time at which podbridge cancels the batch job."""

    def is_replaced_by(self, record: JobRecord) -> bool:
        """Return whether a record is of a later submission: its directory has taken the place of an unused job's."""
        before, after = self.record.meta, record.meta
        return (before.submitted_at, before.run, before.replaced) != (after.submitted_at, after.run, after.replaced)

    def start_grace_period(self, now: float) -> None:
        """Start the grace period of a new cancellation request; ``now`` is monotonic."""
        cancel = self.record.cancel
        if cancel is not None and cancel != self.timed_cancellation:
            self.timed_cancellation, self.kill_at = cancel, min(self.kill_at, now + cancel.grace + KILL_ALLOWANCE)


class JobIndex:
    """The jobs that the leader knows.

    ``publish`` gets each changed status with its number; ``lag``: see :func:`bridge.site.jobs.job_status.status`.
    """

    def __init__(self, folder: Folder, lag: float, clock: Clock, publish: Callable[[int, JobStatus], None]) -> None:
        self.sequences: dict[str, int] = {}
        """Number of the last event of each owner: a hub receives only its own."""
        self.entries: dict[str, Entry] = {}
        self.open: set[str] = set()
        """Jobs that may change without a notification: not ended, not confirmed, or to be removed."""
        self.pending: set[str] = set()
        """Jobs that ended in the batch system less than ``lag`` seconds ago."""
        self.pending_cancellations: set[str] = set()
        """Cancelled jobs that have changed since their actions were run."""
        self.awaiting_array: set[str] = set()
        """Pods that the leader has yet to submit in an array."""
        self.unreported: dict[str, float] = {}
        """Jobs whose script has begun and written no state yet: they are running from this monotonic time on."""
        self.gangs: dict[str, set[str]] = {}
        """Jobs of groups, with the pods of each."""
        self.lock = threading.RLock()
        self._order: dict[str, list[str]] = {}
        self._folder, self._lag, self._clock, self._publish = folder, lag, clock, publish

    def load(self) -> list[str]:
        """Read all jobs again without publishing; return the directories that contain no job."""
        now = self._clock.time()
        empty: list[str] = []
        with self.lock:
            self.entries.clear()
            self.awaiting_array.clear()
            self.unreported.clear()
            self._order.clear()
            self.gangs.clear()
            for uid in self._folder.uids():
                with isolated("site", uid):
                    record = self._folder.job(uid).read()
                    if record is None:
                        empty.append(uid)
                        continue
                    status = job_status.status(record, now, self._lag)
                    # these ids are older than each list that this process requests
                    entry = self.entries[uid] = Entry(record, status, NEW.shown(Event.QUEUED, NEVER), read_at=now)
                    entry.start_grace_period(self._clock.monotonic())
                    self._order.setdefault(record.meta.owner, []).append(uid)
                    self._classify(uid)
                    self._add_to_gang(record)
        return empty

    def page(self, owner: str, after: str, limit: int) -> tuple[int, list[JobStatus], bool]:
        """Return the number of an owner's last event, its jobs after a UID in order, and whether there are more."""
        with self.lock:
            order = self._order.get(owner, [])
            first = bisect.bisect_right(order, after) if after else 0
            uids = order[first : first + limit]
            jobs = [self.entries[uid].status for uid in uids]
            return self.sequences.get(owner, 0), jobs, first + limit < len(order)

    def counts(self) -> dict[str, int]:
        """Count pods by phase."""
        with self.lock:
            return dict(Counter(e.status.phase for e in self.entries.values() if e.record.meta.gang is None))

    def refresh(self, uid: str, new_record: JobRecord | None = None) -> Entry | None:
        """Read one job's directory and publish its status if it changed; keep the old record if it can't be read now.

        ``new_record`` is the record of a job that this process just submitted: it saves the first read.
        """
        with self.lock:
            record = new_record
            # a cancellation since the submission may have changed or removed the directory: then read it
            if record is None or uid in self.entries or self._folder.is_forgotten(uid, record.meta.owner):
                record = self._folder.job(uid).read()
            entry = self.entries.get(uid)
            if record is None and entry and not self._has_no_job(uid, entry):
                record = entry.record
            if record is not None:
                return self.store(uid, record)
            if (entry := self.entries.pop(uid, None)) is not None:
                self._drop_from(entry.record.meta.owner, uid)
                self.open.discard(uid)
                self.pending.discard(uid)
                self.awaiting_array.discard(uid)
                self.unreported.pop(uid, None)
                self.pending_cancellations.discard(uid)
                self._drop_from_gang(entry.record)
            return None

    def _has_no_job(self, uid: str, entry: Entry) -> bool:
        return self._folder.job(uid).unfinished() or self._folder.is_forgotten(uid, entry.record.meta.owner)

    def _drop_from(self, owner: str, uid: str) -> None:
        order = self._order[owner]
        del order[bisect.bisect_left(order, uid)]
        if not order:
            del self._order[owner]

    def store(self, uid: str, record: JobRecord) -> Entry:
        """Store the record of a job, and publish its status if it changed."""
        now = self._clock.time()
        record = self._with_end(record, now)
        status = job_status.status(record, now, self._lag)
        entry, owner, monotonic = self.entries.get(uid), record.meta.owner, self._clock.monotonic()
        lifecycle = NEW.shown(Event.QUEUED, monotonic)
        if entry is not None and self._awaits_first_state(entry, record, status):
            status = entry.status
        is_new = changed = entry is None
        is_changed_gang = record.meta.gang is not None and (
            entry is None or member_record.shared(record) != member_record.shared(entry.record)
        )
        if entry is None:
            self._add_to_gang(record)
            entry = self.entries[uid] = Entry(record, status, lifecycle)
            bisect.insort(self._order.setdefault(owner, []), uid)
        else:
            changed = status != entry.status
            if owner != entry.record.meta.owner:
                self._drop_from(entry.record.meta.owner, uid)
                bisect.insort(self._order.setdefault(owner, []), uid)
            if record.job_id != entry.record.job_id:
                entry.lifecycle = lifecycle
            if record.meta.place != entry.record.meta.place:  # an unused job was replaced
                self._drop_from_gang(entry.record)
                self._add_to_gang(record)
            if entry.is_replaced_by(record):  # what was done to the unused job was not done to this one
                entry = self.entries[uid] = Entry(record, status, lifecycle)
            entry.record, entry.status = record, status
        entry.read_at = now
        entry.start_grace_period(monotonic)
        self._classify(uid)
        # the answer to the submission reports the same, and the complete group is the next event
        is_gathered = is_new and status.reason == member_record.GANG_INCOMPLETE
        if changed and owner and not is_gathered:  # no cluster hears of a job without an owner
            number = self.sequences[owner] = self.sequences.get(owner, 0) + 1
            self._publish(number, status)
        if is_changed_gang:  # the status of its pods follows from it
            self.refresh_members(uid)
        return entry

    def due(self) -> list[str]:
        """Return the jobs that are running although their script has written no state."""
        now = self._clock.monotonic()
        return [uid for uid, at in tuple(self.unreported.items()) if at <= now]

    def _awaits_first_state(self, entry: Entry, record: JobRecord, status: JobStatus) -> bool:
        """Return whether the only news of a job is that its script has begun: its first state follows at once."""
        has_state = record.pod is not None or record.containers
        is_news = status.phase != "running" or status.missing or has_state
        if is_news or entry.status.phase != "queued" or record.meta.adopted or record.cancel is not None:
            self.unreported.pop(record.uid, None)
            return False
        now = self._clock.monotonic()
        return now < self.unreported.setdefault(record.uid, now + FIRST_STATE)

    def _with_end(self, record: JobRecord, now: float) -> JobRecord:
        """Store since when the script of a pod in the job of its group has ended.

        And an end after ``now`` as one of now: the clock of the machine was set back, or is another machine's.
        """
        is_timed = 0 < record.batch_at <= now or (not record.batch_at and record.meta.place is None)
        if record.batch is None or not record.end_confirmed or is_timed:
            return record
        try:
            self._folder.job(record.uid).write_batch(record.batch, now, record.meta.run)
        except OSError as error:  # the next read of the directory repeats it
            log.warning("the end of a pod is not stored yet", extra=kv(job=record.uid, why=error.strerror))
        return replace(record, batch_at=now)

    def refresh_members(self, gang: str) -> None:
        """Read the directories of a group's pods again."""
        for member in tuple(self.gangs.get(gang, ())):
            with isolated("site", member):
                self.refresh(member)

    def _add_to_gang(self, record: JobRecord) -> None:
        if record.meta.gang is not None:
            self.gangs.setdefault(record.uid, set())
        if record.meta.place is not None:
            self.gangs.setdefault(record.meta.place.gang, set()).add(record.uid)

    def _drop_from_gang(self, record: JobRecord) -> None:
        gang = record.uid if record.meta.place is None else record.meta.place.gang
        members = self.gangs.get(gang, set())
        members.discard(record.uid)
        if not members and gang not in self.entries:
            self.gangs.pop(gang, None)

    def observe(self, uid: str, job: BatchJob) -> None:
        """Store what the batch system reports of a job, if it is new."""
        with self.lock:
            entry = self.entries.get(uid)
            if entry is None or entry.record.batch == job:
                return
            last_seen = entry.record.batch
            is_same_phase = last_seen is not None and last_seen.phase == job.phase
            batch_at = entry.record.batch_at if is_same_phase else self._clock.time()
            is_reported_by_script = job.phase == "running" and entry.record.started and not entry.record.end_confirmed
            is_reported_by_script = is_reported_by_script and not is_missing(entry.record)
            if not is_reported_by_script:  # else the script's own record says more, and is on disk
                try:
                    self._folder.job(uid).write_batch(job, batch_at, entry.record.meta.run)
                except FileNotFoundError:
                    pass
                except OSError as error:  # the next list of the batch system's jobs repeats it
                    log.warning("the status of a job is not stored yet", extra=kv(job=uid, why=error.strerror))
                    return
            # the last record of the script may be unread, or can't be read now
            current = self.refresh(uid) if job.phase == "ended" else entry
            if current is not None and current.record.batch != job and job.id not in current.record.meta.replaced:
                self.store(uid, replace(current.record, batch=job, batch_at=batch_at))

    def _classify(self, uid: str) -> None:
        entry = self.entries[uid]
        is_confirmed = entry.record.end_confirmed
        has_ended = entry.status.phase == "ended"
        (self.pending.add if is_confirmed and not has_ended else self.pending.discard)(uid)
        is_to_be_forgotten = entry.record.cancel is not None and entry.record.cancel.forget
        if entry.record.cancel is not None:
            self.pending_cancellations.add(uid)
        (self.awaiting_array.add if entry.record.awaits_array else self.awaiting_array.discard)(uid)
        (self.open.discard if has_ended and is_confirmed and not is_to_be_forgotten else self.open.add)(uid)


def is_missing(record: JobRecord) -> bool:
    """Return whether the job has started and the batch system no longer knows it."""
    return record.batch is not None and record.batch.phase == "missing"
