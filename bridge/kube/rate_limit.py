"""A token bucket, which limits a rate."""

from __future__ import annotations

import threading

from bridge.clock import SYSTEM_CLOCK, Clock


class TokenBucket:
    """``rate`` tokens per second, at most ``burst`` at once; safe for many threads."""

    def __init__(self, rate: float, burst: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._tokens = self._burst
        self._at = clock.monotonic()
        self._lock = threading.Lock()

    def take(self) -> float:
        """Take a token; return the seconds to wait before using it."""
        with self._lock:
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
            self._at = now
            return max(0.0, -self._tokens / self._rate)
