"""Clocks as arguments, so that tests do not wait; conversion of Kubernetes times."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A clock: ``monotonic`` seconds for durations, ``time`` seconds since the epoch for times that others read."""

    def monotonic(self) -> float: ...  # noqa: D102
    def time(self) -> float: ...  # noqa: D102


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # only Linux has it


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return seconds that never go back and continue while the process or the machine is suspended.

        ``time.monotonic()`` stops while the machine is suspended: a lease that has expired meanwhile would seem held.
        """
        return time.clock_gettime(_BOOT_TIME)

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


SYSTEM_CLOCK = SystemClock()


def rfc3339(seconds: float, *, micro: bool = False) -> str:
    """Format seconds since the epoch as a Kubernetes Time, with ``micro`` as a MicroTime."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """Return a duration as kubectl prints it: ``5s``, ``12m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def parse_rfc3339(text: str) -> float:
    """Parse a Kubernetes Time or MicroTime; raises ``ValueError``."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
