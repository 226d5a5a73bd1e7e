"""Watching: what changes in the folders is seen several times a second, what changes in the batch system each period.

One submitter of a pool is on duty at a time: it holds a lock that goes with its process. It alone looks, publishes
and tends jobs. All that it knows stands in the folders, so another can take over at any moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.errors import BatchError
from bridge.logs import kv
from bridge.site import status as job_status
from bridge.site.action_runner import ActionRunner
from bridge.site.batch.port import BatchJob, BatchSystem
from bridge.site.batch_list import BatchList
from bridge.site.folder import Folder
from bridge.site.job_actions import confirmed
from bridge.site.job_index import Entry, JobIndex, is_missing
from bridge.wire.messages import JobStatus

log = logging.getLogger(__name__)

LEADER_LOCK = "duty"
SEQUENCE = "duty.json"
SWEEP_PERIOD = 3600.0
SECRETS_KEPT = 60.0
"""Seconds after the batch system has told a job's end: what is left of a killed script still reads ``job.sh``."""
SECRETS_LOOKS = 200
"""Folders of ended jobs that are looked through for secrets at each look at the batch system."""
UNHEARD = 10
"""Times as long may a job be missing while its batch system keeps records that can't be had now."""
ATTEMPTS = 3
"""Submits of one job, where the batch system loses it."""
REREAD = 20
"""Running jobs whose folder is read again at each look, whether or not it said so: touched files may get lost."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: see ``[batch]`` of the configuration."""

    settle: float
    lost_after: float
    lag: float


