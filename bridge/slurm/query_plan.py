"""Selects the jobs whose details a poll reads. Pure, no I/O.

``jobs/state`` has 80 bytes a job: its id and its states. Details are needed in these cases:

- The id was not in the last list: a new job.
- The states have changed. For a job of others, only a step backwards counts (``COMPLETED`` to ``PENDING``): a requeue,
  or another job with the same id. Its start and its end are not read.
- A job of podbridge is no longer in the list.
- A job of podbridge runs on several nodes. It may lose one (``scontrol update NodeList=``) and has the same state
  afterwards, so such jobs are read again in turn.
- The witness (:mod:`bridge.slurm.identity`) is another job than before: then all jobs are read as if they were new.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

from bridge.slurm.identity import UNREAD, Witness, highest, identity
from bridge.slurm.models import ObservedJob
from bridge.slurm.poll_state import Expected, PollState, States
from bridge.slurm.states import Phase, is_allocated, is_pending, phase

MOST_CONFIRMED = 50
"""Largest number of jobs missing from the list that one poll reads one by one."""
BULK_FACTOR = 4
"""Number of jobs in a list that cost as much CPU as one job read alone, on both sides: 0.7 ms against 2.7 ms."""
LARGEST_BULK = 1 << 25
"""Largest size in bytes of a list of all jobs: slurmrestd and podbridge both hold it in memory."""
MOST_SINGLES = 64
"""Number of jobs that one poll reads alone. The next poll reads more, while podbridge acts on these."""
LARGEST_SINGLES = 500
"""Largest number of jobs that one poll reads alone: their answers are in memory until the poll ends."""
SINGLES_SECONDS = 1.0
"""Least seconds for which one poll reads jobs alone: until it ends, podbridge sees no start of a job."""
LONGEST_SINGLES = 5.0
"""Most seconds for which one poll reads jobs alone."""
SINGLES_SHARE = 50
"""One poll reads alone one in this many jobs of the list, if this is more than ``MOST_SINGLES``."""

AGAIN = 5
"""Sequences of the snapshot after which a job that runs on several nodes is read again: 5 to 10 s if there are few."""

_RUNNING, _CONFIGURING = frozenset({"RUNNING"}), frozenset({"RUNNING", "CONFIGURING"})
_ORDER = {Phase.PENDING: 0, Phase.ALLOCATED: 1, Phase.BETWEEN: 1, Phase.ENDED: 2}


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The jobs to read in a poll.

    ``jobs`` are in the list, ``absent`` are no longer in it. Of ``started``, only the nodes are unknown.
    """

    jobs: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    started: tuple[int, ...] = ()

    def in_bulk(self, total: int, job_bytes: float) -> bool:
        """Whether one list of all ``total`` jobs is cheaper than single reads, and not too large."""
        return len(self.jobs) > 1 and len(self.jobs) * BULK_FACTOR > total and total * job_bytes <= LARGEST_BULK


