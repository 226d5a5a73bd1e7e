"""The one view of Slurm that the whole process shares, kept fresh by one poller.

Where the API has ``jobs/state`` a poll costs 80 bytes a job, and details are asked for only where a state has changed.
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
from bridge.errors import BridgeError, SlurmNotFoundError, SlurmRefusedError
from bridge.logs import kv
from bridge.metrics import SNAPSHOT_AGE, SNAPSHOT_JOBS
from bridge.slurm.client import SlurmClient
from bridge.slurm.merging import (
    MOST_SINGLES,
    Answers,
    Expected,
    States,
    View,
    is_busy,
    is_unexplained,
    merge,
    started,
    wanted,
)
from bridge.slurm.models import Job, JobLink, Snapshot
from bridge.slurm.states import Phase, phase
from bridge.threads import at_once

log = logging.getLogger(__name__)

NODES_BUSY, NODES_IDLE = 5.0, 10.0
"""Seconds between two looks at nodes and partitions."""
UNEXPLAINED = 5.0
"""Seconds between two full lists while a job waits for no reason: to Slurm 22.05 its first reason is no change."""
_WAKE_GAP = 0.25
"""Seconds between two polls, however often it is woken."""
REST = 0.5
"""Times as long as a poll took is the pause after it, at least."""
_STOP_CHECK = 0.25
ASKERS = 3
"""Questions about single jobs under way at once: slurmrestd answers four calls at a time by default."""


class Poller:
    """Polls Slurm and publishes a :class:`Snapshot` after each poll that slurmctld itself has answered.

    The first one published (sequence 1) is complete: every job is known for ours or somebody else's. A poll that fails
    changes ``error`` alone.
    """

    def __init__(self, client: SlurmClient, cluster: str, config: Config, *, clock: Clock | None = None) -> None:
        self._client, self._cluster, self._settings = client, cluster, config.slurm
        self._clock = clock or SystemClock()
        self._backoff = Backoff(first=config.slurm.poll_busy, limit=10)
        self._view = View()
        self._expected: dict[int, Expected] = {}
        self._subscribers: list[Callable[[Snapshot], None]] = []
        self._polling = threading.Lock()
        self._expecting = threading.Lock()
        self._woken = threading.Event()
        self._nodes_wanted = threading.Event()
        self._nodes_at = self._listed_at = -math.inf
        self._backlog = False
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
            self._nodes_wanted.set()
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
        busy = bool(self._expected) or is_busy(self.snapshot)
        return self._settings.poll_busy if busy else self._settings.poll_idle

    def _wait(self, stop: threading.Event, longest: float, least: float) -> None:
        if stop.wait(min(least, longest)):
            return
        end = self._clock.monotonic() + longest - least
        while not stop.is_set() and (left := end - self._clock.monotonic()) > 0:
            if self._failures:  # woken or not: slurmctld is in trouble
                stop.wait(left)
            elif self._woken.wait(min(left, _STOP_CHECK)):
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
                self._view = replace(self._view, snapshot=replace(self._view.snapshot, error=str(error)))
                return self.snapshot
            if self._failures:
                log.info("slurm answers again", extra=kv(failures=self._failures))
            self._failures = 0
            self._count(snapshot)
            for subscriber in self._subscribers:
                subscriber(snapshot)
            return snapshot

    # --- one poll -----------------------------------------------------------------------------------------------------
    def _poll(self) -> Snapshot:
        view, began = self._view, self._clock.monotonic()
        with self._expecting:
            expected = dict(self._expected)
        answers, moment = self._ask(view, expected, began)
        # under the lock, so that no job told of in between is left out of what is published
        with self._expecting:
            merged = merge(view, answers, self._expected, self._cluster)
            self._view = replace(merged, changed_at=moment)
            for job_id in [*merged.listed, *answers.unknown]:
                self._expected.pop(job_id, None)
        return merged.snapshot

    def _ask(self, view: View, expected: dict[int, Expected], began: float) -> tuple[Answers, int]:
        """Ask for everything that one poll needs; any error makes the whole poll fail."""
        moment = 0
        details: dict[int, Job] = {}
        if self._client.version.job_states:
            states = self._client.job_states()
            allocations = self._client.version.allocations
            needed = wanted(view, states, expected, began, self._settings.detail_budget, allocations=allocations)
            details = self._started(view, states, expected, needed.started[:MOST_SINGLES])
            singles, asked = needed.jobs[: max(0, MOST_SINGLES - len(needed.started))], set(needed.jobs)
            if needed.in_bulk(len(states)):
                details |= {job.job_id: job for job in self._client.jobs() if job.job_id in asked}
                singles = ()
            self._backlog = len(needed.started) > MOST_SINGLES or 0 < len(singles) < len(needed.jobs)
            log.debug("asking", extra=kv(listed=len(states), wanted=len(asked), started=len(needed.started)))
        else:
            # by slurmctld's own clock, read beforehand: no change can slip through
            moment = self._client.server_time()
            in_full = not view.snapshot.sequence
            if began - self._listed_at >= UNEXPLAINED and is_unexplained(view.snapshot):
                in_full = True
            jobs = self._client.jobs() if in_full else self._client.jobs_changed_since(view.changed_at)
            if jobs is not None:
                self._listed_at = began
            states = dict(view.listed) if jobs is None else {job.job_id: job.states for job in jobs}
            details = {job.job_id: job for job in jobs or ()}
            needed = wanted(view, states, expected, began, 0)
            singles = ()
        found = at_once(ASKERS, self._job, (*singles, *needed.absent))
        unknown = {job_id for job_id, job in found.items() if job is None}
        details |= {job_id: job for job_id, job in found.items() if job is not None}
        answers = Answers(began, states, details, unknown)
        return (self._with_nodes(answers) if self._nodes_due(view, expected, began) else answers), moment

    def _started(
        self, view: View, states: States, expected: dict[int, Expected], job_ids: tuple[int, ...]
    ) -> dict[int, Job]:
        """Ask for the nodes of jobs that have just started.

        The time of the start is not told: that of the last look at which it had not started stands in.
        """
        details = {}
        for job_id, nodes in at_once(ASKERS, self._allocation, job_ids).items():
            if nodes:  # else it has lost them again: the next poll tells
                hope = expected.get(job_id)
                before = max(view.snapshot.began, hope.since if hope else 0.0)
                earliest = self._clock.time() - (self._clock.monotonic() - before)
                job = started(view, expected, job_id, states[job_id])
                details[job_id] = replace(job, nodes=nodes, start_time=earliest)
        return details

    def _allocation(self, job_id: int) -> tuple[str, ...]:
        try:
            return self._client.allocation(job_id)
        except SlurmRefusedError:
            return ()

    def _job(self, job_id: int) -> Job | None:
        try:
            return self._client.job(job_id)
        except SlurmNotFoundError:
            return None

    def _nodes_due(self, view: View, expected: dict[int, Expected], began: float) -> bool:
        period = NODES_BUSY if expected or is_busy(view.snapshot) else NODES_IDLE
        return self._nodes_wanted.is_set() or began - self._nodes_at >= period

    def _with_nodes(self, answers: Answers) -> Answers:
        self._nodes_wanted.clear()  # before asking: who wakes meanwhile wants a newer look
        try:
            nodes = {node.name: node for node in self._client.nodes()}
            partitions = {partition.name: partition for partition in self._client.partitions()}
        except BridgeError:
            self._nodes_wanted.set()
            raise
        self._nodes_at = answers.began
        return replace(answers, nodes=nodes, partitions=partitions)

    def _count(self, snapshot: Snapshot) -> None:
        counts = Counter("missing" if k.missing else phase(k.job.states).value for k in snapshot.jobs.values())
        for name in [*(each.value for each in Phase), "missing"]:
            SNAPSHOT_JOBS.labels(name).set(counts[name])
