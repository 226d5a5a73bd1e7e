"""The port: what a pool can do for the hub. All of it is idempotent by pod UID.

Methods that ask the site raise :class:`bridge.errors.SiteError`.
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
        """Why the BuildConfig that the last announcement names can't be used; empty: it can, or is not known yet."""

    @property
    def folder(self) -> str:
        """Id of the site's folder that the pool's jobs are in; empty while none is known."""

    def folders(self) -> Mapping[str, tuple[Announcement, float]]:
        """Return what submitters of each folder announced last, and when (monotonic), by the folder's id."""

    def choose(self, folder: str) -> None:
        """Believe this folder from now on; of another one, nothing that was known counts any more."""

    def announced(self) -> tuple[Announcement, float] | None:
        """Give the last announcement and the monotonic time at which it came; ``None`` before the first."""

    def buildconfig(self) -> BuildConfig | None:
        """Give the BuildConfig that the last announcement names; ``None`` while it is not known."""

    def submit(self, job: str, submission: JobSubmission) -> JobStatus:
        """Have a job run; one that exists is given as it is."""

    def cancel(self, job: str, grace: float, *, forget: bool = False) -> JobStatus | None:
        """End a job; ``None`` once the site holds nothing of it."""

    def status(self, job: str) -> JobStatus | None:
        """Ask for one job; ``None``: the site holds nothing of it."""

    def job(self, job: str) -> JobStatus | None:
        """Give one job of the view (:meth:`jobs`)."""

    def jobs(self) -> dict[str, JobStatus]:
        """Give the view of all jobs by UID, kept by events and snapshots. Empty before the first snapshot."""

    def missing(self) -> frozenset[str]:
        """Return the UIDs of the jobs of :meth:`jobs` that the site's batch system no longer lists."""

    def complete_at(self) -> float | None:
        """Monotonic time at which the last complete snapshot was asked for; ``None`` before the first.

        A job that is not in :meth:`jobs` was, at that moment, not at the site.
        """

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Give a log, piece by piece; closing the iterator ends it at the site too."""

    def refresh(self, job: str, files: Sequence[VolumeFile]) -> None:
        """Replace files of volumes of a job that runs."""

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Have ``changed`` called after a change: with the pod's UID, or an empty string for the announcement."""
