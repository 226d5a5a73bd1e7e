"""The pace of updates of pending jobs: one change of a node may concern every pending job."""

from __future__ import annotations

RATE = 3.0
"""Updates per second. Slurm has no update of several jobs in one request."""
BURST = 32
"""Updates that are sent at once."""


class UpdatePace:
    """Counts the updates that may be sent. Times are monotonic seconds. Only for the thread of the loop."""

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0

    def allowed(self, now: float) -> int:
        """Return the number of updates that may be sent now."""
        self._left = min(BURST, self._left + RATE * max(0.0, now - self._at))
        self._at = now
        return int(self._left)

    def sent(self, count: int) -> None:
        """Count updates that were sent."""
        self._left -= count
