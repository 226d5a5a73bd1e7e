"""When a pool requests a snapshot or a BuildConfig from its site."""

from __future__ import annotations

import logging
import math

from bridge.core.backoff import Backoff
from bridge.errors import SiteError
from bridge.logs import kv

log = logging.getLogger(__name__)

PERIOD = 60.0
"""Seconds between two snapshots of a pool."""
LEAST_GAP = 1.0
"""Seconds between two requests to a pool, at least."""
_BACKOFF = Backoff(first=1.0, limit=30.0)
_CONFIG_WAIT = 0.3
"""Seconds to wait for an announced BuildConfig before it is requested: the site publishes it after the announcement."""


class RequestSchedule:
    """The times of one pool's requests, in monotonic seconds. A caller that wants a snapshot holds the pool's lock."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._failures = 0
        self.is_snapshot_wanted = True
        self.requested_at = self.snapshot_at = self.described_at = -math.inf

    def want_snapshot(self) -> None:
        """Request a snapshot as soon as possible."""
        self.is_snapshot_wanted, self._failures = True, 0

    def is_rested(self, now: float) -> bool:
        """Whether the pause after the last request is over."""
        pause = _BACKOFF.delay(self._failures, rand=lambda: 0.0) if self._failures else LEAST_GAP
        return now - self.requested_at >= pause

    def wants_snapshot(self, now: float) -> bool:
        """Whether a snapshot was requested, or the last one is old."""
        return self.is_snapshot_wanted or now - self.snapshot_at >= PERIOD

    def wants_config(self, now: float, announced_at: float) -> bool:
        """Whether to request a BuildConfig that was announced and has not arrived."""
        return now - announced_at >= _CONFIG_WAIT and now - self.described_at >= _BACKOFF.limit

    def failed(self, error: SiteError) -> None:
        """Record a failed request."""
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            log.warning("a request to a pool failed", extra=kv(pool=self._pool, failures=self._failures, error=error))

    def succeeded(self) -> None:
        """Record that all due requests were answered."""
        self._failures = 0
