"""Single jobs that are read beside the polls, because a hint says that they began or ended.

A hint contains the id of a job and no state. The details of the job show its state, and its comment shows that it is
the job that podbridge knows under this id. If anything else is found, a poll decides. A read changes one job of the
snapshot. It does not change the time of the snapshot or its sequence: it says nothing about other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from bridge.slurm.merging import by_uid, is_new, just_submitted, observed, same_job, with_nodes
from bridge.slurm.models import Job, JobLink, ObservedJob
from bridge.slurm.poll_state import Answers, Expected, PollState
from bridge.slurm.states import is_allocated


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
