"""The state of the poller that several threads change: polls, reads of single jobs, and submissions.

A single job is read beside the polls because a hint says that it began or ended. A hint contains the id of a job and no
state. The details of the job show its state, and its comment shows that it is the job that podbridge knows under this
id. If anything else is found, a poll decides. A read changes one job of the snapshot. It does not change the time of
the snapshot or its sequence: it says nothing about other jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from bridge.clock import Clock
from bridge.slurm.merging import by_uid, is_new, just_submitted, merge, observed, same_job, with_nodes
from bridge.slurm.models import Job, JobLink, ObservedJob
from bridge.slurm.poll_state import Answers, Expected, PollState
from bridge.slurm.query_plan import doubted
from bridge.slurm.states import is_allocated


class SharedState:
    """The last state, and the jobs that no poll has read yet: each published snapshot contains every one of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._expected: dict[int, Expected] = {}
        self._read_alone: set[int] = set()  # the jobs that were read alone since the poll in progress began
        self.last = PollState()
        """The state after the last poll or read; any thread reads it without the lock."""
        self.merges = 0
        """Counts the changes of the state by polls."""

    @property
    def expected(self) -> Mapping[int, Expected]:
        """The jobs that no poll has read yet."""
        with self._lock:
            return dict(self._expected)

    @property
    def awaits_jobs(self) -> bool:
        """Whether there are such jobs."""
        return bool(self._expected)

    def expect(self, job_id: int, link: JobLink, *, sure: bool) -> None:
        """Add a job that the next snapshots contain or, if not ``sure``, report as missing."""
        with self._lock:
            if sure or job_id not in self._expected:
                self._expected[job_id] = Expected(link, self._clock.monotonic(), sure)

    def own(self, job_ids: Iterable[int]) -> frozenset[int]:
        """Return those of the jobs that podbridge knows as its own."""
        with self._lock:
            return known_jobs(self.last, self._expected, job_ids)

    def begin_poll(self) -> PollState:
        """Return the state before a poll. What is read alone from now on may be newer than the answers of the poll."""
        with self._lock:
            self._read_alone.clear()
            return self.last

    def merge_poll(self, before: PollState, answers: Answers, cluster: str, changed_at: int) -> PollState:
        """Add the answers of a poll to the state ``before`` it; return the next state."""
        # under the lock, so that the published snapshot contains every job added meanwhile
        with self._lock:
            merged = carried(merge(before, answers, self._expected, cluster), self.last, self._read_alone)
            self.merges += 1
            self.last = replace(merged, changed_at=changed_at)
            # a job that was submitted after the request for the list is in neither, and stays expected
            for job_id in [*merged.listed, *answers.unknown]:
                self._expected.pop(job_id, None)
            return self.last

    def merge_details(self, answers: Answers) -> int | None:
        """Add the answers of a poll without a witness; return a job id that was used again."""
        with self._lock:
            merged = merge_some(self.last, self._expected, answers, self._read_alone)
            if not isinstance(merged, PollState):
                return merged
            self.last, self.merges = merged, self.merges + len(answers.details)
            return None

    def merge_job(self, job: Job, began: float, merges: int) -> bool | None:
        """Add a job that was read alone when ``merges`` polls had changed the state; return whether it was added.

        False: it is not the job that podbridge knows. ``None``: a poll has changed the state since, and may be newer.
        """
        with self._lock:
            if self.merges != merges:
                return None
            merged = merge_one(self.last, self._expected, job, began)
            if merged is not None:
                self.last = merged
                self._read_alone.add(job.job_id)
            return merged is not None

    def doubt_expected(self) -> None:
        """Check the comment of every job submitted so far: slurmctld may have lost it, and assigned its id again."""
        with self._lock:
            self._expected = {job_id: replace(each, sure=False) for job_id, each in self._expected.items()}

    def fail(self, error: str) -> None:
        """Record a failed poll. slurmctld may have been killed before it saved its last jobs."""
        self.doubt_expected()
        with self._lock:
            failed = replace(self.last.snapshot, error=error)
            self.last = replace(doubted(self.last), snapshot=failed)


