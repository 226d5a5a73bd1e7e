"""Which jobs a poll must ask slurmctld about, one by one: pure, no I/O.

``jobs/state`` tells 80 bytes a job: its id and its states. From that alone these signs show that details are needed:

- An id that the list before did not have: a new job.
- Other states than before. Of a job of somebody else only states that go backwards count (``COMPLETED`` to
  ``PENDING``): a requeue, or another job with the id. Its start and its end are not asked about.
- A job of ours that is not listed any more.
- The witness (:mod:`bridge.slurm.identity`) is another job: then every job is asked about as if it were new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from bridge.slurm.identity import UNREAD, Witness, highest, identity
from bridge.slurm.models import ObservedJob
from bridge.slurm.poll_state import CONFIRMATIONS, Expected, PollState, States
from bridge.slurm.states import Phase, is_allocated, is_pending, phase

MOST_CONFIRMED = 50
"""Jobs gone from the list that one poll asks slurmctld about, one by one."""
BULK_FACTOR = 4
"""How many jobs of a list cost as much as one asked for alone, both sides counted: 0.7 ms of CPU against 2.7."""
LARGEST_BULK = 1 << 25
"""Bytes of the largest list that is read at once: slurmrestd makes it in memory, and so do we."""
MOST_SINGLES = 64
"""Jobs asked for alone in one poll; the others are asked for in the next, while the first are acted on."""
SINGLE_SECONDS = 0.003
"""Seconds that one job asked for alone takes."""
LARGEST_SINGLES = 5000
"""Jobs asked for alone in one poll, however long the list took: their answers are kept until the poll ends."""
SINGLES_SHARE = 50
"""Of a list with more than ``MOST_SINGLES`` times as many jobs, one in so many is asked for alone in one poll."""

_ORDER = {Phase.PENDING: 0, Phase.ALLOCATED: 1, Phase.BETWEEN: 1, Phase.ENDED: 2}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Details that a poll needs: ``jobs`` are in the list, ``absent`` no more.

    Of ``started`` all is known but the nodes that Slurm has just given them.
    """

    jobs: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    started: tuple[int, ...] = ()

    def in_bulk(self, total: int, job_bytes: float) -> bool:
        """Whether one list of all ``total`` jobs is cheaper, and not too large."""
        return len(self.jobs) > 1 and len(self.jobs) * BULK_FACTOR > total and total * job_bytes <= LARGEST_BULK


