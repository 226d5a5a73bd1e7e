"""Time and randomness as arguments, so that decisions and back-offs are tested without waiting."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock: ``monotonic`` seconds for durations, ``time`` seconds since the epoch for what others read."""

    def monotonic(self) -> float: ...  # noqa: D102
    def time(self) -> float: ...  # noqa: D102


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Seconds that never jump and go on while the process is stopped."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        """Seconds, the same as ``time``."""
        return self.now

    def time(self) -> float:
        """Seconds, as set."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``."""
        with self._lock:
            self.now += seconds


def rfc3339(seconds: float, *, micro: bool = False) -> str:
    """Write seconds since the epoch as Kubernetes does (``micro`` for MicroTime fields)."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339(text: str) -> float:
    """Read a Kubernetes Time or MicroTime; raises ``ValueError`` when it is none."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
