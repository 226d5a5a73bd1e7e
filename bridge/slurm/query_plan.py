"""Selects the jobs whose details a poll reads. Pure, no I/O.

``jobs/state`` has 80 bytes a job: its id and its states. Details are needed in these cases:

- The id was not in the last list: a new job.
- The states have changed. For a job of others, only a step backwards counts (``COMPLETED`` to ``PENDING``): a requeue,
  or another job with the same id. Its start and its end are not read.
- A job of podbridge is no longer in the list.
- A job of podbridge runs on several nodes. It may lose one (``scontrol update NodeList=``) and has the same state
  afterwards, so such jobs are read again in turn.
- The witness (:mod:`bridge.slurm.poll_state`) is another job than before: then all jobs are read as if they were new.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

from bridge.slurm.models import ObservedJob
from bridge.slurm.poll_state import UNREAD, Expected, PollState, States, Witness, highest, identity
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
# BETWEEN is no step back: a suspended job that resumes is the same job
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


def most_singles(total: int, rate: float, other_seconds: float, *, cheap: bool) -> int:
    """Return how many jobs one poll reads alone: in about a second, and few if the list of ``total`` states is cheap.

    ``rate`` is the number of jobs that slurmrestd has returned per second. ``other_seconds`` is the time in seconds
    that the poll needs for everything else: at least half of the time is used to read jobs. The next polls read the
    remaining jobs. While the list is expensive, these polls need no other list.
    """
    limit = min(total // SINGLES_SHARE, LARGEST_SINGLES) if cheap else LARGEST_SINGLES
    seconds = min(max(SINGLES_SECONDS, other_seconds), LONGEST_SINGLES)
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
    own_ids = last.snapshot.jobs.keys() | expected.keys()
    changed = changed_jobs(last, states, expected)
    # resources/{job} costs half of the details, and of a job that podbridge knows only the nodes are new
    starting = [i for i in changed if i in own_ids and is_allocated(states[i])] if allocations else []
    started = {i: None for i in starting if _was_pending(last, i, expected)}
    details = _in_reading_order([i for i in changed if i not in started], own_ids, states)
    unchanged = _unchanged_jobs(last, states, expected, set(changed)) if budget else []
    pending = [job_id for job_id in unchanged if is_pending(states[job_id])]
    waiting = [job_id for job_id in pending if job_id not in witnessed]
    room = min(budget, max(1, budget - len(started) - (len(pending) - len(waiting))))
    unread = [job_id for job_id in unchanged if job_id not in last.detailed and not is_pending(states[job_id])]
    checks = [] if changed else unread[: min(room, max(1, room - len(waiting)))]
    reread = [job_id for job_id in unchanged if _may_lose_nodes(last, job_id)][: 0 if waiting and room == 1 else 1]
    jobs = dict.fromkeys((*details, *reread, *waiting[: max(0, room - len(checks) - len(reread))], *checks))
    absent = _doubtful(last.snapshot.jobs, expected, states, began)
    return QueryPlan(tuple(jobs), tuple(absent[:MOST_CONFIRMED]), tuple(started))


def _doubtful(
    own_jobs: Mapping[int, ObservedJob], expected: Mapping[int, Expected], states: States, began: float
) -> list[int]:
    """Return podbridge's jobs that are not in the list and whose absence still needs a confirmation."""
    absent = (job_id for job_id in own_jobs.keys() | expected.keys() if job_id not in states)
    doubtful = [i for i in absent if _needs_confirmation(own_jobs.get(i), expected.get(i), began)]
    # first the jobs that slurmctld has reported as missing before: a second answer confirms their end
    return sorted(doubtful, key=lambda job_id: (job_id not in own_jobs or not own_jobs[job_id].missing, job_id))


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
    if len(starts) > most or not all(is_allocated(states[i]) and _was_pending(last, i, expected) for i in starts):
        return None
    if any(
        observed_job.confirmations == 1 or (job_id not in states and _needs_confirmation(observed_job, None, began))
        for job_id, observed_job in before.jobs.items()
    ):
        return None
    if any(
        job_id not in states and _needs_confirmation(before.jobs.get(job_id), expectation, began)
        for job_id, expectation in expected.items()
    ):
        return None
    return tuple(starts)


def _in_reading_order(job_ids: Collection[int], own_ids: Collection[int], states: States) -> list[int]:
    """Return the jobs in the order of their reading: podbridge's jobs that run or have ended, then the newest ones.

    ``job_ids`` are the jobs to read, ``own_ids`` podbridge's. The newest jobs come early because a job whose id
    podbridge does not know was submitted a short time ago. The lowest id is read before the newest ones: it is newer if
    slurmctld has begun again with low ids (``MaxJobId``). Every third job is a pending one of podbridge.
    """
    running_or_ended = [job_id for job_id in job_ids if job_id in own_ids and not is_pending(states[job_id])]
    pending_own = {job_id for job_id in job_ids if job_id in own_ids and is_pending(states[job_id])}
    in_front = {*running_or_ended}
    newest = sorted((job_id for job_id in job_ids if job_id not in in_front), reverse=True)
    pending = sorted(pending_own, reverse=True)
    newest = [*newest[-1:], *newest[:-1]]
    if not pending:  # tens of thousands of jobs of others may be unread
        return [*running_or_ended, *newest]
    turns = zip_longest(newest[::2], newest[1::2], pending)
    return list(
        dict.fromkeys([*running_or_ended, *(job_id for turn in turns for job_id in turn if job_id is not None)])
    )


