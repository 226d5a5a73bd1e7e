"""The last known state of the jobs at a site, from numbered events and from snapshots. No I/O; not thread-safe.

An event replaces the state of its job if its number is higher than the number of that state. The number of a page of a
snapshot is that of the last event that the page includes. Numbers of two submitters cannot be compared. Between two
submitters, the later message wins, except that the state ``ended`` is final. An ``unused`` job is not: the hub may
submit it again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import Event

GRACE = 10.0
"""Seconds for which a job stays in the view although a snapshot lacks it: another submitter may have just taken it."""
MOST_JOBS = 200_000
MOST_BYTES = 2**28
"""Jobs of one pool, and :func:`size` of all of them, at most: limits on the memory that a faulty site can fill."""
_MOST_SUBMITTERS = 32


@dataclass(slots=True)
class Stamp:
    """The origin of a job's state. ``at``: monotonic time at which the page was requested or the event arrived."""

    submitter: str
    sequence: int
    at: float


@dataclass(frozen=True, slots=True)
class Part:
    """A page of a snapshot, requested at ``at`` (monotonic). ``unreadable``: jobs whose state is invalid."""

    submitter: str
    sequence: int
    jobs: list[JobStatus]
    unreadable: set[str]
    at: float


def size(status: JobStatus) -> int:
    """Return the memory of the texts of a job in bytes."""
    texts = [status.job, status.owner, status.namespace, status.name, status.job_id, status.gang]
    texts += status.reason, status.message, status.host, status.ip
    for state in (*status.init_containers, *status.containers):
        texts += state.name, state.reason, state.message
        for part in (state.ended, state.last, *state.occurrences):
            if part is not None:
                texts += part.reason, part.message
    return sum(map(sys.getsizeof, texts))


class JobView:
    """The jobs of one pool by UID. ``missing`` has the UIDs of those that the batch system no longer lists."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.missing: set[str] = set()
        self.complete_at: float | None = None
        self._bytes = 0
        self._stamps: dict[str, Stamp] = {}
        self._deleted_at: dict[str, float] = {}
        self._last_sequences: dict[str, int] = {}

    def event(self, event: Event, now: float) -> tuple[bool, bool]:
        """Apply an event; return whether the job has changed, and whether earlier events are missing."""
        last_sequence = self._last_sequences.get(event.submitter)
        self._record_sequence(event.submitter, max(event.sequence, last_sequence or 0))
        stamp = self._stamps.get(event.status.job)
        is_repeated = stamp is not None and (stamp.submitter, stamp.sequence) == (event.submitter, event.sequence)
        changed = not is_repeated and self._apply(event.status, Stamp(event.submitter, event.sequence, now))
        return changed, last_sequence is None or event.sequence > last_sequence + 1

    def announced(self, submitter: str, sequence: int) -> bool:
        """Apply the number of a submitter's last event; return whether it differs from the last number seen."""
        last_sequence = self._last_sequences.get(submitter)
        self._record_sequence(submitter, sequence)
        if last_sequence is not None and sequence < last_sequence:
            for stamp in self._stamps.values():
                if stamp.submitter == submitter:
                    # it counts anew: the known states must not look newer than its next events
                    stamp.sequence = -1
        return last_sequence != sequence

    def submitted(self, status: JobStatus, now: float) -> bool:
        """Apply the answer to a submit request unless an event has arrived before; return whether the job is new."""
        self._deleted_at.pop(status.job, None)
        current_status = self.jobs.get(status.job)
        if current_status is not None and (status.unused or not current_status.unused):
            return False
        self._store(status, Stamp("", 0, now), self._growth(status))
        return True

    def gone(self, job: str, requested_at: float, now: float) -> bool:
        """Apply an answer that the site does not know a job; return whether the view had it.

        ``requested_at``: monotonic time at which the request was sent.
        """
        stamp = self._stamps.get(job)
        # an event has arrived since the request: it may be newer than this answer
        if stamp is not None and stamp.at > requested_at:
            return False
        self._deleted_at[job] = now
        return self._drop(job)

    def snapshot(self, parts: Iterable[Part], began: float) -> set[str]:
        """Apply a complete snapshot, begun at ``began`` (monotonic); return the jobs that have changed or are gone."""
        parts = list(parts)
        changed: set[str] = set()
        listed_jobs: set[str] = set()
        for part in parts:
            listed_jobs.update(part.unreadable)
            for status in part.jobs:
                listed_jobs.add(status.job)
                if self._deleted_at.get(status.job, -1.0) >= part.at:
                    continue  # deleted after the page was requested
                if self._apply(status, Stamp(part.submitter, part.sequence, part.at)):
                    changed.add(status.job)
        for job in [job for job in self.jobs if job not in listed_jobs]:
            if self._stamps[job].at < began - GRACE:
                self._drop(job)
                changed.add(job)
        # a job that was submitted after the first page may be missing in it; its event follows
        for submitter in {part.submitter for part in parts}:
            first_sequence = min(part.sequence for part in parts if part.submitter == submitter)
            self._record_sequence(submitter, max(first_sequence, self._last_sequences.get(submitter, 0)))
        self._deleted_at = {job: at for job, at in self._deleted_at.items() if at >= began - GRACE}
        self.complete_at = began
        return changed

    def _apply(self, status: JobStatus, stamp: Stamp) -> bool:
        """Apply a state unless a newer one is known; return whether the job has changed."""
        known_stamp, old_status = self._stamps.get(status.job), self.jobs.get(status.job)
        if old_status is None and len(self.jobs) >= MOST_JOBS:
            return False
        if known_stamp is not None and old_status is not None:
            if known_stamp.submitter == stamp.submitter:
                if stamp.sequence < known_stamp.sequence:
                    return False
            elif status.phase != "ended" and (
                (old_status.phase == "ended" and not old_status.unused) or known_stamp.at > stamp.at
            ):
                return False
        changed = old_status != status
        growth = self._growth(status) if changed else 0
        if growth > 0 and self._bytes + growth > MOST_BYTES:
            return False
        # an equal state stays the same object: a decision about it need not be repeated (Entry.is_settled)
        self._store(status if changed or old_status is None else old_status, stamp, growth)
        return changed

    def _growth(self, status: JobStatus) -> int:
        """Return by how much the size of the view grows with this state."""
        old_status = self.jobs.get(status.job)
        return size(status) - (0 if old_status is None else size(old_status))

    def _store(self, status: JobStatus, stamp: Stamp, growth: int) -> None:
        self._bytes += growth
        self.jobs[status.job], self._stamps[status.job] = status, stamp
        (self.missing.add if status.missing else self.missing.discard)(status.job)

    def _drop(self, job: str) -> bool:
        """Remove a job; return whether it was known."""
        self._stamps.pop(job, None)
        self.missing.discard(job)
        status = self.jobs.pop(job, None)
        self._bytes -= 0 if status is None else size(status)
        return status is not None

    def _record_sequence(self, submitter: str, sequence: int) -> None:
        self._last_sequences.pop(submitter, None)
        self._last_sequences[submitter] = sequence
        while len(self._last_sequences) > _MOST_SUBMITTERS:
            del self._last_sequences[next(iter(self._last_sequences))]
