"""The watcher: reads changes of job directories several times a second, and the batch system's list once a period.

One submitter of a pool is the leader. It holds a lock, which the kernel releases when the process ends. Only the leader
watches, publishes and runs actions. All that it knows is in the directories, so another can take over at any moment.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace

from bridge import job_ends
from bridge.clock import Clock
from bridge.core.grouping import grouped
from bridge.core.isolation import isolated
from bridge.core.job_lifecycle import Event
from bridge.errors import BatchError
from bridge.logs import kv
from bridge.protocol.model.jobs import JobStatus
from bridge.site.batch.batch_interface import BatchJob, BatchSystem
from bridge.site.batch_requests import BatchList, Delays
from bridge.site.gangs.gang_keeper import GangKeeper
from bridge.site.jobs import job_status
from bridge.site.jobs.action_runner import ActionRunner
from bridge.site.jobs.job_index import Entry, JobIndex, is_missing
from bridge.site.jobs.site_folder import Folder, FolderProblems

log = logging.getLogger(__name__)

LEADER_LOCK = "duty"
SEQUENCE = "duty.json"
SWEEP_PERIOD = 3600.0
UNHEARD = 10
"""Factor on ``batch.lost_after`` while the batch system's records of ended jobs can't be read."""
ATTEMPTS = 3
"""Submissions of one job that the batch system loses, at most."""
REREAD = 20
"""Running jobs whose directory is read again after each list of jobs: notifications may get lost."""


class Watcher:
    """Watches all jobs of a directory while it is the leader.

    ``publish`` gets each changed status with its number. ``resubmit`` submits a job again whose submission got no
    answer. ``name`` distinguishes this process from all others.
    """

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        delays: Delays,
        name: str,
        clock: Clock,
        publish: Callable[[int, JobStatus], None],
        resubmit: Callable[[str], None],
        batch_list: BatchList,
    ) -> None:
        self.name = name
        self.problem = ""
        """Error of the batch system; empty: it answers."""
        self.folder_problems = FolderProblems(folder.path)
        self._folder, self._batch, self._delays, self._clock = folder, batch, delays, clock
        self._batch_list = batch_list
        self.index = JobIndex(folder, delays.lag, clock, publish)
        self.actions = ActionRunner(folder, batch, self.index, delays.settle, clock, resubmit)
        self._gangs = GangKeeper(folder, self.index, clock)
        self._leadership: int | None = None
        self._swept_at = 0.0
        self._noted_sequences: dict[str, int] | None = None

    # --- leadership ---------------------------------------------------------------------------------------------------
    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader."""
        return self._leadership is not None

    def take_leadership(self) -> bool:
        """Try to become the leader, and read all jobs; return whether this process is the leader."""
        if self._leadership is not None:
            return True
        descriptor = os.open(self._folder.path / LEADER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # the lock ends with its process; a server of NFS 4 may hold it for about 90 s longer
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        with self.folder_problems.noted("read all jobs"):
            self._adopt_or_remove(self.index.load())
            # the other submitters answer snapshots with these numbers: they must be those of this leader
            self._note()
            log.info("leader", extra=kv(submitter=self.name, jobs=len(self.index.entries)))
            # last: from here on, the other threads poll, publish and act
            self._leadership = descriptor
            return True
        os.close(descriptor)
        return False

    def release_leadership(self) -> None:
        """Let another submitter take over at once."""
        with self.index.lock:
            if self._leadership is not None:
                os.close(self._leadership)
                self._leadership = None

    def _note(self) -> None:
        """Write the numbers of the last events for the other submitters."""
        with self.index.lock, self.folder_problems.noted("store the numbers of events"):
            if self._noted_sequences != self.index.sequences:
                self._folder.note(SEQUENCE, {"submitter": self.name, "sequences": self.index.sequences})
                self._noted_sequences = dict(self.index.sequences)

    def _adopt_or_remove(self, uids: Iterable[str]) -> None:
        """Index jobs of submitters that died before they notified the leader; remove incomplete directories."""
        forgotten_uids: set[str] | None = None
        for uid in uids:
            forgotten_uids = self._folder.all_forgotten() if forgotten_uids is None else forgotten_uids
            # a lock that is held: another process creates the job
            with contextlib.suppress(BlockingIOError), isolated("site", uid), self._folder.locked(uid, wait=False):
                job = self._folder.job(uid)
                if job.exists() and (job.unfinished() or (uid in forgotten_uids and job.read() is None)):
                    job.remove()
                    log.warning("removed a directory without a job", extra=kv(job=uid))
                else:
                    self.index.refresh(uid)

    # --- job directories ----------------------------------------------------------------------------------------------
    def read_changes(self) -> int:
        """Read the directories of jobs with a notification of a change; return their number."""
        changed: list[str] = []
        # scripts touch a file in one directory: a poll costs as much as the number of changes, not of jobs
        with self.folder_problems.noted("read changes"):
            changed = self._folder.take_changed()
        now = self._clock.time()
        for uid in tuple(self.index.pending):
            entry = self.index.entries.get(uid)
            if entry is not None and not 0 <= now - entry.record.batch_at < self._delays.lag:
                changed.append(uid)
        changed += self.index.due()
        for uid in changed:
            with isolated("site", uid):
                self.index.refresh(uid)
        self._note()
        return len(changed)

    # --- the batch system ---------------------------------------------------------------------------------------------
    def poll_batch_system(self) -> None:
        """Query the batch system's list of jobs once, record it, and run the actions that are due."""
        requested_at, asked_at = self._clock.time(), self._clock.monotonic()
        try:
            listed_jobs = self._batch_list.fetch()
        except BatchError as error:
            self._set_problem(str(error))
        else:
            self._set_problem("")
            with self.folder_problems.noted("compare the lists of jobs"):
                self.actions.listed_at = requested_at
                self._compare(listed_jobs, asked_at)
        with self.folder_problems.noted("run actions"):
            self._reread()
            self._gangs.run()
            self.actions.run()
        with self.folder_problems.noted("remove what is not needed"):
            self._tidy(requested_at)

    def _tidy(self, now: float) -> None:
        self.actions.drop_secrets(now)
        if now - self._swept_at >= SWEEP_PERIOD:
            self._adopt_or_remove(uid for uid in self._folder.uids() if uid not in self.index.entries)
            self._folder.sweep(now)
            self._swept_at = now

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("the batch system does not answer", extra=kv(why=problem))
        elif self.problem and not problem:
            log.info("the batch system answers again")
        self.problem = problem

    def _compare(self, listed: dict[str, BatchJob], asked_at: float) -> None:
        """Record what a list says of each job, and cancel surplus batch jobs; ``asked_at``: when it was requested."""
        self.actions.owners = {job.id: job.uid for job in listed.values()}
        jobs_by_uid = grouped((job.uid, job) for job in listed.values())
        surplus, vanished = list[str](), dict[str, Entry]()
        for uid in tuple(self.index.open):
            with isolated("site", uid):
                entry, other_ids = self._find_job(uid, jobs_by_uid.get(uid, ()))
                surplus += other_ids
                if entry is not None and self._is_missing_in(listed, entry, asked_at):
                    vanished[entry.record.job_id] = entry
        unknown_uids = {job.uid for job in listed.values() if job.phase != "ended"} - self.index.entries.keys()
        forgotten_uids = self._folder.all_forgotten() if unknown_uids else set()
        # a batch job without a record may belong to another folder of this pool: only a released one is cancelled
        for uid in unknown_uids & forgotten_uids:
            with isolated("site", uid):
                if self._folder.job(uid).read() is None:  # else the job of another owner, which has not released it
                    surplus += [job.id for job in jobs_by_uid[uid] if job.phase != "ended"]
        self._find_ends(vanished, asked_at)
        if surplus:
            log.warning("surplus batch jobs cancelled", extra=kv(ids=",".join(surplus)))
            self.actions.cancel(surplus)

    def _find_job(self, uid: str, listed: Sequence[BatchJob]) -> tuple[Entry | None, list[str]]:
        """Return the entry of a job that the list should have, and the ids of other batch jobs, to be cancelled."""
        entry = self.index.entries.get(uid)
        # the batch system has no job of a pod that runs in the job of its group
        if entry is None or entry.record.end_confirmed or entry.record.meta.place is not None:
            return None, []
        # replaced jobs may still be listed while they end: they are neither this job nor surplus
        ids = {entry.record.job_id, *entry.record.meta.replaced}
        if any(job.id not in ids for job in listed) or (entry.record.started_job and not entry.record.job_id):
            return self._identify(uid, listed)
        return entry, []

    def _identify(self, uid: str, listed: Sequence[BatchJob]) -> tuple[Entry | None, list[str]]:
        """Do so for a job with an id to write down; ``None`` while a request is submitting or replacing it."""
        try:
            with self._folder.locked(uid, wait=False):
                entry = self.index.refresh(uid)
                if entry is None:
                    return None, []
                candidates = [job for job in listed if job.id not in entry.record.meta.replaced]
                job_id = entry.record.job_id or entry.record.started_job
                if not job_id and candidates:
                    # the submission got no answer; of several jobs, the oldest is kept
                    job_id = min(candidates, key=lambda job: _number(job.id)).id
                if job_id and not entry.record.job_id:
                    self._folder.job(uid).write_id(job_id)
                    entry = self.index.refresh(uid)
                return entry, [job.id for job in candidates if job.id != job_id and job.phase != "ended"]
        except BlockingIOError:
            return None, []
        except OSError as error:
            log.warning("the id of a batch job is not stored yet", extra=kv(job=uid, why=error.strerror))
            return None, []

    def _is_missing_in(self, listed: dict[str, BatchJob], entry: Entry, asked_at: float) -> bool:
        """Record the state of a job that is listed; return whether a submitted one is not."""
        job_id = entry.record.job_id
        job = listed.get(job_id)
        # an id that was assigned again belongs to another pod, or to no pod of podbridge
        if job is None or job.uid != entry.record.uid:
            # a job that was submitted after the request may be missing in the answer
            return bool(job_id) and entry.lifecycle.answered_at < asked_at
        if entry.lifecycle.is_absent:
            entry.lifecycle = entry.lifecycle.shown(Event.QUEUED, asked_at)
        self.index.observe(job.uid, job)
        return False

    def _find_ends(self, vanished: dict[str, Entry], asked_at: float) -> None:
        """Find out how jobs ended that the batch system no longer lists."""
        now = self._clock.time()
        ids_to_query = [
            job_id
            for job_id, entry in vanished.items()
            if not entry.record.final or job_status.awaits_reason(entry.record, now)
        ]
        past_jobs: dict[str, BatchJob] = {}
        lost_after = self._delays.lost_after
        arrays = self._listed_arrays() if any(entry.record.meta.task for entry in vanished.values()) else set()
        if ids_to_query:
            try:
                past_jobs = self._batch.past(ids_to_query)
            except BatchError as error:
                lost_after *= UNHEARD
                log.warning("no records of ended jobs", extra=kv(why=error))
        for job_id, entry in vanished.items():
            uid, past_job = entry.record.uid, past_jobs.get(job_id)
            with isolated("site", uid):
                if past_job is not None and past_job.uid == uid:  # else the id was assigned again
                    self.index.observe(uid, past_job)
                else:
                    entry.lifecycle = entry.lifecycle.denied(asked_at, lost_after)
                    self._find_end_without_record(uid, job_id, asked_at, arrays)

    def _find_end_without_record(self, uid: str, job_id: str, asked_at: float, arrays: Set[str]) -> None:
        # the script may have recorded its end since its directory was last read
        entry = self.index.refresh(uid)
        if entry is None or job_id in entry.record.meta.replaced:
            return
        lost_job = BatchJob(id=job_id, uid=uid, phase="ended", reason=job_status.LOST)
        if entry.record.final:
            self.index.observe(uid, replace(lost_job, reason="", by_itself=True))
        elif _left_its_array(entry, asked_at, arrays):
            message = "the job was cancelled while it waited: the batch system keeps no record of it in its array"
            self.index.observe(uid, replace(lost_job, reason=job_ends.CANCELLED.site_reason, message=message))
        elif is_missing(entry.record) or entry.lifecycle.is_lost:
            self._handle_lost(entry, lost_job)

    def _listed_arrays(self) -> set[str]:
        """Return the arrays of which the batch system has listed a job, or a record without an index."""
        uids = set(self.actions.owners.values())
        entries = (self.index.entries.get(uid) for uid in uids)
        return uids | {e.record.meta.task.array for e in entries if e is not None and e.record.meta.task is not None}

    def _handle_lost(self, entry: Entry, lost_job: BatchJob) -> None:
        """Submit a job again that the batch system lost before it started; report a started one as missing.

        A missing job is ended once the hub has cancelled it: if many jobs are missing, the batch system may have lost
        its state for a while only, and the hub holds their pods.

        slurmctld (observed: 24.11 and 26.05) saves the start of a job some time after the start. If it is killed before
        that, it treats the job as pending when it restarts ("Registered PENDING JobId" in its log), and has the node
        end the processes of the job.
        """
        record, job_folder = entry.record, self._folder.job(entry.record.uid)
        may_resubmit = record.meta.attempts < ATTEMPTS and not record.meta.adopted
        if not record.started and record.cancel is None and may_resubmit:
            log.warning("the batch system lost a job that had not begun", extra=kv(job=record.uid, id=lost_job.id))
            job_folder.drop_id()
            self.index.refresh(record.uid)
            return
        if record.started and record.cancel is None:
            last_seen = record.batch if record.batch is not None else lost_job
            self.index.observe(record.uid, replace(last_seen, phase="missing"))
            return
        if record.started:  # in case its script still runs
            self.actions.stop(record.uid, 0, job_status.LOST)
        message = "the batch system no longer knows the job, and its script recorded no end"
        self.index.observe(record.uid, replace(lost_job, message=message))

    def _reread(self) -> None:
        running = [entry for uid in tuple(self.index.open) if (entry := self.index.entries.get(uid)) is not None]
        for entry in sorted(running, key=lambda entry: entry.read_at)[:REREAD]:
            with isolated("site", entry.record.uid):
                self.index.refresh(entry.record.uid)


def _left_its_array(entry: Entry, asked_at: float, arrays: Set[str]) -> bool:
    """Return whether a job of an array that is no longer listed was cancelled while it was pending.

    slurmctld then removes its index from the array, and keeps no record of it. After the last one, it keeps a record of
    the array without an index (observed: 26.05). ``arrays``: those that are listed.
    """
    task = entry.record.meta.task
    if task is None or entry.record.started:
        return False
    was_killed = entry.record.cancel is not None and entry.killed_at is not None and entry.killed_at < asked_at
    return was_killed or task.array in arrays


def _number(job_id: str) -> tuple[int, str]:
    match = re.match(r"[0-9]{1,18}", job_id)
    return (int(match[0]), job_id) if match else (0, job_id)
