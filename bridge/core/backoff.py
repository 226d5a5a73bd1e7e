"""Exponential back-off with jitter. Pure: the caller waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


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
