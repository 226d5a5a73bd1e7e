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
    texts = [status.job_id, status.reason, status.message, status.host, status.ip]
    for state in (*status.init_containers, *status.containers):
        texts += state.name, state.reason, state.message
        for run in (state.ended, state.last):
            if run is not None:
                texts += run.reason, run.message
    return sum(map(sys.getsizeof, texts))


class JobView:
    """The jobs of one pool by UID. ``missing`` has the UIDs of those that the batch system no longer lists."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.missing: set[str] = set()
        self.complete_at: float | None = None
        self._bytes = 0
        self._stamps: dict[str, Stamp] = {}
        self._gone: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def event(self, event: Event, now: float) -> tuple[bool, bool]:
        """Apply an event; return whether the job has changed, and whether earlier events are missing."""
        seen = self._seen.get(event.submitter)
        self._saw(event.submitter, max(event.sequence, seen or 0))
        known = self._stamps.get(event.status.job)
        again = known is not None and (known.submitter, known.sequence) == (event.submitter, event.sequence)
        changed = not again and self._take(event.status, Stamp(event.submitter, event.sequence, now))
        return changed, seen is None or event.sequence > seen + 1

    def announced(self, submitter: str, sequence: int) -> bool:
        """Apply the number of a submitter's last event; return whether it differs from the last number seen."""
        seen = self._seen.get(submitter)
        self._saw(submitter, sequence)
        if seen is not None and sequence < seen:
            for stamp in self._stamps.values():
                if stamp.submitter == submitter:
                    stamp.sequence = -1
        return seen != sequence

    def submitted(self, status: JobStatus, now: float) -> bool:
        """Apply the answer to a submit request unless an event has arrived before; return whether the job is new."""
        self._gone.pop(status.job, None)
        known = self.jobs.get(status.job)
        if known is not None and (status.unused or not known.unused):
            return False
        self._keep(status, Stamp("", 0, now), self._grown(status))
        return True

    def gone(self, job: str, asked: float, now: float) -> bool:
        """Apply an answer that the site did not know the job at ``asked`` (monotonic); return whether it was known."""
        stamp = self._stamps.get(job)
        if stamp is not None and stamp.at > asked:
            return False
        self._gone[job] = now
        return self._drop(job)

    def snapshot(self, parts: Iterable[Part], began: float) -> set[str]:
        """Apply a complete snapshot, begun at ``began`` (monotonic); return the jobs that have changed or are gone."""
        parts = list(parts)
        changed: set[str] = set()
        present: set[str] = set()
        for part in parts:
            present.update(part.unreadable)
            for status in part.jobs:
                present.add(status.job)
                if self._gone.get(status.job, -1.0) >= part.at:
                    continue  # deleted after the page was requested
                if self._take(status, Stamp(part.submitter, part.sequence, part.at)):
                    changed.add(status.job)
        for job in [job for job in self.jobs if job not in present]:
            if self._stamps[job].at < began - GRACE:
                self._drop(job)
                changed.add(job)
        # a job that was submitted after the first page may be missing in it; its event follows
        for submitter in {part.submitter for part in parts}:
            first = min(part.sequence for part in parts if part.submitter == submitter)
            self._saw(submitter, max(first, self._seen.get(submitter, 0)))
        self._gone = {job: at for job, at in self._gone.items() if at >= began - GRACE}
        self.complete_at = began
        return changed

    def _take(self, status: JobStatus, stamp: Stamp) -> bool:
        """Apply a state unless a newer one is known; return whether the job has changed."""
        known, old = self._stamps.get(status.job), self.jobs.get(status.job)
        if old is None and len(self.jobs) >= MOST_JOBS:
            return False
        if known is not None and old is not None:
            if known.submitter == stamp.submitter:
                if stamp.sequence < known.sequence:
                    return False
            elif status.phase != "ended" and ((old.phase == "ended" and not old.unused) or known.at > stamp.at):
                return False
        changed = old != status
        grown = self._grown(status) if changed else 0
        if grown > 0 and self._bytes + grown > MOST_BYTES:
            return False
        # an equal state stays the same object: a decision about it need not be repeated (Entry.is_settled)
        self._keep(status if changed or old is None else old, stamp, grown)
        return changed

    def _grown(self, status: JobStatus) -> int:
        """Return by how much the size of the view grows with this state."""
        old = self.jobs.get(status.job)
        return size(status) - (0 if old is None else size(old))

    def _keep(self, status: JobStatus, stamp: Stamp, grown: int) -> None:
        self._bytes += grown
        self.jobs[status.job], self._stamps[status.job] = status, stamp
        (self.missing.add if status.missing else self.missing.discard)(status.job)

    def _drop(self, job: str) -> bool:
        """Remove a job; return whether it was known."""
        self._stamps.pop(job, None)
        self.missing.discard(job)
        known = self.jobs.pop(job, None)
        self._bytes -= 0 if known is None else size(known)
        return known is not None

    def _saw(self, submitter: str, sequence: int) -> None:
        self._seen.pop(submitter, None)
        self._seen[submitter] = sequence
        while len(self._seen) > _MOST_SUBMITTERS:
            del self._seen[next(iter(self._seen))]
