"""Requests a snapshot of a pool's jobs, page by page."""

from __future__ import annotations

import logging

from bridge.clock import Clock
from bridge.errors import SiteError
from bridge.logs import kv
from bridge.pools.submitter.job_view import MOST_BYTES, MOST_JOBS, Part, size
from bridge.pools.submitter.submitter_client import Client

log = logging.getLogger(__name__)

MOST_PAGES = 1000
MOST_SECONDS = 120.0
"""Seconds for all pages: a site that sends each one slowly would keep the hub from the state of its jobs for hours."""


def request(pool: str, client: Client, clock: Clock) -> list[Part]:
    """Return the pages of a complete snapshot; raises SiteError, also if they have too many jobs or texts."""
    parts: list[Part] = []
    jobs = memory = 0
    after, more = "", True
    end = clock.monotonic() + MOST_SECONDS
    while more:
        requested_at = clock.monotonic()
        if requested_at > end:
            raise SiteError(f"the snapshot of pool {pool} is not complete after {MOST_SECONDS:g} s")
        page = client.snapshot(after)
        parts.append(Part(page.submitter, page.sequence, page.jobs, page.unreadable, requested_at))
        if page.unreadable:
            log.error("jobs without a valid state", extra=kv(pool=pool, jobs=len(page.unreadable)))
        jobs += len(page.jobs) + len(page.unreadable)
        memory += sum(map(size, page.jobs))
        if jobs > MOST_JOBS or memory > MOST_BYTES:
            raise SiteError(f"the snapshot of pool {pool} has more than {MOST_JOBS} jobs, or {MOST_BYTES} bytes")
        more = page.more
        # pages are in the order of UIDs: one that does not go on would be requested again and again
        if more and (page.last <= after or len(parts) >= MOST_PAGES):
            raise SiteError(f"the snapshot of pool {pool} does not end")
        after = page.last
    return parts
