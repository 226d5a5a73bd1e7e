"""Submits equal pods of one owner as one array: one command for many batch jobs. Only the leader does, in one thread.

Each pod keeps its directory, its script and its batch job, so only the submission differs. It writes, in this order:
the file of the array (:mod:`bridge.site.batch.array_files`), on disk; in the directory of each pod its index, in
``job.json``; after the submission, the id of each pod's batch job.

| killed after | what follows |
|---|---|
| the directory of a pod | the leader submits it with the others that wait |
| the file of the array | the next leader gives each of its pods their index, as if the submission got no answer |
| the submission, without the ids | the list of the batch system's jobs shows the job of each pod |

After a submission without an answer, the pods wait until the array would have appeared. Those that are not in it then
wait for another array. If the first one appears still later, the jobs of its pods are surplus, and are cancelled.
"""

from __future__ import annotations

import logging
import math
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.core.grouping import grouped
from bridge.core.isolation import isolated
from bridge.core.job_lifecycle import State
from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.logs import kv
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.batch_interface import BatchJob, BatchSystem, Phase
from bridge.site.batch_requests import BatchSubmission
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs.job_index import JobIndex
from bridge.site.jobs.job_record import JobRecord, Task, shape
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

QUIET = 0.4
"""Seconds without another pod after which an array is submitted."""
RETRY = 10.0
"""Seconds between two submissions of pods that the batch system refuses for now."""
LIMIT_KEPT = 600.0
"""Seconds until the batch system's limit of an array is read again."""
_ABOUT_ARRAYS = re.compile(r"\barrays?\b", re.IGNORECASE)


def runs_arrays(batch: BatchSystem, config: SiteConfig) -> bool:
    """Return whether pods can be one array at the site: the flags of interLink's rules are those of one job."""
    return batch.arrays and not config.limits.by_interlink


@dataclass(slots=True)
class Waiting:
    """Equal pods of one owner. Times are monotonic; ``size``: of the next array, at most, after other limits."""

    uids: list[str]
    since: float
    changed_at: float
    retry_at: float = 0.0
    size: int | None = None

    def is_due(self, now: float, longest: float) -> bool:
        """Return whether no other pod comes soon, or the first has waited ``longest`` seconds."""
        return now >= self.retry_at and (now - self.changed_at >= QUIET or now - self.since >= longest)


