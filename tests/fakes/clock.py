"""A clock that only the test changes."""

from __future__ import annotations

import threading


class FakeClock:
    """A clock that only :meth:`advance` changes. ``offset``: how far a user has set the time of day wrong."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now, self.offset = now, 0.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Return the seconds that the test has set."""
        return self.now

    def time(self) -> float:
        """Return the same seconds, plus the ``offset``."""
        return self.now + self.offset

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        with self._lock:
            self.now += seconds
