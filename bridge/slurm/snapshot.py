"""The snapshot of Slurm that the whole process shares, and the poller that updates it.

If the API has ``jobs/state``, a poll reads 80 bytes a job. It reads details only of new jobs and of podbridge's jobs
that have changed (:mod:`bridge.slurm.query_plan`). In v0.0.40 and older, ``update_time`` shows whether any job has
changed, and then a poll reads all jobs. The number of polls depends on whether a change is expected, never on the
number of pending pods.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from bridge.clock import Clock, SystemClock
from bridge.config.hub import Config
from bridge.core.retries import Backoff
from bridge.errors import BridgeError, SlurmUnavailableError
from bridge.logs import kv
from bridge.slurm.hint_pace import GAP, HintPace
from bridge.slurm.job_reader import JobReader
from bridge.slurm.merging import is_busy, is_empty
from bridge.slurm.models import JobLink, Snapshot
from bridge.slurm.node_reader import NodeReader
from bridge.slurm.poll_state import UNREAD
from bridge.slurm.progress import Progress, count_jobs
from bridge.slurm.query_plan import forgotten
from bridge.slurm.shared_state import SharedState
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.state_lists import JobsOnPods, Start, StateLists, in_thread
from bridge.slurm.states import Phase, phase
from bridge.telemetry.metrics import SLURM_HINTED_POLLS, SLURM_HINTED_READS, SLURM_ID_RESETS, SNAPSHOT_AGE

log = logging.getLogger(__name__)

SETTLE = 0.1
"""Least seconds from the submission of a job, or the first report of its end, to a poll because of it."""
_WAKE_GAP = 0.25
"""Least seconds between two polls."""
REST = 0.5
"""Least pause after a poll, as a multiple of the time of this poll."""
LIST_REST = 3.0
"""Least pause after a poll, as a multiple of the time of its requests for the states of podbridge's jobs: slurmrestd
and slurmctld spend a quarter of one core on thousands of pending jobs."""
STANDBY_PERIOD = 10.0
"""Least seconds between two polls of a standby: it sends less than one request per second about 10,000 waiting pods,
and polls at once when it becomes the leader."""
EMPTY_PERIOD = 4.0
"""Least seconds between two polls of a leader while podbridge has no job in Slurm; a submission ends the pause."""
_STOP_CHECK = 0.25
READS = 3
"""Attempts to read a job for a hint while polls change the snapshot; after them, a poll decides."""
FORGET_OTHERS = 300.0
"""Seconds without an answer after which the jobs of others are read again. Slurm keeps an ended job for ``MinJobAge``,
300 s by default. Only then can it assign the id again, if its counter has reached ``MaxJobId``."""


class Poller:
    """Polls Slurm and publishes a :class:`Snapshot` after each poll that slurmctld itself has answered.

    The first published snapshot (sequence 1) is complete: the comment of every job has been read. Until then,
    ``progress`` is the number of jobs read so far. A failed poll changes only ``error``. While ``leads`` returns false,
    the process is a standby and polls every ``STANDBY_PERIOD`` seconds.
    """

    def __init__(
        self,
        client: SlurmClient,
        cluster: str,
        config: Config,
        *,
        clock: Clock | None = None,
        leads: Callable[[], bool] = lambda: True,
        jobs_on_pods: JobsOnPods | None = None,
        start: Start = in_thread,
    ) -> None:
        self._client, self._cluster, self._settings, self._leads = client, cluster, config.slurm, leads
        self._clock = clock or SystemClock()
        self._backoff = Backoff(first=config.slurm.poll_busy, limit=10)
        self._state = SharedState(self._clock)
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._hint_subscribers: list[Callable[[JobLink], None]] = []
        self._poll_lock = threading.Lock()
        self._woken = threading.Event()
        self._waiting = threading.Event()
        self._hinted = threading.Event()
        self._busier = False  # a job was submitted, or read alone: the pause may be shorter now
        self._hints = HintPace(config.hints.max_poll_rate, self._clock.monotonic())
        self._node_reader = NodeReader(client, self._clock)
        lists = StateLists(client, self._clock, jobs_on_pods, start)
        self._job_reader = JobReader(client, config.slurm.detail_budget, self._clock, lists)
        self._list_seconds, self._backlog, self._failures = 0.0, False, 0
        self._progress = Progress(self._clock)
        SNAPSHOT_AGE.set_function(self.age)

    # --- for any thread -----------------------------------------------------------------------------------------------
    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; read-only."""
        return self._state.last.snapshot

    @property
    def progress(self) -> str:
        """The number of jobs read so far; empty after the first complete reading."""
        return self._progress.text

    @property
    def expected(self) -> frozenset[int]:
        """The jobs of :meth:`expect` that no poll has read yet."""
        return frozenset(self._state.expected)

    def subscribe(self, fn: Callable[[Snapshot], None]) -> None:
        """Call ``fn`` after each new snapshot, in the thread that has published it."""
        self._subscribers.append(fn)

    def subscribe_hints(self, fn: Callable[[JobLink], None]) -> None:
        """Call ``fn`` after each snapshot in which one job is new because of a hint, with the comment of this job."""
        self._hint_subscribers.append(fn)

    def list_all(self, at: float | None = None) -> None:
        """Read a list of all jobs that is requested at the monotonic time ``at`` (now) or later, as soon as possible.

        A job without a known id may exist.
        """
        self._job_reader.lists.require_list(at)

    def hurry(self) -> None:
        """Read all jobs without a pause for the next seconds: a decision waits for them."""
        self._job_reader.hurry()

    def wake(self, nodes: bool = False) -> None:
        """Poll soon; with ``nodes``, read nodes and partitions too."""
        if nodes:
            self._node_reader.require_read()
        self._woken.set()
        self._waiting.set()

    def hint(self, job_id: int | None = None) -> bool:
        """Read a job at once, because Slurm says that it began or ended; return false on a standby, which ignores it.

        Without ``job_id``, or if podbridge does not know the job, poll at once. Jobs of others need neither.
        """
        if not self._leads():
            return False
        # a job of others in a hint needs no request: hints come for each job of the cluster
        if job_id is None or job_id not in self._state.last.foreign:
            self._hints.add(job_id)
            self._hinted.set()
            self._waiting.set()
        return True

    def expect(self, job_id: int, link: JobLink, *, sure: bool = True) -> None:
        """Add a job that this process has just submitted: every snapshot published from now on contains it.

        Not ``sure``: the job is named on a pod. A later snapshot contains it, or reports it as missing.
        """
        self._state.expect(job_id, link, sure=sure)
        if sure:
            self._busier = True
            self._waiting.set()

    def other_jobs(self) -> Counter[tuple[str, Phase]]:
        """Return the number of jobs of others by partition and phase, of the last list of all jobs.

        The partition is empty for a job that has not been read, and for tasks of arrays, which are not read.
        """
        state = self._state.last
        counts: Counter[tuple[str, Phase]] = Counter()
        for job_id, job_states in {**state.listed, **state.unread}.items():
            if job_id not in state.snapshot.jobs:
                counts[state.foreign.get(job_id, UNREAD).partition, phase(job_states)] += 1
        for task_states, count in self._client.array_tasks.items():
            counts[UNREAD.partition, phase(task_states)] += count
        return counts

    def age(self) -> float:
        """Return the seconds since the request of the last answer of slurmctld; infinite before the first one."""
        snapshot = self.snapshot
        return self._clock.monotonic() - snapshot.began if snapshot.sequence else math.inf

    # --- the loop -----------------------------------------------------------------------------------------------------
    def run(self, stop: threading.Event) -> None:
        """Poll until ``stop`` is set."""
        while not stop.is_set():
            began = self._clock.monotonic()
            self._woken.clear()
            if self._hints.take(began, self._hinted_jobs()):
                SLURM_HINTED_POLLS.inc()
            self.refresh()
            seconds = self._clock.monotonic() - began
            log.debug("polled", extra=kv(seconds=round(seconds, 3)))
            # if Slurm answers slowly, polls take two thirds of the time at most; with unread jobs, no pause is made
            if self._failures or not self._backlog:
                least_pause = max(REST * seconds, LIST_REST * self._list_seconds)
                self._wait(stop, max(self.pause(), least_pause), least_pause)

    def pause(self) -> float:
        """Return the seconds until the next poll, unless :meth:`wake` is called."""
        if self._failures:
            return self._backoff.delay(self._failures)
        if self._leads() and (self._state.awaits_jobs or is_busy(self.snapshot)):
            return self._settings.poll_busy
        least = STANDBY_PERIOD if not self._leads() else EMPTY_PERIOD if is_empty(self.snapshot) else 0
        return max(least, self._settings.poll_idle)

    def _wait(self, stop: threading.Event, longest: float, least_pause: float) -> None:
        """Wait for ``longest`` seconds; less after :meth:`wake` or a changed node, but at least ``least_pause``."""
        if self._failures:  # wakes and hints have no effect after a failed poll
            stop.wait(longest)
            return
        began = self._clock.monotonic()
        least, latest = began + max(_WAKE_GAP, least_pause), began + longest
        while not stop.is_set():
            self._waiting.clear()  # before the causes are read: a later one ends the wait below
            now = self._clock.monotonic()
            if self._busier:
                self._busier = False
                latest = min(latest, max(now + SETTLE, began + max(self.pause(), least_pause)))
            jobs = self._hints.jobs
            due = latest
            if not jobs or jobs != self._hinted_jobs():
                due = min(due, self._hints.due(began + max(GAP, least_pause), now))
            if self._woken.is_set():
                due = min(due, least)
            nodes = now >= least and self._leads()
            if now >= due or (nodes and self._node_reader.changed(slowly=is_empty(self.snapshot))):
                return
            self._waiting.wait(min(due - now, _STOP_CHECK))

    def refresh(self) -> Snapshot:
        """Poll now; return the newest snapshot, with ``error`` set if slurmctld did not answer."""
        with self._poll_lock:
            before = self.snapshot
            try:
                snapshot = self._poll()
            except BridgeError as error:
                if not self._failures:
                    log.warning("slurm does not answer", extra=kv(error=error))
                self._failures += 1
                self._job_reader.lists.poll_failed()
                self._state.fail(str(error))
                return self.snapshot
            if self._failures:
                log.info("slurm answers again", extra=kv(failures=self._failures))
            self._failures = 0
            if not snapshot.sequence or snapshot is before:  # not complete yet, or no news
                return snapshot
            count_jobs(snapshot)
            for subscriber in self._subscribers:
                subscriber(snapshot)
            return snapshot

    def read(self, job_id: int) -> None:
        """Read a known job alone and publish it: Slurm may have changed its nodes, which no poll sees.

        For any thread. Raises the errors of :meth:`SlurmClient.job`, and :class:`SlurmUnavailableError` if the answer
        is about another job, or if polls change the snapshot meanwhile.
        """
        if self._read_job(job_id) is None:
            raise SlurmUnavailableError(f"job {job_id} cannot be read now")
        for subscriber in self._subscribers:
            subscriber(self.snapshot)

    # --- hints --------------------------------------------------------------------------------------------------------
    def run_hints(self, stop: threading.Event) -> None:
        """Read the jobs that hints name until ``stop`` is set; a poll in progress does not delay this."""
        while not stop.is_set():
            self._hinted.clear()  # before the causes are read: a later one ends the wait below
            job_ids, now = self._hinted_jobs(), self._clock.monotonic()
            due = self._hints.due(now, now, len(job_ids)) if job_ids and not self._failures else math.inf
            if due > now:
                self._hinted.wait(min(due - now, _STOP_CHECK))
                continue
            self._hints.take_jobs(now, job_ids)
            self._job_reader.spend(len(job_ids))
            for job_id in sorted(job_ids):
                SLURM_HINTED_READS.inc()
                self._read_hinted(job_id)

    def _hinted_jobs(self) -> frozenset[int]:
        """Return the jobs of hints that can be read alone; the others need a poll."""
        return self._state.own(self._hints.jobs)

    def _read_hinted(self, job_id: int) -> None:
        """Read a job and publish it; if this is not possible, cause a poll."""
        try:
            link = self._read_job(job_id)
        except BridgeError as error:
            log.debug("job cannot be read", extra=kv(error=error))  # the next poll fails too, and logs it
            link = None
        if link is None:
            self._job_reader.require_check()
            self._hints.add()
        elif self.snapshot.jobs[job_id].confirmations != 1:  # nothing is decided before the next poll confirms an end
            for changed in self._hint_subscribers:
                changed(link)
            for subscriber in self._subscribers:
                subscriber(self.snapshot)
        self._busier = True
        self._waiting.set()

    def _read_job(self, job_id: int) -> JobLink | None:
        """Read a job alone; return its comment, or ``None`` if it is another job, or if polls change the snapshot."""
        for _ in range(READS):
            merges, began = self._state.merges, self._clock.monotonic()
            job = self._client.job(job_id)
            job = self._job_reader.with_node_allotments(self._state.last, {job_id: job})[job_id]
            is_added = self._state.merge_job(job, began, merges)
            if is_added is not None:
                log.debug("hinted job read", extra=kv(job=job_id, seconds=round(self._clock.monotonic() - began, 4)))
                return job.link if is_added else None
        return None

    # --- one poll -----------------------------------------------------------------------------------------------------
    def _poll(self) -> Snapshot:
        last = self._state.begin_poll()
        # podbridge's jobs are in the first snapshot before an expensive list of all jobs has been read
        for job_id, link in self._job_reader.lists.on_pods(last, self.expected).items():
            self.expect(job_id, link, sure=False)
        began = self._clock.monotonic()
        forget = began - last.snapshot.began > FORGET_OTHERS and bool(last.snapshot.sequence)
        if forget:
            last = forgotten(last)
        expected = self._state.expected
        job_answers = self._job_reader.read(last, expected, began, leads=self._leads(), alone=not forget)
        if job_answers.alone:
            reused_id = self._state.merge_details(self._node_reader.add(job_answers.answers))
            if reused_id is None:
                self._backlog, self._list_seconds = False, job_answers.list_seconds
                return self.snapshot
            job_answers = replace(job_answers, reused=reused_id)
        if job_answers.reused is not None:
            log.warning("Slurm assigned a job id again: all jobs are read again", extra=kv(job=job_answers.reused))
            SLURM_ID_RESETS.inc()
            # every id may be that of another job now, also of one that was just submitted
            self._state.doubt_expected()
            last, expected = forgotten(last), self._state.expected
            self._state.begin_poll()
            began = self._clock.monotonic()
            job_answers = self._job_reader.read(last, expected, began, leads=self._leads())
            if job_answers.reused is not None:
                raise SlurmUnavailableError(f"job {job_answers.reused} became another job twice within one poll")
        self._backlog, self._list_seconds = job_answers.backlog, job_answers.list_seconds
        answers = self._node_reader.add(job_answers.answers)
        merged = self._state.merge_poll(last, answers, self._cluster, job_answers.moment)
        self._progress.record(merged.snapshot, len(merged.listed), len(answers.states))
        return merged.snapshot
