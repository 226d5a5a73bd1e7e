"""When a pool requests a snapshot or a BuildConfig from its site, and a snapshot, page by page."""

from __future__ import annotations

import logging
import math

from bridge.clock import Clock
from bridge.core.retries import Backoff
from bridge.errors import SiteError
from bridge.logs import kv
from bridge.pools.submitter.job_view import MOST_BYTES, MOST_JOBS, Part, size
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import Snapshot
from bridge.protocol.nats.request_table import SNAPSHOT, SubmitterClient

log = logging.getLogger(__name__)

MOST_PAGES = 1000
MOST_SECONDS = 120.0
"""Seconds for all pages: a site that sends each one slowly would keep the hub from the state of its jobs for hours."""
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


def request_snapshot(pool: str, owner: str, client: SubmitterClient, clock: Clock) -> list[Part]:
    """Return the pages of a complete snapshot, with the jobs of one owner.

    Raises SiteError, also if the pages have too many jobs or texts.
    """
    parts: list[Part] = []
    jobs = memory = 0
    after, more = "", True
    end = clock.monotonic() + MOST_SECONDS
    while more:
        requested_at = clock.monotonic()
        if requested_at > end:
            raise SiteError(f"the snapshot of pool {pool} is not complete after {MOST_SECONDS:g} s")
        page = client.call(SNAPSHOT, "", Snapshot(after=after))
        valid = [job for job in page.jobs if isinstance(job, JobStatus)]
        unreadable = {job.job for job in page.jobs if not isinstance(job, JobStatus)}
        owned = [job for job in valid if job.owner == owner]
        parts.append(Part(page.submitter, page.sequence, owned, unreadable, requested_at))
        jobs += len(owned) + len(unreadable)
        memory += sum(map(size, owned))
        if jobs > MOST_JOBS or memory > MOST_BYTES:
            raise SiteError(f"the snapshot of pool {pool} has more than {MOST_JOBS} jobs, or {MOST_BYTES} bytes")
        last = page.jobs[-1].job if page.jobs else ""
        more = page.more
        # pages are in the order of UIDs: one that does not go on would be requested again and again
        if more and (last <= after or len(parts) >= MOST_PAGES):
            raise SiteError(f"the snapshot of pool {pool} does not end")
        after = last
    if count := sum(len(part.unreadable) for part in parts):
        log.error("jobs without a valid state", extra=kv(pool=pool, jobs=count))
    return parts