def most_singles(total: int, seconds: float) -> int:
    """Return how many jobs one poll asks for alone: what costs about as much as the list of ``total`` states.

    ``seconds`` is the time that slurmrestd took for that list. It grows with the square of ``total``, so a list of tens
    of thousands of jobs must be read in few polls.
    """
    return max(MOST_SINGLES, total // SINGLES_SHARE, min(int(seconds / SINGLE_SECONDS), LARGEST_SINGLES))


def wanted(
    view: PollState,
    states: States,
    expected: Mapping[int, Expected],
    began: float,
    budget: int,
    *,
    allocations: bool = False,
    witnessed: Collection[int] = (),
) -> Wanted:
    """Say which jobs to ask for: new ones, changed ones, vanished ones, and ``budget`` of those that wait.

    The last are what keeps the reason of a waiting job fresh, those never asked for first and then the oldest: a fixed
    number, however many wait, and less where many start. While nothing has changed, it also goes to jobs whose link
    was never read because only their nodes were. ``allocations``: the nodes of a job can be asked for alone.
    ``witnessed``: jobs that the poll asks for in any case (:func:`witnesses`). Those that wait use up ``budget``.
    """
    ours = view.snapshot.jobs
    asked: list[int] = []
    started: list[int] = []
    changed = news(view, states, expected)
    for job_id in changed:
        now = states[job_id]
        (started if allocations and is_allocated(now) and _waited(view, job_id, expected) else asked).append(job_id)
    asked.sort(key=lambda job_id: job_id not in ours and job_id not in expected)
    quiet = _quiet(view, states, expected, set(changed))
    pending = [job_id for job_id in quiet if is_pending(states[job_id])]
    waiting = [job_id for job_id in pending if job_id not in witnessed]
    room = min(budget, max(1, budget - len(started) - (len(pending) - len(waiting))))
    unread = [job_id for job_id in quiet if job_id not in view.detailed and not is_pending(states[job_id])]
    proofs = [] if changed else unread[: min(room, max(1, room - len(waiting)))]
    absent = [job_id for job_id in (*ours, *(expected.keys() - ours.keys())) if job_id not in states]
    doubtful = [job_id for job_id in absent if _in_doubt(ours.get(job_id), expected.get(job_id), began)]
    doubtful.sort(key=lambda job_id: (job_id not in ours or not ours[job_id].missing, job_id))
    jobs = (*asked, *waiting[: room - len(proofs)], *proofs)
    return Wanted(jobs, tuple(doubtful[:MOST_CONFIRMED]), tuple(started))


def _quiet(view: PollState, states: States, expected: Mapping[int, Expected], changed: set[int]) -> list[int]:
    """Return the listed jobs of ours without news, those asked for longest ago first."""
    ours = view.snapshot.jobs
    ids = {*(job_id for job_id, known in ours.items() if not known.missing), *expected}
    found = [job_id for job_id in ids if job_id in states and job_id not in changed]
    found.sort(key=lambda job_id: (view.detailed.get(job_id, 0), job_id))
    return found


def news(view: PollState, states: States, expected: Mapping[int, Expected]) -> list[int]:
    """Return the listed jobs whose details are needed; one that we have just submitted need not while it waits."""
    before, foreign = view.listed, view.foreign
    changed = [job_id for job_id, now in states.items() if before.get(job_id) != now]
    changed += [i for i, hope in expected.items() if hope.sure and i in foreign and before.get(i) == states.get(i)]
    return [job_id for job_id in changed if _matters(view, job_id, states[job_id], expected.get(job_id))]


def _matters(view: PollState, job_id: int, now: frozenset[str], hope: Expected | None) -> bool:
    if hope is not None and hope.sure:
        return not is_pending(now)
    return job_id not in view.foreign or job_id not in view.listed or _goes_back(view.listed[job_id], now)


@lru_cache(maxsize=4096)  # thousands of jobs have a dozen combinations
def _goes_back(before: frozenset[str], now: frozenset[str]) -> bool:
    return _ORDER[phase(now)] < _ORDER[phase(before)]


def _waited(view: PollState, job_id: int, expected: Mapping[int, Expected]) -> bool:
    """Whether a job is ours, as far as can be known without its details, and waited when it was last seen."""
    known, hope = view.snapshot.jobs.get(job_id), expected.get(job_id)
    if hope is not None and hope.sure:
        return True
    return known is not None and job_id in view.listed and not known.missing and is_pending(known.job.states)


def _in_doubt(known: ObservedJob | None, expected: Expected | None, began: float) -> bool:
    """Whether a job's absence from a list asked for at ``began`` is news."""
    if expected is not None and expected.since >= began:
        return False
    return known is None or not (known.missing and known.confirmations >= CONFIRMATIONS)


def witnesses(view: PollState, states: States, expected: Mapping[int, Expected]) -> dict[int, Witness]:
    """Return the jobs to look at after all other answers of a poll: none may be another job than before.

    One is the highest id of the list before that is still listed. The other is the highest one that this process has
    just submitted: slurmctld may have been killed before it wrote down the last jobs, and have given their ids again.
    """
    found: dict[int, Witness] = {}
    known_id = highest(view.listed, states)
    if known_id is not None:
        known = view.snapshot.jobs.get(known_id)
        if known_id in view.foreign or known is None:
            found[known_id] = Witness(view.foreign.get(known_id, UNREAD), None)
        else:
            found[known_id] = Witness(identity(known.job), known.job.link)
    submitted_id = highest({job_id: hope for job_id, hope in expected.items() if hope.sure}, states)
    if submitted_id is not None:
        found[submitted_id] = Witness(UNREAD, expected[submitted_id].link)
    return found


def forgotten(view: PollState) -> PollState:
    """Return a view after which every listed job is asked about as if it were new; jobs of ours stay what they were."""
    return PollState(view.snapshot, changed_at=0)


def doubted(view: PollState) -> PollState:
    """Return a view after which jobs whose link was never read are asked about: slurmctld may have been restarted."""
    proven: Iterable[tuple[int, frozenset[str]]] = (
        (job_id, now) for job_id, now in view.listed.items() if job_id in view.detailed or job_id in view.foreign
    )
    return PollState(view.snapshot, dict(proven), view.detailed, view.foreign, view.changed_at)
