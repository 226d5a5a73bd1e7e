"""The owner of a job: the cluster that submitted it."""

from __future__ import annotations

import logging
from dataclasses import replace

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import JobRecord

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
