"""Removes the secrets of jobs that have ended."""

from __future__ import annotations

from bridge.site.jobs.job_actions import confirmed
from bridge.site.jobs.job_index import JobIndex
from bridge.site.jobs.site_folder import Folder

SECRETS_KEPT = 60.0
"""Seconds after the batch system reported a job's end: the guard of a killed script still reads ``job.sh``."""
SECRETS_LOOKS = 200
"""Directories of ended jobs from which secrets are removed after each list of jobs, at most."""


def drop_secrets(folder: Folder, index: JobIndex, now: float) -> None:
    """Remove the secrets of jobs whose script was killed, or never started."""
    with index.lock:
        ended = [entry for entry in index.entries.values() if not entry.without_secrets]
    ended = [
        entry
        for entry in ended
        if entry.status.phase == "ended"
        and confirmed(entry.record)
        and now - entry.record.batch_at >= (SECRETS_KEPT if entry.record.started else 0)
    ]
    for entry in ended[:SECRETS_LOOKS]:
        job_folder = folder.job(entry.record.uid)
        with folder.locked(job_folder.uid):
            if job_folder.meta() == entry.record.meta:  # else the directory has a new job by now
                job_folder.drop_secrets()
                entry.without_secrets = True
