"""From the answers of slurmctld to a snapshot. Pure, no I/O.

One poll reads the states of all jobs (``Answers.states``), the details of some jobs, and the ids that slurmctld reports
as unknown. :mod:`bridge.slurm.query_plan` selects the details that a poll needs. :func:`merge` returns the next state
of the poller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import chain

from bridge.core.grouping import grouped
from bridge.slurm.models import CONFIRMATIONS, HIGHEST_ID, Job, ObservedJob, Snapshot
from bridge.slurm.poll_state import UNREAD, Answers, Expected, Identity, PollState, States, identity, is_same
from bridge.slurm.query_plan import changed_jobs
from bridge.slurm.states import Phase, end_of, phase

FORGET_AFTER = 600.0
"""Seconds for which a job that slurmctld no longer knows stays in the snapshot."""


def started(last: PollState, expected: Mapping[int, Expected], job_id: int, states: frozenset[str]) -> Job:
    """Return the current data of a job that was pending in the last poll, without its nodes and its start time.

    Only for the jobs in ``QueryPlan.started``.
    """
    observed_job, expectation = last.snapshot.jobs.get(job_id), expected.get(job_id)
    if observed_job is not None and not is_new(observed_job, expectation):
        return replace(observed_job.job, states=states, reason="", description="")
    return Job(job_id, states, expected[job_id].link)


def merge(last: PollState, answers: Answers, expected: Mapping[int, Expected], cluster: str) -> PollState:
    """Return the next state of the poller.

    A job belongs to podbridge if its comment names ``cluster``, or if this process has just submitted it. The snapshot
    keeps sequence 0 until every job of a first list has been read, unless the ids of podbridge's jobs were known before
    this list.
    """
    before, states = last.snapshot, answers.states
    answered = answers.details.keys() | answers.started.keys()
    unread = set(changed_jobs(last, states, expected)) - answered
    # nothing is decided at sequence 0: a job of the first list that is not read yet would seem not to exist
    complete = before.sequence or not unread or not answers.complete
    sequence = before.sequence + 1 if complete else 0
    new_ids = answered | expected.keys()
    jobs = _unchanged_jobs(before.jobs, states, new_ids | unread)
    merging = _Merging(last, answers, expected, cluster, sequence, jobs)
    for job_id in (before.jobs.keys() | new_ids) - jobs.keys():
        if job_id in unread:
            merging.add(job_id, assumed(job_id, before.jobs.get(job_id), expected.get(job_id)))
        elif job_id in states:
            merging.add_listed(job_id, states[job_id])
        elif job_id in before.jobs or job_id in expected:
            merging.add_unlisted(job_id)
    list_began = last.list_began
    if answers.complete:
        list_began = answers.began if answers.list_began is None else answers.list_began
    # the scheduler submits no second job for a pod whose job may be among these (rules.is_unread)
    still_unread = {job_id: states[job_id] for job_id in unread if job_id not in answers.unknown}
    snapshot = _snapshot(merging, list_began, unread.difference(last.listed), still_unread.keys())
    listed, detailed, foreign = _listed_states(last, states, unread), merging.detailed, merging.foreign
    return PollState(snapshot, listed, detailed, foreign, list_began=list_began, unread=still_unread)


@dataclass(slots=True)
class _Merging:
    """The jobs of the next state: podbridge's, the sequence in which each was last read, and the jobs of others.

    They begin with ``jobs``, those that stay as they are. Each other job is then added once.
    """

    last: PollState
    answers: Answers
    expected: Mapping[int, Expected]
    cluster: str
    sequence: int
    jobs: dict[int, ObservedJob]
    detailed: dict[int, int] = field(init=False)
    foreign: dict[int, Identity] = field(init=False)

    def __post_init__(self) -> None:
        last, jobs, states = self.last, self.jobs, self.answers.states
        self.detailed = {job_id: sequence for job_id, sequence in last.detailed.items() if job_id in jobs}
        self.foreign = {i: found for i, found in last.foreign.items() if i in states and i not in jobs}

    def add(self, job_id: int, observed_job: ObservedJob | None) -> None:
        """Add a job, unless there is nothing to keep of it."""
        if observed_job is not None:
            self.jobs[job_id] = observed_job

    def add_listed(self, job_id: int, now: frozenset[str]) -> None:
        """Add a job that is in the list and whose details, if they are needed, have been read."""
        observed_job, detail = self.last.snapshot.jobs.get(job_id), self.answers.details.get(job_id)
        job = self._current(job_id, now, observed_job, detail or self.answers.started.get(job_id))
        if job is None:
            self.foreign[job_id] = identity(detail) if detail is not None else self.foreign.get(job_id, UNREAD)
            self.add(job_id, _missing_job(observed_job, self.expected.get(job_id), job_id, self.answers.began))
            return
        # the id belonged to a job of others before slurmctld assigned it again
        self.foreign.pop(job_id, None)
        if job.states != now and detail is None:  # CONFIGURING has ended (query_plan)
            job = replace(job, states=now)
        former = same_job(observed_job, job)
        if detail is not None:
            self.detailed[job_id] = self.sequence
        elif former is not None and job_id in self.last.detailed:
            self.detailed[job_id] = self.last.detailed[job_id]
        self.jobs[job_id] = observed(former, job, self.answers.began)

    def _current(
        self, job_id: int, now: frozenset[str], observed_job: ObservedJob | None, answered_job: Job | None
    ) -> Job | None:
        """Return the current data of a listed job; ``None`` if it is not podbridge's.

        ``answered_job``, which this poll has read, takes precedence over earlier data.
        """
        if answered_job is not None:
            # no comment of this cluster: the job that podbridge knew under this id is over, although the id is listed
            return answered_job if answered_job.link is not None and answered_job.link.cluster == self.cluster else None
        expectation = self.expected.get(job_id)
        if expectation is not None and is_new(observed_job, expectation):
            return Job(job_id, now, expectation.link)
        return observed_job.job if observed_job is not None and not observed_job.missing else None

    def add_unlisted(self, job_id: int) -> None:
        """Add a job that is not in the list, unless it is no longer kept."""
        expectation, answers = self.expected.get(job_id), self.answers
        observed_job = assumed(job_id, self.last.snapshot.jobs.get(job_id), expectation)
        detail = answers.details.get(job_id)
        is_confirmed = observed_job is not None and observed_job.missing and observed_job.is_confirmed
        # newer than the list
        if detail is not None and detail.link is not None and detail.link.cluster == self.cluster:
            observed_job = observed(same_job(observed_job, detail), detail, answers.began)
        # a confirmed absence is not requested again (query_plan), and counts on until FORGET_AFTER
        elif job_id in answers.unknown or detail is not None or is_confirmed:
            observed_job = _missing_job(observed_job, expectation, job_id, answers.began)
        self.add(job_id, observed_job)


def _unchanged_jobs(before: Mapping[int, ObservedJob], states: States, news: Set[int]) -> dict[int, ObservedJob]:
    """Return the jobs that stay as they are, as most jobs of most polls do; ``news`` are jobs with other answers."""
    return {
        job_id: observed_job
        for job_id, observed_job in before.items()
        if states.get(job_id) == observed_job.job.states and not observed_job.confirmations and job_id not in news
    }


def _read_since(unheard: Set[int], foreign: Mapping[int, Identity], jobs: Mapping[int, ObservedJob]) -> float:
    """Return the submit time after which every listed job has been read, although ``unheard`` jobs have not.

    slurmctld assigns ids in ascending order, so jobs submitted after one that is higher than all of ``unheard`` have
    been read. A requeue only makes a submit time later; tasks of arrays get their ids later and do not count. Infinite
    if there is no such job, if slurmctld has begun again with low ids (a lower job is then newer than a higher one), or
    in a federation, where the highest bits of an id are those of a cluster.
    """
    last = max(unheard)
    since, newest_lower = math.inf, 0.0
    own_jobs = {job_id: observed_job.job for job_id, observed_job in jobs.items() if not observed_job.missing}
    if max(last, max(foreign, default=0), max(own_jobs, default=0)) > HIGHEST_ID:
        return math.inf
    # an id that podbridge's new job has got may be among the jobs of others, with an old submit time
    foreign_rows = ((job_id, *job[:3]) for job_id, job in foreign.items() if job_id not in own_jobs)
    own_rows = ((job_id, job.submit_time, job.restarts, not job.is_array_task) for job_id, job in own_jobs.items())
    for job_id, submit_time, restarts, ordered in chain(foreign_rows, own_rows):
        if not submit_time or not ordered:
            continue
        if job_id > last:
            since = min(since, submit_time)
        elif not restarts:
            newest_lower = max(newest_lower, submit_time)
    return since if newest_lower <= since else math.inf


def _snapshot(merging: _Merging, list_began: float, unheard: Set[int], unread: Set[int]) -> Snapshot:
    """Return the next snapshot; ``unheard`` are the ``unread`` jobs that were not in an earlier list either."""
    last, answers, jobs = merging.last, merging.answers, merging.jobs
    before = with_nodes(last, answers).snapshot
    # list_began is 0 after forgotten(): a list from before an id was assigned again proves nothing
    earlier = before.listed_at if last.list_began else -math.inf
    listed_at = list_began if list_began and not unheard else earlier
    # a request that was sent before an error may be carried out after it: its outcome is known SETTLE seconds after the
    # first answer (rules.is_settled)
    settled = before.sequence and not before.error
    return replace(
        before,
        error="",
        sequence=merging.sequence,
        began=answers.began,
        settled_since=before.settled_since if settled else answers.began,
        jobs=jobs,
        # most polls change no comment, and the index of thousands of jobs is kept
        by_uid=before.by_uid if _same_links(before.jobs, jobs) else by_uid(jobs),
        absent=frozenset(job_id for job_id in jobs if job_id not in answers.states),
        unread=unread,
        list_age=answers.began - listed_at,
        partial_age=answers.began - list_began if list_began else math.inf,
        partial_since=_read_since(unheard, merging.foreign, jobs) if unheard else math.inf,
    )


def with_nodes(last: PollState, answers: Answers) -> PollState:
    """Return a state with the nodes and partitions of a poll, if it has read any; nothing else changes."""
    if answers.nodes is None and answers.partitions is None:
        return last
    before = last.snapshot
    nodes = before.nodes if answers.nodes is None else answers.nodes
    partitions = before.partitions if answers.partitions is None else answers.partitions
    return replace(last, snapshot=replace(before, nodes=nodes, partitions=partitions))


def _listed_states(last: PollState, states: States, unread: Set[int]) -> States:
    """Return the states of all listed jobs.

    An unread job (not yet requested, or gone before its details were read) keeps its old state, or is left out. The
    next poll then finds its change again.
    """
    earlier_states = {job_id: last.listed[job_id] for job_id in unread if job_id in last.listed}
    return {job_id: now for job_id, now in states.items() if job_id not in unread} | earlier_states


def is_new(observed_job: ObservedJob | None, expectation: Expected | None) -> bool:
    """Whether this process has submitted a job that the snapshot lacks, or has only an earlier one with its id."""
    if expectation is None or not expectation.sure:
        return False
    return (
        observed_job is None
        or observed_job.missing
        or end_of(observed_job.job.states) is not None
        or observed_job.job.link != expectation.link
    )


def same_job(before: ObservedJob | None, job: Job) -> ObservedJob | None:
    """Return ``before`` if it is the same job: another one with its id starts without confirmations of its end."""
    if before is None or before.job is job:
        return before
    is_same_job = before.job.link == job.link and is_same(identity(before.job), identity(job))
    return before if is_same_job else None


def _same_links(before: Mapping[int, ObservedJob], now: Mapping[int, ObservedJob]) -> bool:
    return before.keys() == now.keys() and all(
        observed_job is before[job_id] or observed_job.job.link == before[job_id].job.link
        for job_id, observed_job in now.items()
    )


def _missing_job(
    observed_job: ObservedJob | None, expectation: Expected | None, job_id: int, began: float
) -> ObservedJob | None:
    """Count one more answer that slurmctld has no such job.

    Return ``None`` if podbridge never knew the job, or if the job has been missing for ``FORGET_AFTER`` seconds.
    """
    if observed_job is None and expectation is not None:
        observed_job = just_submitted(job_id, expectation)
    if observed_job is None or (
        observed_job.missing and observed_job.is_confirmed and began - observed_job.since > FORGET_AFTER
    ):
        return None
    return ObservedJob(
        observed_job.job,
        min(observed_job.confirmations + 1, CONFIRMATIONS),
        missing=True,
        since=observed_job.since or began,
    )


def assumed(job_id: int, observed_job: ObservedJob | None, expectation: Expected | None) -> ObservedJob | None:
    """Return a job that no answer describes: as in the last snapshot, or pending if this process just submitted it."""
    if expectation is None or not is_new(observed_job, expectation):
        return observed_job
    return just_submitted(job_id, expectation)


def just_submitted(job_id: int, expectation: Expected) -> ObservedJob:
    """Return a job that is pending, as far as this process knows."""
    return ObservedJob(Job(job_id, frozenset({"PENDING"}), expectation.link))


def observed(before: ObservedJob | None, job: Job, began: float) -> ObservedJob:
    """Return a job that was read now, with the number of answers in a row that reported the same end."""
    end = end_of(job.states)
    if end is None:
        # the same object: the workload controller skips a pod whose job is the same object as before (Waiting)
        if before is not None and (before.job is job or before.job == job) and not before.confirmations:
            return before
        return ObservedJob(job)
    if before is None or before.missing or end_of(before.job.states) != end:
        # also after another end: the answers in a row must be about the same one
        return ObservedJob(job, 1, since=began)
    return ObservedJob(job, min(before.confirmations + 1, CONFIRMATIONS), since=before.since)


def by_uid(jobs: Mapping[int, ObservedJob]) -> dict[str, tuple[int, ...]]:
    """Return the ids of the jobs of each pod UID and of each key of a group, lowest id first."""
    links = ((job_id, jobs[job_id].job.link) for job_id in sorted(jobs))
    ids_by_key = grouped((key, job_id) for job_id, link in links if link is not None for key in link.keys)
    return {key: tuple(ids) for key, ids in ids_by_key.items()}


def is_busy(snapshot: Snapshot) -> bool:
    """Whether a change is expected: a job is pending or changes its state, or its end has one confirmation."""
    for observed_job in snapshot.jobs.values():
        if observed_job.confirmations == 1 or (
            not observed_job.confirmations
            # a job may stay suspended for days: no reason for several polls a second
            and "SUSPENDED" not in observed_job.job.states
            and phase(observed_job.job.states) in (Phase.PENDING, Phase.BETWEEN)
        ):
            return True
    return False


def is_empty(snapshot: Snapshot) -> bool:
    """Whether all jobs have been read, and each of podbridge's jobs has ended."""
    return bool(snapshot.sequence) and all(observed_job.is_confirmed for observed_job in snapshot.jobs.values())


def is_unexplained(snapshot: Snapshot) -> bool:
    """Whether one of podbridge's jobs is pending without a reason."""
    jobs = (observed_job.job for observed_job in snapshot.jobs.values())
    return any(job.link is not None and not job.reason and phase(job.states) is Phase.PENDING for job in jobs)
