"""From Slurm's answers to a snapshot: pure, no I/O.

One poll brings the states of all jobs (``Answers.states``), the details of some of them, and the ids of which slurmctld
has said that it knows no such job. :func:`wanted` says which details a poll needs, :func:`merge` makes the next view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from bridge.slurm.models import Job, JobLink, Known, Node, Partition, Snapshot
from bridge.slurm.states import Phase, end_of, is_allocated, is_pending, phase

SAID_ENOUGH = 2
CONFIRMATIONS = 50
"""Jobs gone from the list that one poll asks slurmctld about, one by one."""
FORGET_AFTER = 600.0
"""Seconds for which a job that slurmctld has forgotten stays in the snapshot."""
BULK_FACTOR = 4
"""How many jobs of a list cost as much as one asked for alone, both sides counted: 0.7 ms of CPU against 2.7."""
MOST_SINGLES = 64
"""Jobs asked for alone in one poll; the others are asked for in the next, while the first are acted on."""

States = Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Expected:
    """A job that should be there, and the monotonic time since when.

    ``sure``: this process has just submitted it. Else its details must prove that it is ours.
    """

    link: JobLink
    since: float
    sure: bool = True


@dataclass(frozen=True, slots=True)
class View:
    """What one poll leaves to the next.

    ``listed`` are all jobs of the last list in the states they had there; those that are not in the snapshot belong to
    others. ``detailed`` is the sequence in which a job's details were last read; without, it was never asked for.
    ``changed_at`` is slurmctld's time before which every change is in the view (``update_time``).
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    listed: States = field(default_factory=dict)
    detailed: Mapping[int, int] = field(default_factory=dict)
    changed_at: int = 0


@dataclass(frozen=True, slots=True)
class Answers:
    """What slurmctld has said in one poll that began at the monotonic time ``began``.

    ``nodes`` and ``partitions`` are ``None`` where they were not asked for.
    """

    began: float
    states: States
    details: Mapping[int, Job] = field(default_factory=dict)
    unknown: Collection[int] = ()
    nodes: Mapping[str, Node] | None = None
    partitions: Mapping[str, Partition] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Details that a poll needs: ``jobs`` are in the list, ``absent`` no more.

    Of ``started`` all is known but the nodes that Slurm has just given them.
    """

    jobs: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    started: tuple[int, ...] = ()

    def in_bulk(self, total: int) -> bool:
        """Whether one list of all ``total`` jobs is cheaper."""
        return len(self.jobs) > 1 and len(self.jobs) * BULK_FACTOR > total


def wanted(
    view: View,
    states: States,
    expected: Mapping[int, Expected],
    began: float,
    budget: int,
    *,
    allocations: bool = False,
) -> Wanted:
    """Say which jobs to ask for: new ones, changed ones, vanished ones, and ``budget`` of those that wait.

    The last are what keeps the reason of a waiting job fresh, those never asked for first and then the oldest: a fixed
    number, however many wait, and less where many start. ``allocations``: the nodes of a job can be asked for alone.
    """
    ours = view.snapshot.jobs
    asked: list[int] = []
    started: list[int] = []
    waiting: list[int] = []
    for job_id, now in states.items():
        if _is_news(view, job_id, now, expected):
            has_started = allocations and is_allocated(now) and _waited(ours.get(job_id), expected.get(job_id))
            (started if has_started else asked).append(job_id)
        elif is_pending(now) and (job_id in expected or (job_id in ours and not ours[job_id].missing)):
            waiting.append(job_id)
    waiting.sort(key=lambda job_id: (view.detailed.get(job_id, 0), job_id))
    absent = [job_id for job_id in (*ours, *(expected.keys() - ours.keys())) if job_id not in states]
    doubtful = [job_id for job_id in absent if _in_doubt(ours.get(job_id), expected.get(job_id), began)]
    doubtful.sort(key=lambda job_id: (job_id not in ours or not ours[job_id].missing, job_id))
    room = min(budget, max(1, budget - len(started)))
    return Wanted((*asked, *waiting[:room]), tuple(doubtful[:CONFIRMATIONS]), tuple(started))


def _waited(known: Known | None, expected: Expected | None) -> bool:
    """Whether a job is surely ours, and waited when it was last seen."""
    if known is not None:
        return not known.missing and is_pending(known.job.states)
    return expected is not None and expected.sure


def started(view: View, expected: Mapping[int, Expected], job_id: int, states: frozenset[str]) -> Job:
    """Give a job of ours that waited when it was last seen, as it is now, but for its nodes and the time of its start.

    Only for jobs that :func:`wanted` has named as started.
    """
    known = view.snapshot.jobs.get(job_id)
    if known is not None:
        return replace(known.job, states=states, reason="", description="")
    return Job(job_id, states, expected[job_id].link)


def _is_news(view: View, job_id: int, now: frozenset[str], expected: Mapping[int, Expected]) -> bool:
    """Whether a listed job must be asked for; one that we have just submitted need not while it waits."""
    trusted = job_id in expected and expected[job_id].sure and is_pending(now)
    return view.listed.get(job_id) != now and not trusted


def _in_doubt(known: Known | None, expected: Expected | None, began: float) -> bool:
    """Whether a job's absence from a list asked for at ``began`` is news."""
    if expected is not None and expected.since >= began:
        return False
    return known is None or not (known.missing and known.said >= SAID_ENOUGH)