class Watcher:
    """Watches all jobs of a folder while on duty.

    ``publish`` gets each changed status with its number. ``resubmit`` asks the batch system again for a job whose
    submit was never answered. ``name`` tells this process from all others.
    """

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        patience: Patience,
        name: str,
        clock: Clock,
        publish: Callable[[int, JobStatus], None],
        resubmit: Callable[[str], None],
        batch_list: BatchList,
    ) -> None:
        self.name = name
        self.problem = ""
        """Why the batch system can't be asked; empty: it answers."""
        self.looked_at: float | None = None
        self._folder, self._batch, self._patience, self._clock = folder, batch, patience, clock
        self._batch_list = batch_list
        self.index = JobIndex(folder, patience.lag, clock, publish)
        self.actions = ActionRunner(folder, batch, self.index, patience.settle, clock, resubmit)
        self._leadership: int | None = None
        self._swept_at = 0.0
        self._noted: dict[str, int] | None = None

    # --- duty ---------------------------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this process watches."""
        return self._leadership is not None

    def take_leadership(self) -> bool:
        """Try to be the one who watches; reads everything when that succeeds."""
        if self._leadership is not None:
            return True
        descriptor = os.open(self._folder.path / LEADER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._begin()
        self._leadership = descriptor
        return True

    def release_leadership(self) -> None:
        """Let another take over at once."""
        with self.index.lock:
            if self._leadership is not None:
                os.close(self._leadership)
                self._leadership = None

    def _begin(self) -> None:
        self._look_after(self.index.load())
        self._note()
        log.info("on duty", extra=kv(submitter=self.name, jobs=len(self.index.entries)))

    def _note(self) -> None:
        """Let the other submitters know how far events have gone."""
        with self.index.lock:
            if self._noted != self.index.sequences:
                self._folder.note(SEQUENCE, {"submitter": self.name, "sequences": self.index.sequences})
                self._noted = dict(self.index.sequences)

    def _look_after(self, uids: Iterable[str]) -> None:
        """Take up jobs of submitters that died before they could tell; remove folders that were never finished."""
        gone: set[str] | None = None
        for uid in uids:
            gone = self._folder.all_gone() if gone is None else gone
            with contextlib.suppress(BlockingIOError), self._folder.locked(uid, wait=False):  # else it is being made
                job = self._folder.job(uid)
                if job.exists() and (job.unfinished() or (uid in gone and job.read() is None)):
                    job.remove()
                    log.warning("folder without a job removed", extra=kv(job=uid))
                else:
                    self.index.refresh(uid)

    # --- looking at folders -------------------------------------------------------------------------------------------
    def look_at_changes(self) -> int:
        """Read the folders of jobs that say they changed; gives their number."""
        changed = self._folder.take_changed()
        now = self._clock.time()
        for uid in changed:
            self.index.refresh(uid)
        for uid in tuple(self.index.pending):
            entry = self.index.entries.get(uid)
            if entry is not None and now - entry.record.batch_at >= self._patience.lag:
                self.index.refresh(uid)
        self._note()
        return len(changed)

    # --- looking at the batch system ----------------------------------------------------------------------------------
    def look_at_batch(self) -> None:
        """Ask the batch system once about all jobs, note what it says, and do what is to be done."""
        asked_at = self._clock.time()
        try:
            found = self._batch_list.take()
        except BatchError as error:
            self._complain(str(error))
        else:
            self._complain("")
            self._compare(found, asked_at)
            self.looked_at = asked_at
        self._reread()
        self.actions.run()
        self._drop_secrets(asked_at)
        if asked_at - self._swept_at >= SWEEP_PERIOD:
            self._look_after(uid for uid in self._folder.uids() if uid not in self.index.entries)
            self._folder.sweep(asked_at)
            self._swept_at = asked_at

    def _drop_secrets(self, now: float) -> None:
        """Remove what scripts left that were killed, or that the batch system never started."""
        with self.index.lock:
            ended = [entry for entry in self.index.entries.values() if not entry.without_secrets]
        ended = [
            entry
            for entry in ended
            if entry.status.phase == "ended"
            and confirmed(entry.record)
            and now - entry.record.batch_at >= (SECRETS_KEPT if entry.record.started else 0)
        ]
        for entry in ended[:SECRETS_LOOKS]:
            self._folder.job(entry.record.uid).drop_secrets()
            entry.without_secrets = True

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            if problem:
                log.warning("the batch system does not answer", extra=kv(why=problem))
            else:
                log.info("the batch system answers again")
            self.problem = problem

    def _compare(self, found: dict[str, BatchJob], asked_at: float) -> None:
        self.actions.owners = {job.id: job.uid for job in found.values()}
        by_uid: dict[str, list[BatchJob]] = {}
        for job in found.values():
            by_uid.setdefault(job.uid, []).append(job)
        surplus: list[str] = []
        vanished: dict[str, Entry] = {}
        for uid in tuple(self.index.open):
            entry = self.index.entries.get(uid)
            if entry is None or confirmed(entry.record):
                continue
            mine = by_uid.get(uid, [])
            job_id = entry.record.job_id or entry.record.started_job
            if not job_id and mine:
                # the submit was never answered; more than one job: the one that was there first is the one
                job_id = min(mine, key=lambda job: _number(job.id)).id
            if job_id and not entry.record.job_id:
                self._folder.job(uid).write_id(job_id)
                self.index.refresh(uid)
            surplus += [job.id for job in mine if job.id != job_id and job.phase != "ended"]
            if job_id in found and found[job_id].uid == uid:
                entry.missing_since, entry.missing_looks = None, 0
                self.index.observe(uid, found[job_id])
            elif job_id and entry.id_at < asked_at:
                vanished[job_id] = entry
        unknown = by_uid.keys() - self.index.entries.keys()
        gone = self._folder.all_gone() if unknown else set()
        surplus += [
            job.id
            for uid in unknown & gone
            if self._folder.job(uid).read() is None  # else another owner's, who has not given it up
            for job in by_uid[uid]
            if job.phase != "ended"
        ]
        self._look_for(vanished, asked_at)
        if surplus:
            log.warning("surplus batch jobs cancelled", extra=kv(ids=",".join(surplus)))
            self.actions.cancel(surplus)

    def _look_for(self, vanished: dict[str, Entry], now: float) -> None:
        """The batch system no longer lists these jobs: find out how they ended."""
        asked = [
            job_id
            for job_id, entry in vanished.items()
            if not entry.record.final or job_status.awaits_why(entry.record, now)
        ]
        past: dict[str, BatchJob] = {}
        patience = self._patience.lost_after
        if asked:
            try:
                past = self._batch.past(asked)
            except BatchError as error:
                patience *= UNHEARD
                log.warning("no records of ended jobs", extra=kv(why=error))
        for job_id, entry in vanished.items():
            uid = entry.record.uid
            told = past.get(job_id)
            if told is not None and told.uid == uid:  # else the id was given again
                self.index.observe(uid, told)
                continue
            entry.missing_since = now if entry.missing_since is None else entry.missing_since
            entry.missing_looks += 1
            fresh = self.index.refresh(uid)
            if fresh is None:
                continue
            gone = BatchJob(id=job_id, uid=uid, phase="ended", reason=job_status.LOST)
            if fresh.record.final:
                self.index.observe(uid, replace(gone, reason="", by_itself=True))
            elif is_missing(fresh.record) or (entry.missing_looks >= 2 and now - entry.missing_since >= patience):
                self._lose(fresh, gone)

    def _lose(self, entry: Entry, gone: BatchJob) -> None:
        """The batch system has no record of a job, as after a crash: what never began is submitted again.

        A job that began is reported as missing. It is ended once the hub has cancelled it: if many jobs are missing,
        the batch system may have lost its state for a while only, and the hub holds them.
        """
        record, where = entry.record, self._folder.job(entry.record.uid)
        if not record.started and record.cancel is None and record.meta.attempts < ATTEMPTS:
            log.warning("the batch system lost a job that had not begun", extra=kv(job=record.uid, id=gone.id))
            where.drop_id()
            entry.missing_since, entry.missing_looks = None, 0
            self.index.refresh(record.uid)
            return
        if record.started and record.cancel is None:
            known = record.batch if record.batch is not None else gone
            self.index.observe(record.uid, replace(known, phase="missing"))
            return
        if record.started:  # should anything of it still run, after all
            self.actions.stop(record.uid, 0, job_status.LOST)
        message = "the batch system no longer knows the job, and its script did not write down an end"
        self.index.observe(record.uid, replace(gone, message=message))

    def _reread(self) -> None:
        running = [self.index.entries[uid] for uid in tuple(self.index.open) if uid in self.index.entries]
        for entry in sorted(running, key=lambda entry: entry.read_at)[:REREAD]:
            self.index.refresh(entry.record.uid)


def _number(job_id: str) -> tuple[int, str]:
    digits = job_id.partition(".")[0]
    return (int(digits), job_id) if digits.isdigit() else (0, job_id)
