"""Reads the data about jobs that one poll needs, from slurmrestd."""

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
from bridge.slurm.query_plan import MOST_SINGLES, QueryPlan, most_singles, plan_queries, starts_alone, witnesses
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

    def read(
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
        answers = self._read(last, expected, began, leads=leads, alone=alone)
        if answers.reused is not None:
            return answers
        details = self.with_node_allotments(last, answers.answers.details)
        return replace(answers, answers=replace(answers.answers, details=details))

    def _read(
        self, last: PollState, expected: Mapping[int, Expected], began: float, *, leads: bool, alone: bool
    ) -> JobAnswers:
        if not self._client.version.job_states:
            return self._by_lists(last, expected, began)
        # the next poll merges a requested list of all jobs, and a poll without a witness merges none
        if not leads or self.lists.is_requested or began - self._checked_at >= CHECK_PERIOD:
            alone = False
        state_list = self.lists.read(last, expected)
        starts = (
            starts_alone(last, state_list.states, expected, began, MOST_STARTS)
            if alone and (state_list.cheap or not state_list.complete)
            else None
        )
        if starts is not None:
            self.spend(len(starts))
            answers = self._read_singly(Answers(began, state_list.states), QueryPlan(), starts)
            return JobAnswers(answers, list_seconds=state_list.seconds, alone=True)
        return self._by_states(last, expected, began, state_list, leads)

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
        self, last: PollState, expected: Mapping[int, Expected], began: float, state_list: StateList, leads: bool
    ) -> JobAnswers:
        """Read the details that are needed after a list of states, then the witnesses."""
        states, budget = state_list.states, self._budget_now(began) if leads else 0
        elapsed = self._clock.monotonic() - self._ended if self._backlog else 0.0
        limit = most_singles(len(states), self._rate, elapsed, cheap=state_list.cheap)
        allocations = self._client.version.allocations
        witness_jobs = witnesses(last, state_list.listed, expected)
        plan = plan_queries(last, states, expected, began, budget, allocations=allocations, witnessed=witness_jobs)
        log.debug("reading jobs", extra=kv(listed=len(states), wanted=len(plan.jobs), started=len(plan.started)))
        starts = [job_id for job_id in plan.started if job_id not in witness_jobs]
        # first: the pods of these jobs wait for the bind
        first_nodes = self._read_started(last, states, expected, tuple(starts[:limit]))
        remaining = max(0, limit - len(plan.started))
        details: dict[int, Job] = {}
        to_read, others_read = plan.jobs, 0
        if state_list.complete and plan.in_bulk(len(states), self._client.job_bytes):
            needed_ids = set(plan.jobs)
            details = {job.job_id: job for job in self._client.jobs() if job.job_id in needed_ids}
            to_read = ()
        # at sequence 0, nothing is decided before all jobs are read: no pause
        elif last.snapshot.sequence and not (leads and began < self._hurried_until):
            to_read, others_read = self._select_paced(
                to_read, last.snapshot.jobs.keys() | expected.keys(), began, leads
            )
        singles = to_read[:remaining]
        self._backlog = len(plan.started) > limit or 0 < len(singles) < len(to_read)
        answers = Answers(
            began, states, details, started=first_nodes, complete=state_list.complete, list_began=state_list.list_began
        )
        answers = self._read_singly(answers, plan, singles)
        self.spend(others_read if budget else len(first_nodes) + len(singles) + len(witness_jobs))
        # last: an unchanged witness confirms all earlier answers
        for job_id, witness in witness_jobs.items():
            job = self._read_job(job_id)
            if job is not None and not witness.agrees(job):
                return JobAnswers(answers, reused=job_id)
            if job is not None:
                answers = replace(answers, details={**answers.details, job_id: job})
        return JobAnswers(answers, backlog=self._backlog, list_seconds=state_list.seconds)

    def _select_paced(
        self, jobs: tuple[int, ...], own_jobs: Set[int], now: float, leads: bool
    ) -> tuple[tuple[int, ...], int]:
        """Return the jobs without those that later polls read, and how many jobs of others are left.

        Jobs of others are read at a limited rate. A few are not paced, and do not count.
        """
        others = [job_id for job_id in jobs if not (leads and job_id in own_jobs)]
        if len(others) <= FEW_JOBS:
            return jobs, 0
        since = max(self._paced_at, now - LONGEST_PAUSE)
        allowed_count = int((now - since) * OTHERS_RATE) if leads else 0
        if allowed_count < LEAST_OTHERS:
            allowed_count = 0
        self._paced_at = since + allowed_count / OTHERS_RATE
        postponed = {*others[allowed_count:]}
        return tuple(job_id for job_id in jobs if job_id not in postponed), allowed_count

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
        plan = plan_queries(last, states, expected, began, 0)
        return JobAnswers(self._read_singly(Answers(began, states, details), plan, ()), moment)

    def _read_singly(self, answers: Answers, plan: QueryPlan, singles: tuple[int, ...]) -> Answers:
        began = self._clock.monotonic()
        job_by_id = at_once(ASKERS, self._read_job, (*singles, *plan.absent))
        self._ended = self._clock.monotonic()
        if len(job_by_id) >= MEASURED:
            self._rate = len(job_by_id) / max(self._ended - began, 1e-3)
        unknown = {job_id for job_id, job in job_by_id.items() if job is None}
        details = {job_id: job for job_id, job in job_by_id.items() if job is not None}
        return replace(answers, details={**answers.details, **details}, unknown=unknown)

    def _read_started(
        self, last: PollState, states: States, expected: Mapping[int, Expected], job_ids: tuple[int, ...]
    ) -> dict[int, Job]:
        """Read the nodes of jobs that have just started.

        The answer has no start time. The time of the last poll in which the job was pending takes its place.
        """
        jobs = {}
        cpus = {name: node.cpus for name, node in last.snapshot.nodes.items()} if job_ids else {}
        for job_id, entries in at_once(ASKERS, self._read_allocation, job_ids).items():
            if entries:  # else the job has lost them again: the next poll shows it
                expectation = expected.get(job_id)
                before = max(last.snapshot.began, expectation.since if expectation else 0.0)
                earliest = self._clock.time() - (self._clock.monotonic() - before)
                job = started(last, expected, job_id, states[job_id])
                nodes, allotment = tuple(entry["node"] for entry in entries), allotments.of_nodes(entries, cpus)
                jobs[job_id] = replace(job, nodes=nodes, start_time=earliest, allotment=allotment)
        return jobs

    def with_node_allotments(self, last: PollState, details: Mapping[int, Job]) -> Mapping[int, Job]:
        """Return the jobs by id, with their resources on each of several nodes, which their details lack.

        The resources of a running job change only with its nodes, so they are read once. For any thread.
        """
        if not self._client.version.allocations:
            return details
        allotment_by_id: dict[int, Allotment] = {}
        missing_parts: dict[int, tuple[bool, int]] = {}
        for job_id, job in details.items():
            for part in _parts_without_node_allotments(job):
                earlier = last.snapshot.jobs.get(job_id)
                is_same = earlier is not None and (earlier.job.link, earlier.job.restarts) == (job.link, job.restarts)
                earlier_allotment = earlier.job.allotment_on(part.nodes) if earlier is not None and is_same else None
                if earlier_allotment is not None:
                    allotment_by_id[part.job_id] = earlier_allotment
                elif is_allocated(part.states):
                    runs_long = earlier is not None and not is_pending(earlier.job.states)
                    missing_parts[part.job_id] = runs_long, part.allotment.cpus if part.allotment is not None else 0
        if not allotment_by_id and not missing_parts:
            return details
        # those that have just started come first: the bind compares their resources with the pods
        part_ids = sorted(missing_parts, key=lambda part_id: missing_parts[part_id][0])[:MOST_SINGLES]
        cpus = {name: node.cpus for name, node in last.snapshot.nodes.items()}
        entries_by_id = at_once(ASKERS, self._read_allocation, tuple(part_ids))
        for part_id, entries in entries_by_id.items():
            if entries and (allotment := allotments.of_nodes(entries, cpus, missing_parts[part_id][1])) is not None:
                allotment_by_id[part_id] = allotment
        return {job_id: job.with_allotments(allotment_by_id) for job_id, job in details.items()}

    def _read_allocation(self, job_id: int) -> list[JsonObject]:
        try:
            return self._client.allotted(job_id)
        except SlurmRefusedError:
            return []

    def _read_job(self, job_id: int) -> Job | None:
        try:
            return self._client.job(job_id)
        except SlurmNotFoundError:
            return None


def _parts_without_node_allotments(job: Job) -> list[Job | JobPart]:
    """Return the job, or those of its components, that have several nodes but no allotment for each of them."""
    if job.link is None or len(job.nodes) < 2:
        return []
    return [
        part
        for part in job.parts or (job,)
        if len(part.nodes) > 1 and part.allotment is not None and not part.allotment.nodes
    ]
