"""Reads from slurmrestd what one poll needs about jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from bridge.clock import Clock
from bridge.core.threads import at_once
from bridge.errors import SlurmNotFoundError, SlurmRefusedError
from bridge.logs import kv
from bridge.slurm import allotments
from bridge.slurm.allotments import Allotment
from bridge.slurm.merging import is_unexplained, started
from bridge.slurm.models import Job, JobPart, JsonObject
from bridge.slurm.poll_state import Answers, Expected, PollState, States
from bridge.slurm.query_plan import (
    MOST_SINGLES,
    QueryPlan,
    most_singles,
    plan_queries,
    starts_alone,
    witnesses,
)
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.state_lists import StateList, StateLists
from bridge.slurm.states import is_allocated, is_pending

log = logging.getLogger(__name__)

UNEXPLAINED = 5.0
"""Seconds between two full lists while a pending job has no reason: for Slurm 22.05, the first reason is no change."""
CHECK_PERIOD = 1.0
"""Seconds between two polls that read a witness and the reasons of pending jobs, however many polls there are."""
MOST_STARTS = 8
"""Number of jobs that may start in a poll without a witness: to read one alone costs twice as much as its nodes."""
FIRST_RATE = 200.0
"""Jobs per second that are assumed before any were read."""
MEASURED = 20
"""Least number of jobs whose reading shows the rate."""
HURRY = 10.0
"""Seconds for which jobs of others are read without a pause; longer than the period of whole reconciliations."""
OTHERS_RATE = 3.0
"""Jobs of others per second that are read while no decision waits for them: the outcome is only whether a job whose pod
is gone belongs to podbridge."""
LEAST_OTHERS = 2
"""Number of such jobs that one poll reads, or none: the lowest id and the newest one come first."""
LONGEST_PAUSE = 12.0
"""Seconds without such reads that count at most, so that one poll does not read many."""
FEW_JOBS = 500
"""Number of unread jobs that are read without a pause in any case: it takes a few seconds. Of more, a standby reads
none, because it decides nothing: a new leader reads the jobs on pods without a pause."""
ASKERS = 3
"""Parallel requests about single jobs: slurmrestd has four threads by default."""


@dataclass(frozen=True, slots=True)
class JobAnswers:
    """The result of the requests about jobs in one poll.

    ``moment`` is a time of slurmctld: all earlier changes are in the answers. ``backlog``: the next poll must read more
    jobs. ``reused`` is an id that belongs to another job than before: the answers cannot be used. ``list_seconds`` is
    the time of the requests for states, if they did not ask for all jobs. ``alone``: without a witness, so only the
    details of the answers can be used, which contain comments.
    """

    answers: Answers
    moment: int = 0
    backlog: bool = False
    reused: int | None = None
    list_seconds: float = 0
    alone: bool = False


class JobReader:
    """Sends the requests about jobs. Any error fails the whole poll."""

    def __init__(self, client: SlurmClient, detail_budget: int, clock: Clock, lists: StateLists) -> None:
        self._client, self._budget, self._clock = client, detail_budget, clock
        self.lists = lists
        self._listed_at = self._checked_at = -math.inf
        self._spent = 0
        self._rate = FIRST_RATE
        self._hurried_until = self._paced_at = -math.inf
        self._backlog = False
        self._ended = 0.0  # when the last poll had read jobs alone

    def ask(
        self,
        last: PollState,
        expected: Mapping[int, Expected],
        began: float,
        *,
        leads: bool = True,
        alone: bool = False,
    ) -> JobAnswers:
        """Read everything about jobs that one poll needs; a leader also reads why some jobs are pending.

        ``alone``: if the only news is that some of podbridge's jobs have started, read these alone, without a witness.
        At least one poll in ``CHECK_PERIOD`` has a witness.
        """
        found = self._ask(last, expected, began, leads=leads, alone=alone)
        if found.reused is not None:
            return found
        details = self.each_node(last, found.answers.details)
        return replace(found, answers=replace(found.answers, details=details))

    def _ask(
        self, last: PollState, expected: Mapping[int, Expected], began: float, *, leads: bool, alone: bool
    ) -> JobAnswers:
        if not self._client.version.job_states:
            return self._by_lists(last, expected, began)
        if not leads or self.lists.wanted or began - self._checked_at >= CHECK_PERIOD:
            alone = False
        found = self.lists.read(last, expected)
        starts = (
            starts_alone(last, found.states, expected, began, MOST_STARTS)
            if alone and (found.cheap or not found.complete)
            else None
        )
        if starts is not None:
            self.spend(len(starts))
            answers = self._singles(Answers(began, found.states), QueryPlan(), starts)
            return JobAnswers(answers, list_seconds=found.seconds, alone=True)
        return self._by_states(last, expected, began, found, leads)

    def require_check(self) -> None:
        """Read a witness in the next poll: a job was not as expected. For any thread."""
        self._checked_at = -math.inf

    def hurry(self) -> None:
        """Read all jobs without a pause for the next ``HURRY`` seconds: a decision waits for them. For any thread."""
        self._hurried_until = self._clock.monotonic() + HURRY

    def spend(self, jobs: int) -> None:
        """Record that ``jobs`` jobs were read: fewer reasons are read then, at least one in ``CHECK_PERIOD``."""
        self._spent += jobs

    def _by_states(
        self, last: PollState, expected: Mapping[int, Expected], began: float, found: StateList, leads: bool
    ) -> JobAnswers:
        """Read the details that are needed after a list of states, then the witnesses."""
        states, budget = found.states, self._budget_now(began) if leads else 0
        rest = self._clock.monotonic() - self._ended if self._backlog else 0.0
        most = most_singles(len(states), self._rate, rest, cheap=found.cheap)
        allocations = self._client.version.allocations
        known = witnesses(last, found.listed, expected)
        needed = plan_queries(last, states, expected, began, budget, allocations=allocations, witnessed=known)
        log.debug("reading jobs", extra=kv(listed=len(states), wanted=len(needed.jobs), started=len(needed.started)))
        starts = [job_id for job_id in needed.started if job_id not in known]
        first_nodes = self._started(last, states, expected, tuple(starts[:most]))
        room = max(0, most - len(needed.started))
        details: dict[int, Job] = {}
        wanted, others = needed.jobs, 0
        if found.complete and needed.in_bulk(len(states), self._client.job_bytes):
            asked = set(needed.jobs)
            details = {job.job_id: job for job in self._client.jobs() if job.job_id in asked}
            wanted = ()
        elif last.snapshot.sequence and not (leads and began < self._hurried_until):
            wanted, others = self._paced(wanted, last.snapshot.jobs.keys() | expected.keys(), began, leads)
        singles = wanted[:room]
        self._backlog = len(needed.started) > most or 0 < len(singles) < len(wanted)
        answers = Answers(
            began, states, details, started=first_nodes, complete=found.complete, list_began=found.list_began
        )
        answers = self._singles(answers, needed, singles)
        self.spend(others if budget else len(first_nodes) + len(singles) + len(known))
        # last: an unchanged witness confirms all earlier answers
        for job_id, witness in known.items():
            job = self._job(job_id)
            if job is not None and not witness.agrees(job):
                return JobAnswers(answers, reused=job_id)
            if job is not None:
                answers = replace(answers, details={**answers.details, job_id: job})
        return JobAnswers(answers, backlog=self._backlog, list_seconds=found.seconds)

    def _paced(self, jobs: tuple[int, ...], ours: Set[int], now: float, leads: bool) -> tuple[tuple[int, ...], int]:
        """Return the jobs without those that later polls read, and how many jobs of others are left.

        Jobs of others are read at a limited rate. A few are not paced, and do not count.
        """
        others = [job_id for job_id in jobs if not (leads and job_id in ours)]
        if len(others) <= FEW_JOBS:
            return jobs, 0
        since = max(self._paced_at, now - LONGEST_PAUSE)
        allowed = int((now - since) * OTHERS_RATE) if leads else 0
        if allowed < LEAST_OTHERS:
            allowed = 0
        self._paced_at = since + allowed / OTHERS_RATE
        left = {*others[allowed:]}
        return tuple(job_id for job_id in jobs if job_id not in left), allowed

    def _budget_now(self, began: float) -> int:
        if began - self._checked_at < CHECK_PERIOD:
            return 0
        self._checked_at = began
        budget, self._spent = max(1, self._budget - self._spent), 0
        return budget

    def _by_lists(self, last: PollState, expected: Mapping[int, Expected], began: float) -> JobAnswers:
        """Read all jobs if any has changed."""
        # the clock of slurmctld, read before the jobs: no change is missed
        moment = self._client.server_time()
        in_full = not last.changed_at
        if began - self._listed_at >= UNEXPLAINED and is_unexplained(last.snapshot):
            in_full = True
        jobs = self._client.jobs() if in_full else self._client.jobs_changed_since(last.changed_at)
        if jobs is not None:
            self._listed_at = began
        states = dict(last.listed) if jobs is None else {job.job_id: job.states for job in jobs}
        details = {job.job_id: job for job in jobs or ()}
        needed = plan_queries(last, states, expected, began, 0)
        return JobAnswers(self._singles(Answers(began, states, details), needed, ()), moment)

    def _singles(self, answers: Answers, needed: QueryPlan, singles: tuple[int, ...]) -> Answers:
        began = self._clock.monotonic()
        found = at_once(ASKERS, self._job, (*singles, *needed.absent))
        self._ended = self._clock.monotonic()
        if len(found) >= MEASURED:
            self._rate = len(found) / max(self._ended - began, 1e-3)
        unknown = {job_id for job_id, job in found.items() if job is None}
        details = {job_id: job for job_id, job in found.items() if job is not None}
        return replace(answers, details={**answers.details, **details}, unknown=unknown)

    def _started(
        self, last: PollState, states: States, expected: Mapping[int, Expected], job_ids: tuple[int, ...]
    ) -> dict[int, Job]:
        """Read the nodes of jobs that have just started.

        The answer has no start time. The time of the last poll in which the job was pending takes its place.
        """
        jobs = {}
        cpus = {name: node.cpus for name, node in last.snapshot.nodes.items()} if job_ids else {}
        for job_id, entries in at_once(ASKERS, self._allocation, job_ids).items():
            if entries:  # else the job has lost them again: the next poll shows it
                expectation = expected.get(job_id)
                before = max(last.snapshot.began, expectation.since if expectation else 0.0)
                earliest = self._clock.time() - (self._clock.monotonic() - before)
                job = started(last, expected, job_id, states[job_id])
                nodes, given = tuple(entry["node"] for entry in entries), allotments.of_nodes(entries, cpus)
                jobs[job_id] = replace(job, nodes=nodes, start_time=earliest, allotment=given)
        return jobs

    def each_node(self, last: PollState, details: Mapping[int, Job]) -> Mapping[int, Job]:
        """Return jobs by id that show what they have on each of several nodes: their details do not.

        Slurm changes what a running job has only with its nodes, so it is read once. For any thread.
        """
        if not self._client.version.allocations:
            return details
        given: dict[int, Allotment] = {}
        wanted: dict[int, tuple[bool, int]] = {}
        for job_id, job in details.items():
            for part in _lacking(job):
                known = last.snapshot.jobs.get(job_id)
                same = known is not None and (known.job.link, known.job.restarts) == (job.link, job.restarts)
                before = known.job.allotment_on(part.nodes) if known is not None and same else None
                if before is not None:
                    given[part.job_id] = before
                elif is_allocated(part.states):
                    runs_long = known is not None and not is_pending(known.job.states)
                    wanted[part.job_id] = runs_long, part.allotment.cpus if part.allotment is not None else 0
        if not given and not wanted:
            return details
        first = sorted(wanted, key=lambda part_id: wanted[part_id][0])[:MOST_SINGLES]
        cpus = {name: node.cpus for name, node in last.snapshot.nodes.items()}
        found = at_once(ASKERS, self._allocation, tuple(first))
        for part_id, entries in found.items():
            if entries and (each := allotments.of_nodes(entries, cpus, wanted[part_id][1])) is not None:
                given[part_id] = each
        return {job_id: job.with_allotments(given) for job_id, job in details.items()}

    def _allocation(self, job_id: int) -> list[JsonObject]:
        try:
            return self._client.allotted(job_id)
        except SlurmRefusedError:
            return []

    def _job(self, job_id: int) -> Job | None:
        try:
            return self._client.job(job_id)
        except SlurmNotFoundError:
            return None


def _lacking(job: Job) -> list[Job | JobPart]:
    """Return the job, or its components, that have several nodes and do not show what they have on each."""
    if job.link is None or len(job.nodes) < 2:
        return []
    return [
        part
        for part in job.parts or (job,)
        if len(part.nodes) > 1 and part.allotment is not None and not part.allotment.nodes
    ]