def _unchanged_jobs(last: PollState, states: States, expected: Mapping[int, Expected], changed: set[int]) -> list[int]:
    """Return podbridge's listed jobs without a change, those read least recently first."""
    own_jobs = last.snapshot.jobs
    ids = {*(job_id for job_id, observed_job in own_jobs.items() if not observed_job.missing), *expected}
    read_at = last.detailed.get
    by_age = sorted((read_at(job_id, 0), job_id) for job_id in ids if job_id in states and job_id not in changed)
    return [job_id for _, job_id in by_age]


def _may_lose_nodes(last: PollState, job_id: int) -> bool:
    observed_job = last.snapshot.jobs.get(job_id)
    if observed_job is None or len(observed_job.job.nodes) < 2 or not is_allocated(observed_job.job.states):
        return False
    return last.snapshot.sequence - last.detailed.get(job_id, 0) >= AGAIN


def changed_jobs(last: PollState, states: States, expected: Mapping[int, Expected]) -> list[int]:
    """Return the listed jobs whose details are needed; a job just submitted is left out while it is pending."""
    before, foreign = last.listed, last.foreign
    changed = []
    for job_id, now in states.items():
        earlier = before.get(job_id)
        if earlier is now:  # most states are the same objects as in the last poll: of 60,000 jobs, few are compared
            continue
        is_new = earlier is None and job_id not in expected
        if is_new or (earlier != now and _needs_details(last, job_id, now, expected.get(job_id))):
            changed.append(job_id)
    reused_ids = (i for i, expectation in expected.items() if expectation.sure and i in foreign)
    changed += [
        i for i in reused_ids if before.get(i) == states.get(i) and _needs_details(last, i, states[i], expected[i])
    ]
    return changed


def _is_configured(last: PollState, job_id: int, now: frozenset[str]) -> bool:
    """Whether a job whose nodes are known is no longer ``CONFIGURING``: nothing else of it has changed."""
    observed_job = last.snapshot.jobs.get(job_id)
    if observed_job is None or observed_job.missing or not observed_job.job.nodes:
        return False
    # with a prolog, this change follows each start: the details would be read twice
    return now == _RUNNING and last.listed.get(job_id) == _CONFIGURING


def _needs_details(last: PollState, job_id: int, now: frozenset[str], expectation: Expected | None) -> bool:
    if _is_configured(last, job_id, now):
        return False
    if expectation is not None and expectation.sure:
        return not is_pending(now)
    return job_id not in last.foreign or job_id not in last.listed or _goes_back(last.listed[job_id], now)


@lru_cache(maxsize=4096)  # thousands of jobs have a dozen combinations
def _goes_back(before: frozenset[str], now: frozenset[str]) -> bool:
    return _ORDER[phase(now)] < _ORDER[phase(before)]


def _was_pending(last: PollState, job_id: int, expected: Mapping[int, Expected]) -> bool:
    """Whether a job probably belongs to podbridge (its details are not read) and was pending in the last poll.

    False for a heterogeneous job: only its details have the nodes of all components.
    """
    observed_job, expectation = last.snapshot.jobs.get(job_id), expected.get(job_id)
    links = (observed_job.job.link if observed_job else None, expectation.link if expectation else None)
    if any(link is not None and link.parts > 1 for link in links):
        return False
    if expectation is not None and expectation.sure:
        return True
    return (
        observed_job is not None
        and job_id in last.listed
        and not observed_job.missing
        and is_pending(observed_job.job.states)
    )


def _needs_confirmation(observed_job: ObservedJob | None, expected: Expected | None, began: float) -> bool:
    """Whether the absence of a job from a list requested at ``began`` still needs a confirmation."""
    # submitted after the request for the list, which cannot contain it
    if expected is not None and expected.since >= began:
        return False
    return observed_job is None or not (observed_job.missing and observed_job.is_confirmed)


def witnesses(last: PollState, states: States, expected: Mapping[int, Expected]) -> dict[int, Witness]:
    """Return the jobs to read after all other answers of a poll, to see whether one is another job than before.

    One is the highest id of the last list that is still listed. The other is the highest id of the jobs that this
    process has just submitted and that have started: slurmctld may have been killed before it saved its last jobs, and
    has then assigned their ids again. While such a job is pending, nothing is decided about it: the next poll, in which
    its id is in the last list, reads it.
    """
    witness_by_id: dict[int, Witness] = {}
    highest_id = highest(last.listed, states)
    if highest_id is not None:
        observed_job = last.snapshot.jobs.get(highest_id)
        if highest_id in last.foreign or observed_job is None:
            witness_by_id[highest_id] = Witness(last.foreign.get(highest_id, UNREAD), None)
        else:
            witness_by_id[highest_id] = Witness(identity(observed_job.job), observed_job.job.link)
    submitted = {job_id: expectation for job_id, expectation in expected.items() if expectation.sure}
    submitted_id = max((i for i in submitted if i in states and not is_pending(states[i])), default=None)
    if submitted_id is not None:
        witness_by_id[submitted_id] = Witness(UNREAD, expected[submitted_id].link)
    return witness_by_id


def forgotten(last: PollState) -> PollState:
    """Return a state after which the next poll reads every listed job as if it were new. It keeps the snapshot."""
    # without changed_at, 22.05 to 23.11 send all jobs again, not only after a change
    return PollState(last.snapshot, changed_at=0)


def doubted(last: PollState) -> PollState:
    """Return a state after which the next poll reads the jobs whose comment was never read.

    Used after a failed poll: slurmctld may have been restarted.
    """
    proven: Iterable[tuple[int, frozenset[str]]] = (
        (job_id, now) for job_id, now in last.listed.items() if job_id in last.detailed or job_id in last.foreign
    )
    return replace(last, listed=dict(proven))