def merge(view: View, answers: Answers, expected: Mapping[int, Expected], cluster: str) -> View:
    """Make the next view. A job is ours if its link names our ``cluster``, or if we are sure to have submitted it."""
    before, sequence = view.snapshot, view.snapshot.sequence + 1
    jobs: dict[int, Known] = {}
    listed: dict[int, frozenset[str]] = {}
    detailed: dict[int, int] = {}
    for job_id, now in answers.states.items():
        known, hope, detail = before.jobs.get(job_id), expected.get(job_id), answers.details.get(job_id)
        if detail is None and _is_news(view, job_id, now, expected):
            # not asked for yet, or gone before it could be: it keeps its old state, and is news again if still listed
            if job_id in view.listed:
                listed[job_id] = view.listed[job_id]
            if known is None and hope is not None and hope.sure:
                known = Known(Job(job_id, frozenset({"PENDING"}), hope.link))
            if known is not None:
                jobs[job_id] = known
            continue
        listed[job_id] = now
        link = _link(known, hope, detail, cluster)
        if link is None:
            if not_ours := _gone(known, hope, job_id, answers.began):
                jobs[job_id] = not_ours
            continue
        if detail is not None:
            job = replace(detail, link=link)
            detailed[job_id] = sequence
        else:
            job = known.job if known else Job(job_id, now, link)
            if job_id in view.detailed:
                detailed[job_id] = view.detailed[job_id]
        jobs[job_id] = _told(known, job, answers.began)
    for job_id in {*before.jobs, *expected} - answers.states.keys():
        if carried := _absent(job_id, before.jobs.get(job_id), expected.get(job_id), answers, cluster):
            jobs[job_id] = carried
    snapshot = Snapshot(
        sequence=sequence,
        began=answers.began,
        settled_since=before.settled_since if before.sequence and not before.error else answers.began,
        jobs=jobs,
        by_uid=before.by_uid if jobs.keys() == before.jobs.keys() else by_uid(jobs),
        nodes=before.nodes if answers.nodes is None else answers.nodes,
        partitions=before.partitions if answers.partitions is None else answers.partitions,
    )
    return View(snapshot, listed, detailed)


def _link(known: Known | None, hope: Expected | None, detail: Job | None, cluster: str) -> JobLink | None:
    """Say whose a job is; ``None``: somebody else's, as far as is known."""
    if known is not None and not known.missing:
        return known.job.link
    if detail is not None and detail.link is not None and detail.link.cluster == cluster:
        return detail.link
    return hope.link if hope is not None and hope.sure else None


def _gone(known: Known | None, hope: Expected | None, job_id: int, began: float) -> Known | None:
    """Count that slurmctld knows no such job of ours; ``None`` if nobody thinks that there is one."""
    if known is None and hope is not None:
        known = Known(Job(job_id, frozenset({"PENDING"}), hope.link))
    if known is None or (known.missing and known.said >= SAID_ENOUGH and began - known.since > FORGET_AFTER):
        return None
    return Known(known.job, min(known.said + 1, SAID_ENOUGH), missing=True, since=known.since or began)


def _absent(job_id: int, known: Known | None, hope: Expected | None, answers: Answers, cluster: str) -> Known | None:
    """Carry over a job that the list did not have."""
    detail = answers.details.get(job_id)
    link = _link(known, hope, detail, cluster)
    if detail is not None and link is not None:  # the list was older
        return _told(known, replace(detail, link=link), answers.began)
    told_before = known is not None and known.missing and known.said >= SAID_ENOUGH
    if job_id in answers.unknown or detail is not None or told_before:
        return _gone(known, hope, job_id, answers.began)
    if known is None and hope is not None and hope.sure:
        return Known(Job(job_id, frozenset({"PENDING"}), hope.link))
    return known


def _told(known: Known | None, job: Job, began: float) -> Known:
    """Count how often in a row the same end has been told."""
    end = end_of(job.states)
    if end is None:
        return known if known is not None and known.job == job and not known.said else Known(job)
    if known is None or known.missing or end_of(known.job.states) != end:
        return Known(job, 1, since=began)
    return Known(job, min(known.said + 1, SAID_ENOUGH), since=known.since)


def by_uid(jobs: Mapping[int, Known]) -> dict[str, tuple[int, ...]]:
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
        if known.said == 1 or (not known.said and "SUSPENDED" not in known.job.states and _moving(known.job)):
            return True
    return False


def is_unexplained(snapshot: Snapshot) -> bool:
    """Whether a job of ours waits, and nobody knows why."""
    jobs = (known.job for known in snapshot.jobs.values())
    return any(job.link is not None and not job.reason and phase(job.states) is Phase.PENDING for job in jobs)


def _moving(job: Job) -> bool:
    return phase(job.states) in (Phase.PENDING, Phase.BETWEEN)
