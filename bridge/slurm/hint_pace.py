"""Limits the requests that hints of Slurm cause: a flood of hints must not become a flood of requests to slurmctld."""

from __future__ import annotations

import math
import threading
from collections.abc import Set

GAP = 0.05
"""Least seconds from the end of a poll to the next one that a hint causes."""
BURST = 4.0
"""Number of polls that hints may cause in quick succession, after a pause without hints."""
MOST_ALONE = 8
"""Number of jobs that are read alone because of hints; for more of them, a poll costs less."""

READ_COST = 0.25
"""Cost of reading one job, as a share of a poll: a request of 3 ms instead of at least two, and a list of all jobs."""


class HintPace:
    """A token bucket over polls and reads of single jobs: hints that arrive before the next one share it.

    Hints may cause ``rate`` polls and reads per second on average. ``now`` is in monotonic seconds.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._tokens, self._refilled_at = rate, BURST, now
        self._lock = threading.Lock()
        self._jobs: set[int] = set()
        self._hinted = self._needs_poll = False

    def add(self, job_id: int | None = None) -> None:
        """Record a hint about a job, or about jobs that it does not name; for any thread."""
        with self._lock:
            self._hinted = True
            if job_id is not None and len(self._jobs) < MOST_ALONE:
                self._jobs.add(job_id)
            elif job_id not in self._jobs:
                self._needs_poll = True

    @property
    def jobs(self) -> frozenset[int]:
        """The jobs to read alone; empty if there is no hint, or if the hints need a poll."""
        with self._lock:
            return frozenset() if self._needs_poll else frozenset(self._jobs)

    def due(self, earliest: float, now: float, jobs: int = 0) -> float:
        """Return when hints may cause a poll, or a read of ``jobs`` jobs, not before ``earliest``.

        Infinite without a hint.
        """
        with self._lock:
            if not self._hinted:
                return math.inf
            self._refill(now)
            return max(earliest, now + max(0.0, _cost(jobs) - self._tokens) / self._rate)

    def take(self, now: float, keep: Set[int] = frozenset()) -> bool:
        """Begin a poll, which serves all hints but those of the jobs to ``keep``; return whether it serves any."""
        with self._lock:
            # jobs that run_hints() reads alone need no poll, and must not be taken from it
            served = self._needs_poll or (self._hinted and not self._jobs <= keep)
            # before the requests: a later hint needs a later poll
            self._jobs &= keep if not self._needs_poll else frozenset()
            self._hinted, self._needs_poll = bool(self._jobs), False
            if served:
                self._spend(now, 1.0)
        return served

    def take_jobs(self, now: float, job_ids: Set[int]) -> None:
        """Begin to read these jobs alone, which serves their hints."""
        with self._lock:
            self._jobs -= job_ids
            self._hinted = self._needs_poll or bool(self._jobs)
            self._spend(now, _cost(len(job_ids)))

    def _spend(self, now: float, cost: float) -> None:
        self._refill(now)
        self._tokens = max(0.0, self._tokens - cost)

    def _refill(self, now: float) -> None:
        self._tokens = min(BURST, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now


def _cost(jobs: int) -> float:
    return READ_COST * jobs if jobs else 1.0
