"""The questions of one poll about jobs, put to slurmrestd."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.errors import SlurmNotFoundError, SlurmRefusedError
from bridge.logs import kv
from bridge.slurm.client import SlurmClient
from bridge.slurm.merging import is_unexplained, started
from bridge.slurm.models import Job
from bridge.slurm.poll_state import Answers, Expected, PollState, States
from bridge.slurm.query_plan import Wanted, most_singles, wanted, witnesses
from bridge.threads import at_once

log = logging.getLogger(__name__)

UNEXPLAINED = 5.0
"""Seconds between two full lists while a job waits for no reason: to Slurm 22.05 its first reason is no change."""
ASKERS = 3
"""Questions about single jobs under way at once: slurmrestd answers four calls at a time by default."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one poll has learned of jobs.

    ``moment`` is slurmctld's time before which every change is in the answers. ``backlog``: jobs are left that the next
    poll must ask about. ``reused`` is an id that belongs to another job than before: the answers can't be used.
    """

    answers: Answers
    moment: int = 0
    backlog: bool = False
    reused: int | None = None


class JobReader:
    """Asks slurmrestd about jobs. Any error makes the whole poll fail."""

    def __init__(self, client: SlurmClient, detail_budget: int, clock: Clock) -> None:
        self._client, self._budget, self._clock = client, detail_budget, clock
        self._listed_at = -math.inf

    def ask(self, view: PollState, expected: Mapping[int, Expected], began: float) -> Asked:
        """Ask for everything about jobs that one poll needs."""
        if self._client.version.job_states:
            return self._by_states(view, expected, began)
        return self._by_lists(view, expected, began)

    def _by_states(self, view: PollState, expected: Mapping[int, Expected], began: float) -> Asked:
        """Ask for the states of all jobs, then for details where needed, then for the witnesses."""
        asked_at = self._clock.monotonic()
        states = self._client.job_states()
        most = most_singles(len(states), self._clock.monotonic() - asked_at)
        allocations = self._client.version.allocations
        known = witnesses(view, states, expected)
        needed = wanted(view, states, expected, began, self._budget, allocations=allocations, witnessed=known)
        log.debug("asking", extra=kv(listed=len(states), wanted=len(needed.jobs), started=len(needed.started)))
        first_nodes = self._started(view, states, expected, needed.started[:most])
        room = max(0, most - len(needed.started))
        details: dict[int, Job] = {}
        singles = needed.jobs[:room]
        if needed.in_bulk(len(states), self._client.job_bytes):
            asked = set(needed.jobs)
            details = {job.job_id: job for job in self._client.jobs() if job.job_id in asked}
            singles = needed.jobs[:0]
        backlog = len(needed.started) > most or 0 < len(singles) < len(needed.jobs)
        answers = self._singles(Answers(began, states, details, started=first_nodes), needed, singles)
        # last of all: what agrees now vouches for every answer before
        for job_id, witness in known.items():
            job = self._job(job_id)
            if job is not None and not witness.agrees(job):
                return Asked(answers, reused=job_id)
            if job is not None:
                answers = replace(answers, details={**answers.details, job_id: job})
        return Asked(answers, backlog=backlog)

    def _by_lists(self, view: PollState, expected: Mapping[int, Expected], began: float) -> Asked:
        """Ask for all jobs if any has changed."""
        # by slurmctld's own clock, read beforehand: no change can slip through
        moment = self._client.server_time()
        in_full = not view.changed_at
        if began - self._listed_at >= UNEXPLAINED and is_unexplained(view.snapshot):
            in_full = True
        jobs = self._client.jobs() if in_full else self._client.jobs_changed_since(view.changed_at)
        if jobs is not None:
            self._listed_at = began
        states = dict(view.listed) if jobs is None else {job.job_id: job.states for job in jobs}
        details = {job.job_id: job for job in jobs or ()}
        needed = wanted(view, states, expected, began, 0)
        return Asked(self._singles(Answers(began, states, details), needed, ()), moment)

    def _singles(self, answers: Answers, needed: Wanted, singles: tuple[int, ...]) -> Answers:
        found = at_once(ASKERS, self._job, (*singles, *needed.absent))
        unknown = {job_id for job_id, job in found.items() if job is None}
        details = {job_id: job for job_id, job in found.items() if job is not None}
        return replace(answers, details={**answers.details, **details}, unknown=unknown)

    def _started(
        self, view: PollState, states: States, expected: Mapping[int, Expected], job_ids: tuple[int, ...]
    ) -> dict[int, Job]:
        """Ask for the nodes of jobs that have just started.

        The time of the start is not told: that of the last look at which it had not started stands in.
        """
        jobs = {}
        for job_id, nodes in at_once(ASKERS, self._allocation, job_ids).items():
            if nodes:  # else it has lost them again: the next poll tells
                hope = expected.get(job_id)
                before = max(view.snapshot.began, hope.since if hope else 0.0)
                earliest = self._clock.time() - (self._clock.monotonic() - before)
                job = started(view, expected, job_id, states[job_id])
                jobs[job_id] = replace(job, nodes=nodes, start_time=earliest)
        return jobs

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