class ArraySubmission:
    """The pods that wait for an array; ``settle``: seconds that a job may take to appear in the batch system."""

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        submission: BatchSubmission,
        index: JobIndex,
        clock: Clock,
        settle: float,
    ) -> None:
        self._folder, self._batch, self._submission, self._index = folder, batch, submission, index
        self._clock, self._settle = clock, settle
        self._files = ArrayFiles(folder.path)
        self._collected: set[str] | None = None
        self._waiting: dict[tuple[object, ...], Waiting] = {}
        self._is_recovered = False
        self._limit, self._limit_read_at = 0, -math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether a pod waits for an array."""
        return bool(self._index.awaiting_array)

    def run(self, longest: float) -> None:
        """Submit what is due. No pod waits longer than ``longest`` seconds for other pods."""
        if not self._is_recovered:
            self._recover()
            self._is_recovered = True
        self._collect()
        for waiting in tuple(self._waiting.values()):
            now = self._clock.monotonic()
            if waiting.is_due(now, longest):
                waiting.retry_at = now + RETRY  # also after an unexpected error
                with isolated("site", waiting.uids[0] if waiting.uids else ""):
                    self._submit_all(waiting)

    def resubmit(self, record: JobRecord) -> None:
        """Find the jobs of the array of a pod after a submission without an answer; raises :class:`BatchError`.

        Its pods without a job wait for another array.
        """
        if record.meta.task is None:
            return
        array, requested_at = record.meta.task.array, self._clock.time()
        ids = self._batch.find_array(array)
        for uid in self._files.uids(array) or (record.uid,):
            job_folder = self._folder.job(uid)
            pod = job_folder.read()
            if pod is None or pod.meta.task is None or pod.meta.task.array != array or pod.cancel is not None:
                continue
            if pod.lifecycle(self._settle).state is not State.UNKNOWN:
                continue
            if uid in ids:
                job_folder.write_id(ids[uid])
            elif pod.lifecycle(self._settle, requested_at).is_absent:
                log.info("submitting again", extra=kv(job=uid, array=array))
                job_folder.write_meta(replace(pod.meta, task=None), sync=False)
            self._index.refresh(uid)

    def _recover(self) -> None:
        """Give the pods of arrays their index if the last leader was killed, or the power failed, before it did."""
        for _, array in self._files.written():
            for index, uid in enumerate(self._files.uids(array)):
                entry = self._index.entries.get(uid)
                if entry is None or not entry.record.meta.array or entry.record.meta.task is not None:
                    continue
                with isolated("site", uid):
                    if replace(entry.record, cancel=None).lifecycle(self._settle).state is State.WANTED:
                        self._take_index(entry.record, array, index)
                        self._index.refresh(uid)

    def _take_index(self, record: JobRecord, array: str, index: int) -> None:
        meta, now = record.meta, self._clock.time()
        # without fsync: the file of the array is on disk
        self._folder.job(record.uid).write_meta(
            replace(meta, task=Task(array, index), attempts=meta.attempts + 1, attempted_at=now), sync=False
        )

    # --- the pods that wait -------------------------------------------------------------------------------------------
    def _collect(self) -> None:
        """Sort the pods that wait, if others wait than at the last call."""
        now = self._clock.monotonic()
        with self._index.lock:
            if self._collected == self._index.awaiting_array:
                return
            self._collected = set(self._index.awaiting_array)
            records = [self._index.entries[uid].record for uid in self._collected]
        records.sort(key=lambda record: (record.meta.submitted_at, record.meta.name))
        uids_by_key = grouped(((each.meta.owner, each.meta.array, *shape(each.meta)), each.uid) for each in records)
        for key in self._waiting.keys() - uids_by_key.keys():
            del self._waiting[key]
        for key, uids in uids_by_key.items():
            waiting = self._waiting.setdefault(key, Waiting([], now, now))
            if waiting.uids != uids:
                waiting.uids, waiting.changed_at = uids, now

    def _submit_all(self, waiting: Waiting) -> None:
        """Submit arrays for all pods; after a refusal smaller ones, down to one pod alone.

        A limit on a user's jobs refuses an array as a whole, though some of its jobs would be within the limit; it may
        have room for larger ones soon. A limit of arrays applies to all that follow.
        """
        try:
            self._read_limit()
        except BatchError as error:
            self._refused_for_now(waiting, error)
            return
        uids = list(waiting.uids)
        while uids:
            size = min(self._limit, len(uids), waiting.size or len(uids))
            try:
                self._submit(uids[:size])
            except BatchUnknownOutcomeError as error:
                log.warning("submit without an answer", extra=kv(job=uids[0], jobs=size, why=error))
            except BatchError as error:
                log.warning("submit refused", extra=kv(job=uids[0], jobs=size, why=error))
                if size > 1 and _ABOUT_ARRAYS.search(str(error)):
                    self._limit = size // 2
                    continue
                if size > 1 and error.retryable:
                    waiting.size = size // 2
                    continue
                if error.retryable:
                    self._refused_for_now(waiting, error)
                    return
                self._show(uids[:size], "ended", error)  # equal pods: the batch system would refuse each of them
            except OSError as error:  # a full disk
                log.warning("not submitted yet", extra=kv(job=uids[0], jobs=size, why=error.strerror))
                waiting.retry_at = self._clock.monotonic() + RETRY
                return
            else:
                waiting.size = None if waiting.size is None or size == self._limit else max(waiting.size, 2 * size)
            uids = uids[size:]
        # pods that come from now on wait for each other again
        waiting.uids, waiting.since, waiting.retry_at, self._collected = [], self._clock.monotonic(), 0.0, None

    def _read_limit(self) -> None:
        now = self._clock.monotonic()
        if now - self._limit_read_at >= LIMIT_KEPT:
            self._limit, self._limit_read_at = max(1, self._batch.most_in_array()), now

    def _refused_for_now(self, waiting: Waiting, error: BatchError) -> None:
        waiting.retry_at = self._clock.monotonic() + RETRY
        self._show([uid for uid in waiting.uids if uid in self._index.awaiting_array], "queued", error)

    def _show(self, uids: Sequence[str], phase: Phase, error: BatchError) -> None:
        for uid in uids:
            self._index.observe(uid, BatchJob(id="", uid=uid, phase=phase, reason=error.reason, message=str(error)))

    def _submit(self, uids: Sequence[str]) -> None:
        """Submit pods that still wait; raises :class:`BatchError`, after which they wait again, and OSError."""
        read_records = [self._folder.job(uid).read() for uid in uids]
        records = [record for record in read_records if record is not None and record.awaits_array]
        try:
            if len(records) == 1:
                self._submit_alone(records[0])
            elif records:
                self._submit_array(records)
        finally:
            for uid in uids:
                self._index.refresh(uid)

    def _submit_alone(self, record: JobRecord) -> None:
        """Submit a pod as a job without an array, which it is from then on."""
        job_folder = self._folder.job(record.uid)
        with self._folder.locked(record.uid):
            try:
                self._submission.find_or_submit(replace(record, meta=replace(record.meta, array="")))
            except BatchUnknownOutcomeError:
                raise
            except BatchError:
                job_folder.write_meta(record.meta)
                raise

    def _submit_array(self, records: Sequence[JobRecord]) -> None:
        array = str(uuid.uuid4())
        pods = tuple(record.uid for record in records)
        self._files.write(array, pods, sync=self._folder.sync)
        for index, record in enumerate(records):
            self._take_index(record, array, index)
        request = replace(self._submission.request(records[0].uid, records[0].meta), array=array)
        try:
            ids = self._batch.submit_array(request, pods)
        except BatchUnknownOutcomeError:
            raise
        except BatchError:
            for record in records:
                self._folder.job(record.uid).write_meta(record.meta, sync=False)
            self._files.remove(array)  # last: until then, the next leader looks for the array
            raise
        for uid, job_id in zip(pods, ids, strict=True):
            self._folder.job(uid).write_id(job_id)
        log.info("submitted an array", extra=kv(array=array, jobs=len(records), first=ids[0]))
