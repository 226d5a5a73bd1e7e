"""Requests a snapshot of a pool's jobs, page by page."""

from __future__ import annotations

import logging

from bridge.clock import Clock
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


def request(pool: str, owner: str, client: SubmitterClient, clock: Clock) -> list[Part]:
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
        if unreadable:
            log.error("jobs without a valid state", extra=kv(pool=pool, jobs=len(unreadable)))
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
    return parts
