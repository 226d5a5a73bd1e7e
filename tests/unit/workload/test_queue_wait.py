"""How long a job probably waits in the queue of a place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.models import Job
from bridge.workload.queue_wait import HISTORY, SHORT, expected_wait, of_slurm

NOW = 1_000_000.0


def test_a_place_without_jobs_or_with_short_waits_has_no_wait() -> None:
    assert expected_wait([], NOW) == 0
    assert expected_wait([(NOW - 100, NOW - 100 + SHORT - 1)], NOW) == 0


def test_it_is_the_median_of_the_waits_of_the_last_hour() -> None:
    waits = [(NOW - 1000, NOW - 1000 + seconds) for seconds in (20, 300, 900)]
    assert expected_wait(waits, NOW) == 300
    assert expected_wait([*waits, (NOW - 3 * HISTORY, NOW - HISTORY - 1)], NOW) == 300


def test_no_job_waits_less_than_the_oldest_one_has_waited_already() -> None:
    assert expected_wait([(NOW - 2000, NOW - 1990), (NOW - 700, None), (NOW - 30, None)], NOW) == 700


@pytest.mark.parametrize(
    ("reason", "wait"),
    [
        ("Priority", 700),
        ("", 700),
        ("Dependency", 40),
        ("DependencyNeverSatisfied", 40),
        ("JobHeldUser", 40),
        ("BeginTime", 40),
    ],
)
def test_a_pending_job_counts_only_if_it_waits_its_turn(reason: str, wait: float) -> None:
    pending = Job(1, frozenset({"PENDING"}), submit_time=NOW - 700, start_time=NOW + 60, reason=reason)
    started = Job(2, frozenset({"RUNNING"}), submit_time=NOW - 100, start_time=NOW - 60, reason="Dependency")
    assert of_slurm([pending, started], NOW) == wait


times = st.floats(NOW - 2 * HISTORY, NOW)


@given(st.lists(st.tuples(times, st.none() | times)))
def test_it_has_one_digit_and_is_within_the_waits(jobs: list[tuple[float, float | None]]) -> None:
    wait = expected_wait(jobs, NOW)
    assert wait == float(f"{wait:.1g}")
    longest = max((max(0, (NOW if started is None else started) - submitted) for submitted, started in jobs), default=0)
    assert 0 <= wait <= 1.5 * longest
