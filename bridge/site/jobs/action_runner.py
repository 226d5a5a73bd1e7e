"""Runs the actions that are due for jobs: on their scripts, in the batch system and in the site's directory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from bridge import job_ends
from bridge.clock import Clock
from bridge.core.isolation import isolated
from bridge.core.job_lifecycle import NEVER
from bridge.errors import BatchError, BatchUnknownOutcomeError, SiteRefusedError
from bridge.logs import kv
from bridge.site.batch.batch_interface import BatchJob, BatchSystem
from bridge.site.jobs import job_status, member_record
from bridge.site.jobs.job_actions import JobAction, due_actions
from bridge.site.jobs.job_index import Entry, JobIndex
from bridge.site.jobs.job_record import JobRecord
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

SECRETS_KEPT = 60.0
"""Seconds after the batch system reported a job's end: the guard of a killed script still reads ``job.sh``."""
SECRETS_LOOKS = 200
"""Directories of ended jobs from which secrets are removed after each list of jobs, at most."""


class ActionRunner:
    """Runs actions for the jobs of an index, in the leader.

    ``resubmit`` submits a job again whose submission got no answer; ``settle``: seconds that such a job may take to
    appear. ``owners``: UIDs of the batch system's jobs by id, as last listed; ``listed_at``: when that was requested.
    """

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        index: JobIndex,
        settle: float,
        clock: Clock,
        resubmit: Callable[[str], None],
    ) -> None:
        self.owners: Mapping[str, str] = {}
        self.listed_at = NEVER
        self._folder, self._batch, self._index, self._clock = folder, batch, index, clock
        self._settle, self._resubmit = settle, resubmit

    def run_cancellations(self) -> None:
        """Run what is due for jobs whose cancellation was requested since the last call."""
        uids, self._index.pending_cancellations = self._index.pending_cancellations, set()
        self.run(uids)

    def run(self, uids: Collection[str] | None = None) -> None:
        """Run what is due now for these jobs; ``None``: for all that are open."""
        if uids is None:
            self._index.pending_cancellations = set()
        now = self._clock.monotonic()
        ids_to_cancel: list[str] = []
        for uid in tuple(self._index.open if uids is None else uids):
            entry = self._index.entries.get(uid)
            if entry is None:
                continue
            try:
                with isolated("site", uid):
                    if entry.record.meta.attempted_at > self._clock.time():
                        self._correct_attempt(uid)
                    for action in self._due(entry, now):
                        ids_to_cancel += self._do(action, uid, entry, now)
            except OSError as error:  # a full disk, or a job that spoils its directory, which must not stop the others
                log.warning("an action is repeated later", extra=kv(job=uid, why=error.strerror))
        if ids_to_cancel:
            self.cancel(ids_to_cancel)

    def _correct_attempt(self, uid: str) -> None:
        """Store a submission after now as one of now: the clock was set back, or is that of another machine."""
        job_folder = self._folder.job(uid)
        with contextlib.suppress(BlockingIOError), self._folder.locked(uid, wait=False):  # held: it is submitted now
            meta, now = job_folder.meta(), self._clock.time()
            if meta is not None and meta.attempted_at > now:
                job_folder.write_meta(replace(meta, attempted_at=now))
        self._index.refresh(uid)

    def _due(self, entry: Entry, now: float) -> list[JobAction]:
        return due_actions(
            entry.record,
            entry.record.lifecycle(self._settle, self.listed_at),
            now,
            has_ended=entry.status.phase == "ended",
            killed_at=entry.killed_at,
            is_grace_over=now >= entry.kill_at,
        )

    def _do(self, action: JobAction, uid: str, entry: Entry, now: float) -> list[str]:
        """Run an action; return the batch jobs to cancel."""
        match action:
            case JobAction.KILL:
                entry.killed_at = now
                return self._kill(entry.record)
            case JobAction.STOP:
                cancel = entry.record.cancel
                self.stop(uid, cancel.grace if cancel is not None and entry.record.started else 0, "Deleted")
            case JobAction.SUBMIT:
                self._submit_again(uid)
            case JobAction.GIVE_UP:
                self._index.observe(uid, BatchJob(id="", uid=uid, phase="ended", reason=job_ends.CANCELLED.site_reason))
            case JobAction.FORGET:
                self._forget(uid)
        return []

    def stop(self, uid: str, grace: float, reason: str) -> None:
        """Request that a job's script ends within ``grace`` seconds."""
        try:
            self._folder.job(uid).ask_to_stop(grace, reason)
        except FileNotFoundError:
            self._index.refresh(uid)

    def _kill(self, record: JobRecord) -> list[str]:
        """Return the batch job to cancel; or end a pod that shares its batch job with other pods."""
        uid, place = record.uid, record.meta.place
        if place is None:
            job_id = record.job_id or record.started_job
            # a batch system that lost its records assigns the same ids again
            return [job_id] if self.owners.get(job_id, uid) == uid else []
        with contextlib.suppress(FileNotFoundError):
            if not member_record.retire(self._folder.job(uid)):
                member_record.kill(self._folder.job(place.gang), uid, place.rank)
        self._index.refresh(uid)
        return []

    def cancel(self, ids: Iterable[str]) -> None:
        """End jobs in the batch system; if it does not answer, the next list of jobs repeats the cancellation."""
        job_ids = list(ids)
        try:
            self._batch.cancel(job_ids)
        except BatchError as error:
            log.warning("batch jobs not cancelled yet", extra=kv(ids=len(job_ids), why=error))
            failed = set(job_ids)
            with self._index.lock:
                for entry in self._index.entries.values():
                    if entry.record.job_id in failed:
                        entry.killed_at = None

    def _submit_again(self, uid: str) -> None:
        try:
            self._resubmit(uid)
        except BatchUnknownOutcomeError as error:
            log.warning("submit without an answer", extra=kv(job=uid, why=error))
        except (BatchError, SiteRefusedError) as error:  # also: the job of the pod's group is over
            log.warning("submit refused", extra=kv(job=uid, why=error))
            if not error.retryable:
                job = BatchJob(id="", uid=uid, phase="ended", reason=error.reason, message=str(error))
                self._index.observe(uid, job)
        except OSError as error:  # a full disk; the next run of the actions repeats it
            log.warning("not submitted again yet", extra=kv(job=uid, why=error.strerror))
        self._index.refresh(uid)

    def drop_secrets(self, now: float) -> None:
        """Remove the secrets of jobs whose script was killed, or never started."""
        with self._index.lock:
            entries = [entry for entry in self._index.entries.values() if not entry.without_secrets]
        ended = [entry for entry in entries if entry.status.phase == "ended" and entry.record.end_confirmed]
        kept = (SECRETS_KEPT if entry.record.started else 0 for entry in ended)
        due = [
            entry for entry, seconds in zip(ended, kept, strict=True) if not 0 <= now - entry.record.batch_at < seconds
        ]
        for entry in due[:SECRETS_LOOKS]:
            job_folder = self._folder.job(entry.record.uid)
            with isolated("site", job_folder.uid), self._folder.locked(job_folder.uid):
                if job_folder.meta() == entry.record.meta:  # else the directory has a new job by now
                    job_folder.drop_secrets()
                    entry.without_secrets = True

    def _forget(self, uid: str) -> None:
        try:
            if (entry := self._index.entries.get(uid)) is not None:
                # before the removal: a late submission would otherwise run the pod again
                record = entry.record
                if record.meta.gang is not None and job_status.has_no_grant(record):
                    ids = filter(None, (record.job_id or record.started_job,))
                    self._folder.mark_unused(uid, (*record.meta.replaced, *ids))
                else:
                    self._folder.mark_forgotten(uid, record.meta.owner)
            self._folder.job(uid).remove()
        except OSError as error:
            log.warning("a job is not removed yet", extra=kv(job=uid, why=error.strerror))
        self._index.refresh(uid)
