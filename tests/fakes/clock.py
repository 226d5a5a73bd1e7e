"""A clock that only the test changes."""

from __future__ import annotations

import threading


class FakeClock:
    """A clock that only :meth:`advance` changes."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Return the same seconds as ``time``."""
        return self.now

    def time(self) -> float:
        """Return the seconds that the test has set."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        with self._lock:
            self.now += seconds
