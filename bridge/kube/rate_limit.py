"""A bucket of tokens: bounds how often something is done."""

from __future__ import annotations

import threading

from bridge.clock import Clock, SystemClock

_CLOCK = SystemClock()


class TokenBucket:
    """``rate`` tokens a second, at most ``burst`` of them at once; for any thread."""

    def __init__(self, rate: float, burst: float, clock: Clock = _CLOCK) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._tokens = self._burst
        self._at = clock.monotonic()
        self._lock = threading.Lock()

    def take(self) -> float:
        """Take a token, and say how many seconds to wait before using it."""
        with self._lock:
            now = self._clock.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
            self._at = now
            return max(0.0, -self._tokens / self._rate)
