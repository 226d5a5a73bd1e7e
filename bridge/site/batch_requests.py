"""What a submitter requests of the batch system: one list of jobs for all callers, and submissions.

A submission that got no answer is repeated.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.core.grouping import grouped
from bridge.core.job_lifecycle import State
from bridge.errors import BatchError, SiteRefusedError
from bridge.logs import kv
from bridge.site.batch.batch_interface import BatchJob, BatchJobRequest, BatchSystem
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs.job_record import JobRecord, Meta, Part, parts_of
from bridge.site.jobs.site_folder import Folder
from bridge.telemetry import tracing

log = logging.getLogger(__name__)

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
        self._living = grouped((job.uid, job.id) for job in jobs.values() if job.phase != "ended")
        self._requested_at = requested_at
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


class BatchSubmission:
    """Submits the jobs of a directory; ``settle``: seconds that a job may take to appear in the batch system."""

    def __init__(
        self, folder: Folder, batch: BatchSystem, config: Callable[[], SiteConfig], clock: Clock, settle: float
    ) -> None:
        self._folder, self._batch, self._config, self._clock, self._settle = folder, batch, config, clock, settle

    def request(self, job: str, meta: Meta) -> BatchJobRequest:
        """Return the request for a job."""
        config = self._config()
        first, *others = (self._component(job, meta, part, config) for part in parts_of(meta))
        return replace(first, others=tuple(others))

    def _component(self, job: str, meta: Meta, part: Part, config: SiteConfig) -> BatchJobRequest:
        flavor = config.flavor(part.flavor)
        return BatchJobRequest(
            uid=job,
            folder=self._folder.job(job).path,
            cpus=part.cpus,
            memory=part.memory,
            gpus=part.gpus,
            gpu_resource=part.gpu_resource,
            time_limit=meta.time_limit,
            flavor=flavor,
            flags=part.flags,
            most_seconds=config.most_seconds(flavor),
            replaced=meta.replaced,
            flags_win=config.limits.by_interlink,
            traceparent=tracing.current() if tracing.tracer is not None else "",
            members=part.size,
            together=self._batch.pods_per_machine(part.size, part.per_node),
        )

    def replaced_ids(self, unused_record: JobRecord | None) -> tuple[str, ...]:
        """Return the ids of the batch jobs that a new one replaces; raises :class:`bridge.errors.BatchError`."""
        if unused_record is None:
            return ()
        last_id = unused_record.job_id or unused_record.started_job or self._batch.find(unused_record.uid)
        return (*unused_record.meta.replaced, last_id) if last_id else unused_record.meta.replaced

    def find_or_submit(self, record: JobRecord) -> None:
        """Submit a job that the batch system does not have, as far as known; raises :class:`bridge.errors.BatchError`.

        The caller holds the job's lock.
        """
        state = record.lifecycle(self._settle).state
        if state is not State.UNKNOWN or record.cancel is not None or record.meta.adopted:
            return
        job_folder = self._folder.job(record.uid)
        requested_at = self._clock.time()
        # the last submission got no answer: the job may exist, and its name contains the UID
        batch_id = self._batch.find(record.uid) if record.meta.attempts else None
        if batch_id is None or batch_id in record.meta.replaced:
            if not record.lifecycle(self._settle, requested_at).is_absent:
                return  # it may still appear; the leader submits it again later
            meta = replace(record.meta, attempted_at=self._clock.time(), attempts=record.meta.attempts + 1)
            job_folder.write_meta(meta)
            if record.meta.attempts:
                log.info("submitting again", extra=kv(job=record.uid))
            batch_id = self._batch.submit(self.request(record.uid, meta))
        job_folder.write_id(batch_id)
