"""Back-offs of failed calls, and limits of a rate: of calls, and of log lines about failures. No I/O."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bridge.clock import SYSTEM_CLOCK, Clock


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays ``first, first*factor, ...`` up to ``limit`` seconds, each shortened by up to ``jitter`` (0 to 1)."""

    first: float = 0.5
    limit: float = 60.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay(self, failures: int, rand: Callable[[], float] = random.random) -> float:
        """Return the delay in seconds after ``failures`` failures in a row (at least 1)."""
        exponent = min(max(failures - 1, 0), 64)
        base: float = min(self.limit, self.first * self.factor**exponent)
        return base * (1 - self.jitter * rand())


RETRY = Backoff(first=0.5, limit=15)
FORGET_AFTER = 60.0
"""Seconds after the end of a back-off until the failure no longer counts."""
LOG_EVERY = 30.0
"""Minimum seconds between two log lines about the same kind of failure."""
_PRUNE_AT = 1024


class Retries:
    """Failures in a row by key and kind of call, each with an exponential back-off; safe for many threads."""

    def __init__(
        self, backoff: Backoff = RETRY, clock: Clock = SYSTEM_CLOCK, rand: Callable[[], float] = random.random
    ) -> None:
        self._backoff, self._clock, self._rand = backoff, clock, rand
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}
        self._prune_at = _PRUNE_AT
        self._lock = threading.Lock()

    def resting(self, key: str, kind: str) -> bool:
        """Whether the back-off after the last call of this kind for the key has not ended."""
        entry = self._failures.get((key, kind))
        return entry is not None and self._clock.monotonic() < entry[1]

    def failed(self, key: str, kind: str) -> None:
        """Start or extend a back-off."""
        now = self._clock.monotonic()
        with self._lock:
            if len(self._failures) >= self._prune_at:
                self._failures = {k: v for k, v in self._failures.items() if now < v[1] + FORGET_AFTER}
                self._prune_at = max(_PRUNE_AT, 2 * len(self._failures))
            count, until = self._failures.get((key, kind), (0, now))
            count = 1 if now > until + FORGET_AFTER else count + 1
            self._failures[key, kind] = (count, now + self._backoff.delay(count, self._rand))

    def succeeded(self, key: str, kind: str) -> None:
        """End a back-off."""
        with self._lock:
            self._failures.pop((key, kind), None)


class Reports:
    """Limits the log lines of each kind of failure and counts the suppressed ones; safe for many threads."""

    def __init__(self, every: float = LOG_EVERY, clock: Clock = SYSTEM_CLOCK) -> None:
        self._every, self._clock = every, clock
        self._last: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def due(self, kind: str) -> int | None:
        """Count a failure; return the number of suppressed ones before it, ``None`` if it is to be suppressed."""
        now = self._clock.monotonic()
        with self._lock:
            last = self._last.get(kind)
            if last is not None and now < last[0] + self._every:
                self._last[kind] = (last[0], last[1] + 1)
                return None
            self._last[kind] = (now, 0)
            return last[1] if last is not None else 0


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
