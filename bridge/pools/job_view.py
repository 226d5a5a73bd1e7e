"""What is known of the jobs at a site, kept by numbered events and by snapshots. No I/O, and one thread at a time.

An event is newer than what is known of its job if its submitter has given it a higher number; so is a page of a
snapshot, which says up to which number it knows. Numbers of two submitters can't be compared: there, what came later
counts, but for an end, which is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.poolapi.jobs import JobStatus
from bridge.wire.messages import Event

GRACE = 10.0
"""Seconds for which a job stays known that another submitter of the pool may not have noticed yet."""
MOST_JOBS = 200_000
"""Jobs of one pool: a site that makes up more does not fill the hub's memory."""
_MOST_SUBMITTERS = 32


@dataclass(slots=True)
class Stamp:
    """Where the newest word about a job comes from; ``at`` is the monotonic time at which it was asked for or came."""

    submitter: str
    sequence: int
    at: float


@dataclass(frozen=True, slots=True)
class Part:
    """A page of a snapshot, asked for at ``at``. ``unreadable`` jobs are there; nothing more is known of them."""

    submitter: str
    sequence: int
    jobs: list[JobStatus]
    unreadable: set[str]
    at: float


class JobView:
    """The jobs of one pool by UID. ``missing`` has the UIDs of those that the batch system no longer lists."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobStatus] = {}
        self.missing: set[str] = set()
        self.complete_at: float | None = None
        self._stamps: dict[str, Stamp] = {}
        self._gone: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def event(self, event: Event, now: float) -> tuple[bool, bool]:
        """Take an event; gives whether the job has changed, and whether events before it were missed."""
        seen = self._seen.get(event.submitter)
        self._saw(event.submitter, max(event.sequence, seen or 0))
        known = self._stamps.get(event.status.job)
        again = known is not None and (known.submitter, known.sequence) == (event.submitter, event.sequence)
        changed = not again and self._take(event.status, Stamp(event.submitter, event.sequence, now))
        return changed, seen is None or event.sequence > seen + 1

    def announced(self, submitter: str, sequence: int) -> bool:
        """Take the number of a submitter's last event; gives whether events were missed, or it counts anew."""
        seen = self._seen.get(submitter)
        self._saw(submitter, sequence)
        if seen is not None and sequence < seen:
            for stamp in self._stamps.values():
                if stamp.submitter == submitter:
                    stamp.sequence = -1
        return seen != sequence

    def submitted(self, status: JobStatus, now: float) -> bool:
        """Take the answer to a submit: it tells nothing that an event has not told better; gives whether it is new."""
        self._gone.pop(status.job, None)
        if status.job in self.jobs:
            return False
        self._keep(status, Stamp("", 0, now))
        return True

    def gone(self, job: str, asked: float, now: float) -> bool:
        """Take a site's word that it holds nothing of a job, true at ``asked``; gives whether it was known."""
        stamp = self._stamps.get(job)
        if stamp is not None and stamp.at > asked:
            return False
        self._gone[job] = now
        return self._drop(job)

    def snapshot(self, parts: Iterable[Part], began: float) -> set[str]:
        """Take a whole snapshot, begun at ``began``; gives the jobs that have changed or are gone."""
        parts = list(parts)
        changed: set[str] = set()
        present: set[str] = set()
        for part in parts:
            present.update(part.unreadable)
            for status in part.jobs:
                present.add(status.job)
                if self._gone.get(status.job, -1.0) >= part.at:
                    continue  # forgotten after the page was asked for
                if self._take(status, Stamp(part.submitter, part.sequence, part.at)):
                    changed.add(status.job)
        for job in [job for job in self.jobs if job not in present]:
            if self._stamps[job].at < began - GRACE:
                self._drop(job)
                changed.add(job)
        # what came after its first page may be missing in a page before: the events tell
        for submitter in {part.submitter for part in parts}:
            first = min(part.sequence for part in parts if part.submitter == submitter)
            self._saw(submitter, max(first, self._seen.get(submitter, 0)))
        self._gone = {job: at for job, at in self._gone.items() if at >= began - GRACE}
        self.complete_at = began
        return changed

    def _take(self, status: JobStatus, stamp: Stamp) -> bool:
        """Take a word about a job unless a newer one is known; gives whether anything is different now."""
        known, old = self._stamps.get(status.job), self.jobs.get(status.job)
        if old is None and len(self.jobs) >= MOST_JOBS:
            return False
        if known is not None and old is not None:
            if known.submitter == stamp.submitter:
                if stamp.sequence < known.sequence:
                    return False
            elif status.phase != "ended" and (old.phase == "ended" or known.at > stamp.at):
                return False
        self._keep(status, stamp)
        return old != status

    def _keep(self, status: JobStatus, stamp: Stamp) -> None:
        self.jobs[status.job], self._stamps[status.job] = status, stamp
        (self.missing.add if status.missing else self.missing.discard)(status.job)

    def _drop(self, job: str) -> bool:
        """Remove a job; return whether it was known."""
        self._stamps.pop(job, None)
        self.missing.discard(job)
        return self.jobs.pop(job, None) is not None

    def _saw(self, submitter: str, sequence: int) -> None:
        self._seen.pop(submitter, None)
        self._seen[submitter] = sequence
        while len(self._seen) > _MOST_SUBMITTERS:
            del self._seen[next(iter(self._seen))]