def link_of(state: PollState, expected: Mapping[int, Expected], job_id: int) -> JobLink | None:
    """Return the comment that one of podbridge's jobs must have; ``None`` if podbridge does not know the job."""
    expectation = expected.get(job_id)
    if expectation is not None:
        return expectation.link if expectation.sure else None
    observed_job = state.snapshot.jobs.get(job_id)
    return (
        observed_job.job.link
        if observed_job is not None and not observed_job.missing and state.snapshot.sequence
        else None
    )


def known_jobs(state: PollState, expected: Mapping[int, Expected], job_ids: Iterable[int]) -> frozenset[int]:
    """Return those of the jobs that podbridge knows as its own."""
    return frozenset(job_id for job_id in job_ids if link_of(state, expected, job_id) is not None)


def merge_one(state: PollState, expected: Mapping[int, Expected], job: Job, began: float) -> PollState | None:
    """Return the next state of the poller after the details of one job were read at ``began`` (monotonic seconds).

    ``None``: these are not the details of the job that podbridge knows, or the nodes of an allocated job are missing.
    """
    before, job_id = state.snapshot, job.job_id
    former = same_job(before.jobs.get(job_id), job)
    if not before.sequence or job.link is None or job.link != link_of(state, expected, job_id):
        return None
    if (former is None and job_id not in expected) or (is_allocated(job.states) and not job.nodes):
        return None
    return _with_jobs(state, {job_id: observed(former, job, began)})


def merge_some(
    state: PollState, expected: Mapping[int, Expected], answers: Answers, newer: Set[int]
) -> PollState | int:
    """Return the next state after a poll without a witness, or the id of a job that is not the one that is known.

    Only the jobs in ``answers.details`` and the nodes are new. Jobs in ``newer`` were read alone meanwhile.
    """
    state = _with_expected(with_nodes(state, answers), expected)
    for job_id, job in answers.details.items():
        # read alone since the poll began: which of the two answers is older is not known, as in carried()
        if job_id not in newer:
            merged = merge_one(state, expected, job, answers.began)
            if merged is None:
                return job_id
            state = merged
    return state


def _with_expected(state: PollState, expected: Mapping[int, Expected]) -> PollState:
    """Return a state whose snapshot contains every job that this process has just submitted, as pending if unread."""
    before = state.snapshot
    pending_jobs = {
        job_id: just_submitted(job_id, expectation)
        for job_id, expectation in expected.items()
        if is_new(before.jobs.get(job_id), expectation)
    }
    if not pending_jobs:
        return state
    jobs = {**before.jobs, **pending_jobs}
    return replace(
        state, snapshot=replace(before, jobs=jobs, by_uid=by_uid(jobs), absent=before.absent - pending_jobs.keys())
    )


def carried(polled: PollState, current: PollState, job_ids: Iterable[int]) -> PollState:
    """Return the state after a poll, with the jobs that were read alone since its beginning as in ``current``.

    It is unknown whether the answers of the poll about these jobs are older. The next poll finds later changes.
    """
    read_jobs = {
        job_id: observed_job for job_id in job_ids if (observed_job := current.snapshot.jobs.get(job_id)) is not None
    }
    if not read_jobs:
        return polled
    foreign = {job_id: job_identity for job_id, job_identity in polled.foreign.items() if job_id not in read_jobs}
    return replace(_with_jobs(polled, read_jobs), foreign=foreign)


def _with_jobs(state: PollState, new_jobs: Mapping[int, ObservedJob]) -> PollState:
    """Return a state in which these jobs replace the earlier ones."""
    before = state.snapshot
    jobs = {**before.jobs, **new_jobs}
    has_same_links = all(
        i in before.jobs and before.jobs[i].job.link == observed_job.job.link for i, observed_job in new_jobs.items()
    )
    return replace(
        state,
        snapshot=replace(
            before,
            jobs=jobs,
            by_uid=before.by_uid if has_same_links else by_uid(jobs),
            absent=before.absent - new_jobs.keys(),
        ),
        listed={**state.listed, **{job_id: observed_job.job.states for job_id, observed_job in new_jobs.items()}},
        detailed={**state.detailed, **dict.fromkeys(new_jobs, before.sequence)},
        unread={job_id: now for job_id, now in state.unread.items() if job_id not in new_jobs},
    )
