"""Reads single jobs between two polls, because a hint says that they began or ended.

A hint contains the id of a job and no state. The details of the job show its state, and its comment shows that it is
the job that podbridge knows under this id. If anything else is found, a poll decides. A read changes one job of the
snapshot. It does not change the time of the snapshot or its sequence: it says nothing about other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bridge.slurm.identity import identity, is_same
from bridge.slurm.merging import by_uid, observed
from bridge.slurm.models import Job, JobLink
from bridge.slurm.poll_state import Expected, PollState
from bridge.slurm.states import is_allocated


def link_of(state: PollState, expected: Mapping[int, Expected], job_id: int) -> JobLink | None:
    """Return the comment that one of podbridge's jobs must have; ``None`` if podbridge does not know the job."""
    expectation = expected.get(job_id)
    if expectation is not None:
        return expectation.link if expectation.sure else None
    known = state.snapshot.jobs.get(job_id)
    return known.job.link if known is not None and not known.missing and state.snapshot.sequence else None


def are_known(state: PollState, expected: Mapping[int, Expected], job_ids: Iterable[int]) -> bool:
    """Whether podbridge knows each of these jobs as its own; without any job, false."""
    links = [link_of(state, expected, job_id) for job_id in job_ids]
    return bool(links) and None not in links


def merge_one(state: PollState, expected: Mapping[int, Expected], job: Job, began: float) -> PollState | None:
    """Return the next state of the poller after the details of one job were read at ``began`` (monotonic seconds).

    ``None``: these are not the details of the job that podbridge knows, or the nodes of an allocated job are missing.
    """
    before, job_id = state.snapshot, job.job_id
    known = before.jobs.get(job_id)
    same = known is not None and known.job.link == job.link and is_same(identity(known.job), identity(job))
    if not before.sequence or job.link is None or job.link != link_of(state, expected, job_id):
        return None
    if (not same and job_id not in expected) or (is_allocated(job.states) and not job.nodes):
        return None
    jobs = {**before.jobs, job_id: observed(known if same else None, job, began)}
    return replace(
        state,
        snapshot=replace(
            before,
            jobs=jobs,
            by_uid=before.by_uid if same else by_uid(jobs),
            absent=before.absent - {job_id},
        ),
        listed={**state.listed, job_id: job.states},
        detailed={**state.detailed, job_id: before.sequence},
        unread={other: now for other, now in state.unread.items() if other != job_id},
    )
