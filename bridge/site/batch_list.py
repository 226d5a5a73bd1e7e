"""The batch system's list of this site's jobs: one query for all callers."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.errors import BatchError, SiteRefusedError
from bridge.site.batch.batch_interface import BatchJob, BatchSystem
from bridge.site.jobs.site_folder import Folder

PERIODS = 2.0
LEAST = 10.0
"""A list may be this many periods old when a job is submitted, and ``LEAST`` seconds at least."""
REST = 5.0
"""Seconds after a failed query in which submissions get its error, instead of another query."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds until the list has a job, or lacks it for good: see ``[batch]`` of the configuration."""

    settle: float
    lost_after: float
    lag: float


class BatchList:
    """The last list, and when it was requested. ``period``: seconds between two lists of the leader."""

    def __init__(self, batch: BatchSystem, period: float, clock: Clock) -> None:
        self._batch, self._clock = batch, clock
        self._longest = max(LEAST, PERIODS * period)
        self._lock = threading.Lock()
        self._requested_at = float("-inf")
        self._living: dict[str, list[str]] = {}
        self._failed: tuple[float, BatchError] | None = None

    def fetch(self) -> dict[str, BatchJob]:
        """Query the batch system; raises :class:`BatchError`."""
        # before the query: a job that is submitted during it may be missing in the answer
        requested_at = self._clock.monotonic()
        jobs = self._batch.jobs()
        living_ids: dict[str, list[str]] = {}
        for job in jobs.values():
            if job.phase != "ended":
                living_ids.setdefault(job.uid, []).append(job.id)
        self._requested_at, self._living = requested_at, living_ids
        return jobs

    def refuse_foreign(self, uid: str, folder: Folder, known_ids: Collection[str] = ()) -> None:
        """Raise SiteRefusedError if the batch system has a job that this directory does not know; ``known_ids``: ids.

        The leader queries a list every period. Only if the last list is too old, one thread queries another for all
        submissions; this may raise :class:`BatchError`.
        """
        if not self._is_fresh():
            with self._lock:
                if not self._is_fresh():
                    self._fetch_again()
        if batch_id := next((listed_id for listed_id in self._living.get(uid, ()) if listed_id not in known_ids), ""):
            raise SiteRefusedError(
                f"the batch system already has job {batch_id} of this pod, but folder {folder.path} ({folder.id}) has "
                "no record of it",
                reason="SubmittedElsewhere",
                retryable=True,
                hint="Another submitter uses another folder for this pool, or the folder was replaced. The pod is"
                f" submitted once batch job {batch_id} has ended.",
            )

    def _fetch_again(self) -> None:
        if self._failed is not None and self._clock.monotonic() - self._failed[0] < REST:
            raise self._failed[1]
        try:
            self.fetch()
        except BatchError as error:
            self._failed = self._clock.monotonic(), error
            raise

    def _is_fresh(self) -> bool:
        return self._clock.monotonic() - self._requested_at <= self._longest
