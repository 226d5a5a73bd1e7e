"""The owner of a job: the cluster that submitted it, and what it may read and end."""

from __future__ import annotations

import logging
from dataclasses import replace

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_index import JobIndex
from bridge.site.jobs.job_record import Cancellation, JobRecord
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)


def adopted(job_folder: JobFolder, record: JobRecord, owner: str) -> JobRecord:
    """Return the record of an owner's job; set the owner if the job has none. The caller holds the job's lock.

    Raises :class:`SiteRefusedError` if the job belongs to another owner.
    """
    if record.meta.owner == owner:
        return record
    if record.meta.gang is not None:
        raise SiteRefusedError(f"{record.uid} is the job of a group, not of a pod", reason="NotOwner")
    if record.meta.owner:
        raise not_owned(record, owner)
    meta = replace(record.meta, owner=owner)
    job_folder.write_meta(meta)
    log.info("set the owner of a job without one", extra=kv(job=job_folder.uid, owner=owner))
    return replace(record, meta=meta)


def not_owned(record: JobRecord, owner: str) -> SiteRefusedError:
    """Return the error for a request about another cluster's job."""
    return SiteRefusedError(
        f"job {record.uid} belongs to another cluster ({record.meta.owner}), not to {owner}",
        reason="NotOwner",
        hint="Only the cluster that submitted a job may see or change it.",
    )


class OwnedJobs:
    """Reads jobs for their owners."""

    def __init__(self, folder: Folder, index: JobIndex) -> None:
        self._folder, self._index = folder, index

    def read(self, job_folder: JobFolder, owner: str) -> JobRecord | None:
        """Read a job; ``None``: there is none, or it cannot be read. Raise SiteRefusedError for another owner's job."""
        record = job_folder.read()
        if record is None:
            # a directory that cannot be read must not open the job to another cluster
            entry = self._index.entries.get(job_folder.uid)
            if entry is not None and entry.record.meta.owner not in ("", owner):
                raise not_owned(entry.record, owner)
            return None
        if record.meta.owner == owner:
            return record
        with self._folder.locked(job_folder.uid):
            record = job_folder.read()
            return None if record is None else adopted(job_folder, record, owner)

    def existing(self, job: str, owner: str) -> tuple[JobFolder, JobRecord]:
        """Read a job; raise SiteRefusedError if there is none, or if it cannot be read."""
        job_folder = self._folder.job(job)
        record = self.read(job_folder, owner)
        if record is None:
            job_folder.raise_if_unreadable()
            raise SiteRefusedError(f"no job {job} here", reason="NotFound")
        return job_folder, record


def request_end(job_folder: JobFolder, record: JobRecord, cancellation: Cancellation) -> None:
    """Store a cancellation by the owner beside an earlier one, and notify the script that runs."""
    merged = cancellation if record.cancel is None else record.cancel.merged(cancellation)
    if merged != record.cancel:
        # before the script is notified: after a kill here, the next leader stops the job
        job_folder.write_cancel(merged)
    if record.started and not record.final:
        job_folder.ask_to_stop(cancellation.grace, "Deleted")
