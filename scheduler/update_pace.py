"""The pace of updates of pending jobs: one change of a node may concern every pending job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bridge.clock import Clock

SHARE = 0.1
"""Share of the time in which slurmctld may be busy with updates, measured by the time of its answers."""
FASTEST = 20.0
"""Largest number of updates per second. Slurm has no update of several jobs in one request."""
SLOWEST = 1.0
"""Least number of updates per second, however slowly slurmctld answers."""
FIRST = 3.0
"""Updates per second before an answer has been measured."""
BURST = 32
"""Updates that are sent at once."""
SAMPLES = 8
"""Number of answers over which their time is averaged."""


class UpdatePace:
    """Counts the updates that may be sent. Times are monotonic seconds. Only for the thread of the loop.

    :meth:`measured` and :meth:`took` are for any thread.
    """

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0
        self._seconds = SHARE / FIRST

    @property
    def rate(self) -> float:
        """The number of updates per second."""
        return min(FASTEST, max(SLOWEST, SHARE / self._seconds))

    @contextmanager
    def measured(self, clock: Clock) -> Iterator[None]:
        """Measure an update, also one that fails."""
        began = clock.monotonic()
        try:
            yield
        finally:
            self.took(clock.monotonic() - began)

    def took(self, seconds: float) -> None:
        """Add the time of an answer of slurmctld to an update."""
        self._seconds += (max(seconds, 1e-4) - self._seconds) / SAMPLES

    def allowed(self, now: float) -> int:
        """Return the number of updates that may be sent now."""
        self._left = min(BURST, self._left + self.rate * max(0.0, now - self._at))
        self._at = now
        return int(self._left)

    def sent(self, count: int) -> None:
        """Count updates that were sent."""
        self._left -= count
