"""Submission of jobs to the batch system, also after a submission that got no answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bridge.clock import Clock
from bridge.core.job_lifecycle import State
from bridge.logs import kv
from bridge.site.batch.batch_interface import BatchJobRequest, BatchSystem
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs import job_actions
from bridge.site.jobs.job_record import JobRecord, Meta, Part, parts_of
from bridge.site.jobs.site_folder import Folder
from bridge.telemetry import tracing

log = logging.getLogger(__name__)


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
            flags_win=config.limits.rules == "interlink-slurm",
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
        state = job_actions.lifecycle(record, self._settle).state
        if state is not State.UNKNOWN or record.cancel is not None or record.meta.adopted:
            return
        job_folder = self._folder.job(record.uid)
        requested_at = self._clock.time()
        # the last submission got no answer: the job may exist, and its name contains the UID
        batch_id = self._batch.find(record.uid) if record.meta.attempts else None
        if batch_id is None or batch_id in record.meta.replaced:
            if not job_actions.lifecycle(record, self._settle, requested_at).is_absent:
                return  # it may still appear; the leader submits it again later
            meta = replace(record.meta, attempted_at=self._clock.time(), attempts=record.meta.attempts + 1)
            job_folder.write_meta(meta)
            if record.meta.attempts:
                log.info("submitting again", extra=kv(job=record.uid))
            batch_id = self._batch.submit(self.request(record.uid, meta))
        job_folder.write_id(batch_id)