def most_singles(total: int, rate: float, rest: float, *, cheap: bool) -> int:
    """Return how many jobs one poll reads alone: in about a second, and few if the list of ``total`` states is cheap.

    ``rate`` is the number of jobs that slurmrestd has returned per second. ``rest`` is the time that the poll needs for
    everything else, in seconds: at least half of the time is used to read jobs. The jobs that are left are read by the
    next polls. While the list is expensive, these need no other list.
    """
    limit = min(total // SINGLES_SHARE, LARGEST_SINGLES) if cheap else LARGEST_SINGLES
    seconds = min(max(SINGLES_SECONDS, rest), LONGEST_SINGLES)
    return max(MOST_SINGLES, min(limit, int(rate * seconds)))


def plan_queries(
    last: PollState,
    states: States,
    expected: Mapping[int, Expected],
    began: float,
    budget: int,
    *,
    allocations: bool = False,
    witnessed: Collection[int] = (),
) -> QueryPlan:
    """Return the jobs to read: new, changed and missing ones, and ``budget`` of the pending ones.

    The last keep the reasons of pending jobs up to date; those read least recently come first. Their number is fixed,
    whatever the number of pending jobs, and lower if many jobs start. One of it goes to a job that runs on several
    nodes. While no job has changed, it also goes to jobs whose comment was never read because only their nodes were.
    ``allocations``: the API can return the nodes of a job alone. ``witnessed``: jobs that the poll reads in any case
    (:func:`witnesses`); pending ones use up ``budget``.
    """
    ours = last.snapshot.jobs
    asked: list[int] = []
    started: list[int] = []
    changed = changed_jobs(last, states, expected)
    for job_id in changed:
        now = states[job_id]
        may_start = allocations and (job_id in ours or job_id in expected)
        (started if may_start and is_allocated(now) and _waited(last, job_id, expected) else asked).append(job_id)
    asked = _in_order(asked, ours.keys() | expected.keys(), states)
    quiet = _quiet(last, states, expected, set(changed)) if budget else []
    pending = [job_id for job_id in quiet if is_pending(states[job_id])]
    waiting = [job_id for job_id in pending if job_id not in witnessed]
    room = min(budget, max(1, budget - len(started) - (len(pending) - len(waiting))))
    unread = [job_id for job_id in quiet if job_id not in last.detailed and not is_pending(states[job_id])]
    proofs = [] if changed else unread[: min(room, max(1, room - len(waiting)))]
    again = [job_id for job_id in quiet if _may_lose_nodes(last, job_id)][: 0 if waiting and room == 1 else 1]
    absent = [job_id for job_id in (*ours, *(expected.keys() - ours.keys())) if job_id not in states]
    doubtful = [job_id for job_id in absent if _in_doubt(ours.get(job_id), expected.get(job_id), began)]
    doubtful.sort(key=lambda job_id: (job_id not in ours or not ours[job_id].missing, job_id))
    jobs = tuple(dict.fromkeys((*asked, *again, *waiting[: max(0, room - len(proofs) - len(again))], *proofs)))
    return QueryPlan(jobs, tuple(doubtful[:MOST_CONFIRMED]), tuple(started))


def starts_alone(
    last: PollState, states: States, expected: Mapping[int, Expected], began: float, most: int
) -> tuple[int, ...] | None:
    """Return podbridge's jobs that have started; ``None`` if there is other news, or more than ``most`` of them.

    Without other news the last snapshot remains valid, and no witness is needed: the details of these jobs contain
    their comments. The end of a job needs a second answer of slurmctld, so it is other news until then.
    """
    before = last.snapshot
    if not before.sequence or before.error or last.unread or before.listed_at == -math.inf:
        return None
    starts = changed_jobs(last, states, expected)
    if len(starts) > most or not all(is_allocated(states[i]) and _waited(last, i, expected) for i in starts):
        return None
    if any(
        known.confirmations == 1 or (job_id not in states and _in_doubt(known, None, began))
        for job_id, known in before.jobs.items()
    ):
        return None
    if any(
        job_id not in states and _in_doubt(before.jobs.get(job_id), expectation, began)
        for job_id, expectation in expected.items()
    ):
        return None
    return tuple(starts)


def _in_order(asked: Collection[int], known: Collection[int], states: States) -> list[int]:
    """Return jobs as they are read: those of podbridge that run or have ended first; then the newest ones.

    A job whose id podbridge does not know was submitted a short time ago. The lowest id is read before the newest ones:
    it is newer if slurmctld has begun again with low ids (``MaxJobId``). Every third job is a pending one of podbridge.
    """
    first = [job_id for job_id in asked if job_id in known and not is_pending(states[job_id])]
    ours = {job_id for job_id in asked if job_id in known and is_pending(states[job_id])}
    begun = {*first}
    newest = sorted((job_id for job_id in asked if job_id not in begun), reverse=True)
    pending = sorted(ours, reverse=True)
    newest = [*newest[-1:], *newest[:-1]]
    if not pending:  # tens of thousands of jobs of others may be unread
        return [*first, *newest]
    turns = zip_longest(newest[::2], newest[1::2], pending)
    return list(dict.fromkeys([*first, *(job_id for turn in turns for job_id in turn if job_id is not None)]))


def _quiet(last: PollState, states: States, expected: Mapping[int, Expected], changed: set[int]) -> list[int]:
    """Return podbridge's listed jobs without a change, those read least recently first."""
    ours = last.snapshot.jobs
    ids = {*(job_id for job_id, known in ours.items() if not known.missing), *expected}
    read_at = last.detailed.get
    found = sorted((read_at(job_id, 0), job_id) for job_id in ids if job_id in states and job_id not in changed)
    return [job_id for _, job_id in found]


def _may_lose_nodes(last: PollState, job_id: int) -> bool:
    known = last.snapshot.jobs.get(job_id)
    if known is None or len(known.job.nodes) < 2 or not is_allocated(known.job.states):
        return False
    return last.snapshot.sequence - last.detailed.get(job_id, 0) >= AGAIN


def changed_jobs(last: PollState, states: States, expected: Mapping[int, Expected]) -> list[int]:
    """Return the listed jobs whose details are needed; a job just submitted is left out while it is pending."""
    before, foreign = last.listed, last.foreign
    changed = []
    for job_id, now in states.items():
        was = before.get(job_id)
        if was is now:  # most states are the same objects as in the last poll: of 60,000 jobs, few are compared
            continue
        is_new = was is None and job_id not in expected
        if is_new or (was != now and _matters(last, job_id, now, expected.get(job_id))):
            changed.append(job_id)
    again = (i for i, expectation in expected.items() if expectation.sure and i in foreign)
    changed += [i for i in again if before.get(i) == states.get(i) and _matters(last, i, states[i], expected[i])]
    return changed


def _is_configured(last: PollState, job_id: int, now: frozenset[str]) -> bool:
    """Whether a job whose nodes are known is no longer ``CONFIGURING``: nothing else of it has changed."""
    known = last.snapshot.jobs.get(job_id)
    if known is None or known.missing or not known.job.nodes:
        return False
    return now == _RUNNING and last.listed.get(job_id) == _CONFIGURING


def _matters(last: PollState, job_id: int, now: frozenset[str], expectation: Expected | None) -> bool:
    if _is_configured(last, job_id, now):
        return False
    if expectation is not None and expectation.sure:
        return not is_pending(now)
    return job_id not in last.foreign or job_id not in last.listed or _goes_back(last.listed[job_id], now)


@lru_cache(maxsize=4096)  # thousands of jobs have a dozen combinations
def _goes_back(before: frozenset[str], now: frozenset[str]) -> bool:
    return _ORDER[phase(now)] < _ORDER[phase(before)]


def _waited(last: PollState, job_id: int, expected: Mapping[int, Expected]) -> bool:
    """Whether a job probably belongs to podbridge (its details are not read) and was pending in the last poll.

    False for a heterogeneous job: only its details have the nodes of all components.
    """
    known, expectation = last.snapshot.jobs.get(job_id), expected.get(job_id)
    links = (known.job.link if known else None, expectation.link if expectation else None)
    if any(link is not None and link.parts > 1 for link in links):
        return False
    if expectation is not None and expectation.sure:
        return True
    return known is not None and job_id in last.listed and not known.missing and is_pending(known.job.states)


def _in_doubt(known: ObservedJob | None, expected: Expected | None, began: float) -> bool:
    """Whether the absence of a job from a list requested at ``began`` still needs a confirmation."""
    if expected is not None and expected.since >= began:
        return False
    return known is None or not (known.missing and known.is_confirmed)


def witnesses(last: PollState, states: States, expected: Mapping[int, Expected]) -> dict[int, Witness]:
    """Return the jobs to read after all other answers of a poll, to see whether one is another job than before.

    One is the highest id of the last list that is still listed. The other is the highest id of the jobs that this
    process has just submitted and that have started: slurmctld may have been killed before it saved its last jobs, and
    has then assigned their ids again. While such a job is pending, nothing is decided about it: the next poll, in which
    its id is in the last list, reads it.
    """
    found: dict[int, Witness] = {}
    known_id = highest(last.listed, states)
    if known_id is not None:
        known = last.snapshot.jobs.get(known_id)
        if known_id in last.foreign or known is None:
            found[known_id] = Witness(last.foreign.get(known_id, UNREAD), None)
        else:
            found[known_id] = Witness(identity(known.job), known.job.link)
    submitted = {job_id: expectation for job_id, expectation in expected.items() if expectation.sure}
    submitted_id = max((i for i in submitted if i in states and not is_pending(states[i])), default=None)
    if submitted_id is not None:
        found[submitted_id] = Witness(UNREAD, expected[submitted_id].link)
    return found


def forgotten(last: PollState) -> PollState:
    """Return a state after which the next poll reads every listed job as if it were new. It keeps the snapshot."""
    return PollState(last.snapshot, changed_at=0)


def doubted(last: PollState) -> PollState:
    """Return a state after which the next poll reads the jobs whose comment was never read.

    Used after a failed poll: slurmctld may have been restarted.
    """
    proven: Iterable[tuple[int, frozenset[str]]] = (
        (job_id, now) for job_id, now in last.listed.items() if job_id in last.detailed or job_id in last.foreign
    )
    return replace(last, listed=dict(proven))
