"""Limits the polls that hints of Slurm cause: a flood of hints must not become a flood of requests to slurmctld."""

from __future__ import annotations

import math
import threading

GAP = 0.05
"""Least seconds from the end of a poll to the next one that a hint causes."""
BURST = 4.0
"""Number of polls that hints may cause in quick succession, after a pause without hints."""


class HintPace:
    """A token bucket over polls: hints that arrive before the next poll share it.

    Parameters
    ----------
    rate
        polls per second that hints may cause, on average.
    now
        monotonic time, in seconds.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate, self._tokens, self._at = rate, BURST, now
        self._hinted = threading.Event()

    def add(self) -> None:
        """Record a hint; for any thread."""
        self._hinted.set()

    def due(self, earliest: float, now: float) -> float:
        """Return when the next poll may begin because of a hint, not before ``earliest``; infinite without a hint."""
        if not self._hinted.is_set():
            return math.inf
        self._refill(now)
        return max(earliest, now + max(0.0, 1.0 - self._tokens) / self._rate)

    def take(self, now: float) -> bool:
        """Begin a poll, which serves all hints so far; return whether there were any."""
        if not self._hinted.is_set():
            return False
        self._hinted.clear()  # before the requests of the poll: a later hint needs a later poll
        self._refill(now)
        self._tokens = max(0.0, self._tokens - 1.0)
        return True

    def _refill(self, now: float) -> None:
        self._tokens = min(BURST, self._tokens + (now - self._at) * self._rate)
        self._at = now
