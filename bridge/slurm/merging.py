"""From Slurm's answers to a snapshot: pure, no I/O.

One poll brings the states of all jobs (``Answers.states``), the details of some of them, and the ids of which slurmctld
has said that it knows no such job. :mod:`bridge.slurm.query_plan` says which details a poll needs, :func:`merge` makes
the next view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bridge.slurm.identity import UNREAD, identity, is_same
from bridge.slurm.models import Job, ObservedJob, Snapshot
from bridge.slurm.poll_state import CONFIRMATIONS, Answers, Expected, PollState
from bridge.slurm.query_plan import news
from bridge.slurm.states import Phase, end_of, phase

FORGET_AFTER = 600.0
"""Seconds for which a job that slurmctld has forgotten stays in the snapshot."""


def started(view: PollState, expected: Mapping[int, Expected], job_id: int, states: frozenset[str]) -> Job:
    """Return a job of ours that waited when it was last seen, as it is now, but for its nodes and its start time.

    Only for jobs that :func:`~bridge.slurm.query_plan.wanted` has named as started.
    """
    known, hope = view.snapshot.jobs.get(job_id), expected.get(job_id)
    if known is not None and (hope is None or not hope.sure or _is_submitted(known, hope)):
        return replace(known.job, states=states, reason="", description="")
    return Job(job_id, states, expected[job_id].link)


def merge(view: PollState, answers: Answers, expected: Mapping[int, Expected], cluster: str) -> PollState:
    """Make the next view. A job is ours if its link names our ``cluster``, or if we have just submitted it.

    Until every job of a first list has been read, the snapshot keeps sequence 0.
    """
    before, states = view.snapshot, answers.states
    answered = answers.details.keys() | answers.started.keys()
    unread = {job_id for job_id in news(view, states, expected) if job_id not in answered}
    unheard = any(job_id not in view.listed for job_id in unread)
    complete = bool(before.sequence) or not unread
    sequence = before.sequence + 1 if complete else 0
    jobs: dict[int, ObservedJob] = {}
    listed = dict(states)
    detailed: dict[int, int] = {}
    foreign = {job_id: seen for job_id, seen in view.foreign.items() if job_id in states}
    for job_id in unread:  # not asked for yet, or gone before it could be: news again if it is still listed
        if job_id in view.listed:
            listed[job_id] = view.listed[job_id]
        else:
            del listed[job_id]
    for job_id in (job_id for job_id in before.jobs.keys() | expected.keys() | answered if job_id in states):
        known, hope, detail = before.jobs.get(job_id), expected.get(job_id), answers.details.get(job_id)
        if job_id in unread:
            if hope is not None and hope.sure and (known is None or not _is_submitted(known, hope)):
                known = ObservedJob(Job(job_id, frozenset({"PENDING"}), hope.link))
            if known is not None:
                jobs[job_id] = known
            continue
        job = _ours(job_id, states[job_id], known, hope, detail or answers.started.get(job_id), cluster)
        if job is None:
            foreign[job_id] = identity(detail) if detail is not None else foreign.get(job_id, UNREAD)
            if not_ours := _gone(known, hope, job_id, answers.began):
                jobs[job_id] = not_ours
            continue
        foreign.pop(job_id, None)
        same = known is not None and _is_same(known.job, job)
        if detail is not None:
            detailed[job_id] = sequence
        elif same and job_id in view.detailed:
            detailed[job_id] = view.detailed[job_id]
        jobs[job_id] = _told(known if same else None, job, answers.began)
    for job_id in {*before.jobs, *expected} - states.keys():
        if carried := _absent(job_id, before.jobs.get(job_id), expected.get(job_id), answers, cluster):
            jobs[job_id] = carried
    settled = before.sequence and not before.error and not unheard
    snapshot = Snapshot(
        sequence=sequence,
        began=answers.began,
        settled_since=before.settled_since if settled else answers.began,
        jobs=jobs,
        by_uid=before.by_uid if _same_links(before.jobs, jobs) else by_uid(jobs),
        nodes=before.nodes if answers.nodes is None else answers.nodes,
        partitions=before.partitions if answers.partitions is None else answers.partitions,
        absent=frozenset(jobs.keys() - answers.states.keys()),
    )
    return PollState(snapshot, listed, detailed, foreign)


def _ours(
    job_id: int, now: frozenset[str], known: ObservedJob | None, hope: Expected | None, read: Job | None, cluster: str
) -> Job | None:
    """Return a listed job as it is now; ``None`` if it belongs to others. What was just read counts before all else."""
    if read is not None:
        return read if read.link is not None and read.link.cluster == cluster else None
    if hope is not None and hope.sure:
        return known.job if known is not None and _is_submitted(known, hope) else Job(job_id, now, hope.link)
    return known.job if known is not None and not known.missing else None


def _is_submitted(known: ObservedJob, hope: Expected) -> bool:
    """Whether a known job is the one that was submitted, and not an earlier one with its id."""
    return not known.missing and end_of(known.job.states) is None and known.job.link == hope.link


def _is_same(before: Job, now: Job) -> bool:
    return before.link == now.link and is_same(identity(before), identity(now))


def _same_links(before: Mapping[int, ObservedJob], now: Mapping[int, ObservedJob]) -> bool:
    return before.keys() == now.keys() and all(
        known is before[job_id] or known.job.link == before[job_id].job.link for job_id, known in now.items()
    )


def _gone(known: ObservedJob | None, hope: Expected | None, job_id: int, began: float) -> ObservedJob | None:
    """Count that slurmctld knows no such job of ours; ``None`` if nobody thinks that there is one."""
    if known is None and hope is not None:
        known = ObservedJob(Job(job_id, frozenset({"PENDING"}), hope.link))
    if known is None or (known.missing and known.confirmations >= CONFIRMATIONS and began - known.since > FORGET_AFTER):
        return None
    return ObservedJob(known.job, min(known.confirmations + 1, CONFIRMATIONS), missing=True, since=known.since or began)


def _absent(
    job_id: int, known: ObservedJob | None, hope: Expected | None, answers: Answers, cluster: str
) -> ObservedJob | None:
    """Carry over a job that the list did not have."""
    if hope is not None and hope.sure and (known is None or not _is_submitted(known, hope)):
        known = ObservedJob(Job(job_id, frozenset({"PENDING"}), hope.link))
    detail = answers.details.get(job_id)
    if detail is not None and detail.link is not None and detail.link.cluster == cluster:  # the list was older
        same = known is not None and _is_same(known.job, detail)
        return _told(known if same else None, detail, answers.began)
    told_before = known is not None and known.missing and known.confirmations >= CONFIRMATIONS
    if job_id in answers.unknown or detail is not None or told_before:
        return _gone(known, hope, job_id, answers.began)
    return known


def _told(known: ObservedJob | None, job: Job, began: float) -> ObservedJob:
    """Count how often in a row the same end has been told."""
    end = end_of(job.states)
    if end is None:
        return known if known is not None and known.job == job and not known.confirmations else ObservedJob(job)
    if known is None or known.missing or end_of(known.job.states) != end:
        return ObservedJob(job, 1, since=began)
    return ObservedJob(job, min(known.confirmations + 1, CONFIRMATIONS), since=known.since)


def by_uid(jobs: Mapping[int, ObservedJob]) -> dict[str, tuple[int, ...]]:
    """Index the jobs by the UIDs of their pods, lowest id first."""
    found: dict[str, list[int]] = {}
    for job_id in sorted(jobs):
        link = jobs[job_id].job.link
        for pod in link.pods if link else ():
            found.setdefault(pod.uid, []).append(job_id)
    return {uid: tuple(ids) for uid, ids in found.items()}


def is_busy(snapshot: Snapshot) -> bool:
    """Whether something is about to change: a job waits or is on its way, or an end was told only once."""
    for known in snapshot.jobs.values():
        if known.confirmations == 1 or (
            not known.confirmations and "SUSPENDED" not in known.job.states and _moving(known.job)
        ):
            return True
    return False


def is_unexplained(snapshot: Snapshot) -> bool:
    """Whether a job of ours waits, and nobody knows why."""
    jobs = (known.job for known in snapshot.jobs.values())
    return any(job.link is not None and not job.reason and phase(job.states) is Phase.PENDING for job in jobs)


def _moving(job: Job) -> bool:
    return phase(job.states) in (Phase.PENDING, Phase.BETWEEN)
