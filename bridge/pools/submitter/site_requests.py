"""The requests of a pool to its site: the submission of a job, files of its volumes, and a snapshot of all jobs.

A pool requests a snapshot page by page. :class:`RequestSchedule` says when it requests one, or a BuildConfig.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

from bridge.clock import Clock
from bridge.core.retries import Backoff
from bridge.errors import SiteError, SiteRefusedError, SiteTooLargeError
from bridge.logs import kv
from bridge.pools.submitter.job_view import MOST_BYTES, MOST_JOBS, Part, size
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import JobSubmission, VolumeFile
from bridge.protocol.nats.envelope import GarbledError
from bridge.protocol.nats.messages import UNKNOWN_LIBRARY, File, Files, ScriptWithoutLibrary, Snapshot, SubmitMessage
from bridge.protocol.nats.request_table import FILES, SNAPSHOT, SUBMIT, SubmitterClient
from bridge.script import library

log = logging.getLogger(__name__)

LIBRARY_REFUSED = (UNKNOWN_LIBRARY, GarbledError.reason)
"""Reasons with which a submitter of another version refuses a script without its library."""

PORTION = 2**18
"""Bytes of files in one request: base64 and JSON make it a third larger, and NATS servers allow 1 MiB by default."""
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


def submit(client: SubmitterClient, job: str, submission: JobSubmission, digest: str, timeout: float) -> JobStatus:
    """Submit a job to a site whose bash library has this digest; send the whole script if it refuses the other."""
    # the library is 30 of 35 kB of a script
    script = without_library(submission.script, digest)
    try:
        return client.call(SUBMIT, job, SubmitMessage.of(submission, script=script), timeout).status
    except SiteRefusedError as error:
        if script is submission.script or error.reason not in LIBRARY_REFUSED:
            raise
        return client.call(SUBMIT, job, SubmitMessage.of(submission), timeout).status


def replace_files(
    client: SubmitterClient, job: str, files: Sequence[VolumeFile], volumes: Mapping[str, Sequence[str]]
) -> None:
    """Replace files in the volumes of a job; the last request has the paths of all files by volume, if any.

    A file that is too large for a request is left out; then raises SiteTooLargeError in the end.
    """
    too_large: SiteTooLargeError | None = None
    for portion in portions(files):
        try:
            client.call(FILES, job, Files(files=[File.encoded(file) for file in portion]))
        except SiteTooLargeError as error:
            names = ", ".join(file.path for file in portion)
            too_large = SiteTooLargeError(f"{names}: {error}", hint=error.hint)
    if volumes:
        lists = {name: list(paths) for name, paths in volumes.items()}
        client.call(FILES, job, Files(files=[], volumes=lists))
    if too_large is not None:
        raise too_large


def portions(files: Sequence[VolumeFile]) -> Iterator[list[VolumeFile]]:
    """Divide files into requests of :data:`PORTION` bytes at most; a larger file is alone in its request."""
    portion: list[VolumeFile] = []
    size = 0
    for file in files:
        if portion and size + len(file.data) > PORTION:
            yield portion
            portion, size = [], 0
        portion.append(file)
        size += len(file.data)
    if portion:
        yield portion


def without_library(script: str, digest: str) -> str | ScriptWithoutLibrary:
    """Return the script without the bash library of this digest.

    Return ``script`` itself if this version has another library, or if the script does not contain it.
    """
    parts = library.split(script, digest)
    return ScriptWithoutLibrary(before=parts[0], library=digest, after=parts[1]) if parts else script


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
