"""The one view of Slurm that the whole process shares, kept fresh by one poller.

Where the API has ``jobs/state`` a poll costs 80 bytes a job, and details are asked for only where a job of ours has
changed, or a job is new (:mod:`bridge.slurm.query_plan`).
Before (v0.0.40 and older) ``update_time`` tells whether anything has changed at all, and if so all jobs are read. How
often slurmctld is asked depends on whether something is under way, never on how many pods wait.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from bridge.backoff import Backoff
from bridge.clock import Clock, SystemClock
from bridge.config import Config
from bridge.errors import BridgeError, SlurmUnavailableError
from bridge.logs import kv
from bridge.metrics import SLURM_ID_RESETS, SNAPSHOT_AGE, SNAPSHOT_JOBS
from bridge.slurm.client import SlurmClient
from bridge.slurm.job_reader import JobReader
from bridge.slurm.merging import is_busy, merge
from bridge.slurm.models import JobLink, Snapshot
from bridge.slurm.node_reader import NodeReader
from bridge.slurm.poll_state import Expected, PollState
from bridge.slurm.query_plan import doubted, forgotten
from bridge.slurm.states import Phase, phase

log = logging.getLogger(__name__)

_WAKE_GAP = 0.25
"""Seconds between two polls, however often it is woken."""
REST = 0.5
"""Times as long as a poll took is the pause after it, at least."""
_STOP_CHECK = 0.25
PROGRESS_PERIOD = 5.0
"""Seconds between two log lines about the first reading of all jobs."""
FORGET_OTHERS = 300.0
"""Seconds without an answer after which jobs of others are read anew: Slurm keeps an ended job for ``MinJobAge``, 300
s by default, and only then may its id be given again, should the counter have come to ``MaxJobId``."""


class Poller:
    """Polls Slurm and publishes a :class:`Snapshot` after each poll that slurmctld itself has answered.

    The first one published (sequence 1) is complete: every job is known for ours or somebody else's; until then
    ``progress`` tells how many have been read. A poll that fails changes ``error`` alone. While ``leads`` says no, the
    process is a stand-by: it polls at the idle period, whatever is under way.
    """

    def __init__(
        self,
        client: SlurmClient,
        cluster: str,
        config: Config,
        *,
        clock: Clock | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._leads = leads
        self._client, self._cluster, self._settings = client, cluster, config.slurm
        self._clock = clock or SystemClock()
        self._backoff = Backoff(first=config.slurm.poll_busy, limit=10)
        self._view = PollState()
        self._expected: dict[int, Expected] = {}
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._polling = threading.Lock()
        self._expecting = threading.Lock()
        self._woken = threading.Event()
        self._told_at = -math.inf
        self._node_reader = NodeReader(client, self._clock)
        self._job_reader = JobReader(client, config.slurm.detail_budget, self._clock)
        self._backlog = False
        self.progress = ""
        self._failures = 0
        SNAPSHOT_AGE.set_function(self.age)

    # --- for everybody ------------------------------------------------------------------------------------------------
    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; read-only."""
        return self._view.snapshot

    def subscribe(self, fn: Callable[[Snapshot], None]) -> None:
        """Have ``fn`` called, from the poller's thread, after each new snapshot."""
        self._subscribers.append(fn)

    def wake(self, nodes: bool = False) -> None:
        """Poll soon, with ``nodes`` also at nodes and partitions."""
        if nodes:
            self._node_reader.want()
        self._woken.set()

    def expect(self, job_id: int, link: JobLink, *, sure: bool = True) -> None:
        """Tell of a job that this process has just submitted: every snapshot published from now on has it.

        Not ``sure``: somebody says that there is such a job. A snapshot soon has it, or tells that it is missing.
        """
        with self._expecting:
            self._expected[job_id] = Expected(link, self._clock.monotonic(), sure)

    def age(self) -> float:
        """Seconds since the newest answer of slurmctld was asked for; infinite before the first."""
        snapshot = self.snapshot
        return self._clock.monotonic() - snapshot.began if snapshot.sequence else math.inf

    # --- the loop -----------------------------------------------------------------------------------------------------
    def run(self, stop: threading.Event) -> None:
        """Poll until ``stop`` is set."""
        while not stop.is_set():
            began = self._clock.monotonic()
            self._woken.clear()
            self.refresh()
            took = self._clock.monotonic() - began
            log.debug("polled", extra=kv(seconds=round(took, 3)))
            # a Slurm that takes long to answer is asked two thirds of the time at most
            if self._failures or not self._backlog:
                self._wait(stop, max(self.pause(), REST * took), least=max(_WAKE_GAP, REST * took))

    def pause(self) -> float:
        """Seconds until the next poll, unless woken."""
        if self._failures:
            return self._backoff.delay(self._failures)
        busy = self._leads() and (bool(self._expected) or is_busy(self.snapshot))
        return self._settings.poll_busy if busy else self._settings.poll_idle

    def _wait(self, stop: threading.Event, longest: float, least: float) -> None:
        if stop.wait(min(least, longest)):
            return
        end = self._clock.monotonic() + longest - least
        while not stop.is_set() and (left := end - self._clock.monotonic()) > 0:
            if self._failures:  # woken or not: slurmctld is in trouble
                stop.wait(left)
            elif (self._leads() and self._node_reader.changed()) or self._woken.wait(min(left, _STOP_CHECK)):
                return

    def refresh(self) -> Snapshot:
        """Poll once, now; gives the newest snapshot, with ``error`` set if slurmctld did not answer."""
        with self._polling:
            try:
                snapshot = self._poll()
            except BridgeError as error:
                if not self._failures:
                    log.warning("slurm does not answer", extra=kv(error=error))
                self._failures += 1
                self._doubt_expected()
                self._view = replace(doubted(self._view), snapshot=replace(self._view.snapshot, error=str(error)))
                return self.snapshot
            if self._failures:
                log.info("slurm answers again", extra=kv(failures=self._failures))
            self._failures = 0
            if not snapshot.sequence:  # not complete yet
                return snapshot
            self._count(snapshot)
            for subscriber in self._subscribers:
                subscriber(snapshot)
            return snapshot

    # --- one poll -----------------------------------------------------------------------------------------------------
    def _poll(self) -> Snapshot:
        view, began = self._view, self._clock.monotonic()
        if began - view.snapshot.began > FORGET_OTHERS and view.snapshot.sequence:
            view = forgotten(view)
        with self._expecting:
            expected = dict(self._expected)
        asked = self._job_reader.ask(view, expected, began)
        if asked.reused is not None:
            log.warning("Slurm uses job ids again: all jobs are read anew", extra=kv(job=asked.reused))
            SLURM_ID_RESETS.inc()
            view, expected = forgotten(view), self._doubt_expected()
            began = self._clock.monotonic()
            asked = self._job_reader.ask(view, expected, began)
            if asked.reused is not None:
                raise SlurmUnavailableError(f"job {asked.reused} became another job twice within one poll")
        self._backlog = asked.backlog
        answers = self._node_reader.add(asked.answers)
        # under the lock, so that no job told of in between is left out of what is published
        with self._expecting:
            merged = merge(view, answers, self._expected, self._cluster)
            self._view = replace(merged, changed_at=asked.moment)
            for job_id in [*merged.listed, *answers.unknown]:
                self._expected.pop(job_id, None)
        self._tell_progress(len(merged.listed), len(answers.states))
        return merged.snapshot

    def _doubt_expected(self) -> dict[int, Expected]:
        """Let every job submitted so far prove that it is ours: slurmctld may have lost it, and used its id again."""
        with self._expecting:
            self._expected = {job_id: replace(hope, sure=False) for job_id, hope in self._expected.items()}
            return dict(self._expected)

    def _tell_progress(self, read: int, total: int) -> None:
        """Log how far the first reading of all jobs has come."""
        if self._view.snapshot.sequence:
            self.progress = ""
            return
        self.progress = f"read {read} of {total} jobs"
        if self._clock.monotonic() - self._told_at >= PROGRESS_PERIOD:
            self._told_at = self._clock.monotonic()
            log.info("reading all jobs for the first time", extra=kv(read=read, of=total))

    def _count(self, snapshot: Snapshot) -> None:
        counts = Counter("missing" if k.missing else phase(k.job.states).value for k in snapshot.jobs.values())
        for name in [*(each.value for each in Phase), "missing"]:
            SNAPSHOT_JOBS.labels(name).set(counts[name])
