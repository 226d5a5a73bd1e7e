"""The interface between the hub and a pool. All requests are idempotent by pod UID.

Methods that send a request to the site raise :class:`bridge.errors.SiteError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from bridge.poolapi.announcement import Announcement
from bridge.poolapi.jobs import JobStatus
from bridge.poolapi.requests import JobSubmission, LogOptions, VolumeFile
from bridge.script.buildconfig import BuildConfig


class Pool(Protocol):
    """One pool. ``name`` is also the name of its virtual node."""

    name: str

    @property
    def config_problem(self) -> str:
        """Why the announced BuildConfig is invalid; empty if it is valid or has not been received."""

    @property
    def folder(self) -> str:
        """Id of the site's folder that holds the pool's jobs; empty before the first announcement."""

    def folders(self) -> Mapping[str, tuple[Announcement, float]]:
        """Return the last announcement for each folder id, and the monotonic time at which it arrived."""

    def choose(self, folder: str) -> None:
        """Use the jobs of this folder from now on, and discard the state of any other folder."""

    def announced(self) -> tuple[Announcement, float] | None:
        """Return the last announcement and the monotonic time at which it arrived; ``None`` before the first."""

    def buildconfig(self) -> BuildConfig | None:
        """Return the announced BuildConfig; ``None`` if it has not been received or is invalid."""

    def submit(self, job: str, submission: JobSubmission) -> JobStatus:
        """Submit a job; return the state of the existing one if the site has it already."""

    def cancel(self, job: str, grace: float, *, forget: bool = False) -> JobStatus | None:
        """Cancel a job, with ``grace`` seconds to end; return ``None`` if the site does not know it.

        ``forget``: also delete the job's folder, once the job has ended.
        """

    def status(self, job: str) -> JobStatus | None:
        """Request the state of one job from the site; ``None`` if the site does not know it."""

    def job(self, job: str) -> JobStatus | None:
        """Return one job of :meth:`jobs`."""

    def jobs(self) -> dict[str, JobStatus]:
        """Return the last known state of all jobs by UID. Empty before the first snapshot. Sends no request."""

    def missing(self) -> frozenset[str]:
        """Return the UIDs of the jobs of :meth:`jobs` that the site's batch system no longer lists."""

    def complete_at(self) -> float | None:
        """Return the monotonic time at which the last complete snapshot was requested; ``None`` before the first.

        A job that is not in :meth:`jobs` was not at the site at that time.
        """

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Iterate over the pieces of a log. To end the log at the site too, close the iterator."""

    def refresh(self, job: str, files: Sequence[VolumeFile]) -> None:
        """Replace files in the volumes of a job."""

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` after each change: with the pod's UID, or with an empty string for the announcement."""
