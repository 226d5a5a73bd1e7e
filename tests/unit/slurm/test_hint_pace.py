"""The limit of polls that hints cause."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.hint_pace import BURST, GAP, MOST_ALONE, READ_COST, HintPace

POLL = 0.01
"""Seconds that a poll takes."""


def polls_of(hints: list[float], rate: float) -> list[float]:
    """Return when a poller that hints alone wake begins its polls; the hints arrive at these times."""
    pace, now, begun = HintPace(rate, 0.0), 0.0, []
    ended = -math.inf
    pending = sorted(hints)
    while True:
        while pending and pending[0] <= now:
            pace.add()
            pending.pop(0)
        due = pace.due(ended + GAP, now)
        if due <= now:
            assert pace.take(now)
            begun.append(now)
            now = ended = now + POLL
        elif due < math.inf or pending:
            now = min(due, pending[0]) if pending else due
        else:
            return begun


def test_without_a_hint_no_poll_is_due() -> None:
    pace = HintPace(5.0, 0.0)
    assert pace.due(0.0, 1.0) == math.inf
    assert not pace.take(1.0)


def test_a_single_hint_causes_a_poll_at_once() -> None:
    assert polls_of([3.0], 5.0) == [3.0]


def test_the_hints_of_an_array_of_ten_thousand_share_few_polls() -> None:
    begun = polls_of([index / 5000 for index in range(10_000)], 5.0)  # two seconds
    assert len(begun) <= BURST + 2 * 5.0 + 1
    assert begun[-1] >= 9_999 / 5000, "the last hint has a poll that began after it"


def test_up_to_eight_jobs_are_read_alone() -> None:
    pace = HintPace(5.0, 0.0)
    for job_id in [*range(MOST_ALONE), 0]:
        pace.add(job_id)
    assert pace.jobs == frozenset(range(MOST_ALONE))
    pace.add(MOST_ALONE)
    assert not pace.jobs, "a poll costs less"
    assert pace.take(0.0)
    assert pace.due(0.0, 0.0) == math.inf


def test_a_hint_without_a_job_needs_a_poll() -> None:
    pace = HintPace(5.0, 0.0)
    pace.add(1)
    pace.add()
    assert not pace.jobs
    assert pace.due(0.0, 0.0) == 0.0


def test_four_reads_cost_as_much_as_a_poll() -> None:
    pace, now = HintPace(2.0, 0.0), 0.0
    for _ in range(int(4 * BURST)):
        pace.add(1)
        assert pace.due(now, now, 1) == now
        pace.take_jobs(now, {1})
    pace.add(1)
    assert pace.due(now, now, 1) == now + READ_COST / 2.0
    assert pace.due(now, now, 4) == pace.due(now, now) == now + 0.5


def test_a_poll_leaves_the_hints_of_jobs_that_are_read_alone() -> None:
    pace = HintPace(5.0, 0.0)
    pace.add(1)
    assert not pace.take(0.0, keep={1, 2})
    assert pace.jobs == {1}
    pace.add(3)
    assert pace.take(0.0, keep={1, 2}), "it serves the hint about job 3"
    assert pace.jobs == {1}
    pace.add()
    assert pace.take(0.0, keep={1}), "a hint without a job may be about any job"
    assert (pace.jobs, pace.due(0.0, 0.0)) == (frozenset(), math.inf)


def test_a_read_leaves_the_hints_that_arrived_meanwhile() -> None:
    pace = HintPace(5.0, 0.0)
    pace.add(1)
    chosen = pace.jobs
    pace.add(2)
    pace.take_jobs(0.0, chosen)
    assert pace.jobs == {2}
    assert pace.due(0.0, 0.0, 1) == 0.0
    pace.add()
    pace.take_jobs(0.0, {2})
    assert pace.due(0.0, 0.0) == 0.0, "the hint without a job still needs a poll"


@given(st.lists(st.floats(0, 20), min_size=1, max_size=200), st.floats(0.5, 20))
def test_polls_are_apart_and_bounded_and_serve_every_hint(hints: list[float], rate: float) -> None:
    begun = polls_of(hints, rate)
    assert all(later - earlier >= GAP for earlier, later in pairwise(begun))
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            assert last - first + 1 <= BURST + (begun[last] - begun[first]) * rate + 1e-6
    assert begun[-1] >= max(hints)
    assert all(any(hint <= at for at in begun) for hint in hints)
