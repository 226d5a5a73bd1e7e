"""One processor for the submitter's threads, all for what it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from bridge.site import cpus

T = TypeVar("T")
ALL = os.sched_getaffinity(0)
WHERE = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpus, "_own_cpus", set())
    yield
    assert os.sched_getaffinity(0) == ALL


def apart(work: Callable[[], T]) -> T:
    """Work on a thread of its own: where a thread may run is its own affair."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def started() -> str:
    return subprocess.run(WHERE, capture_output=True, text=True, check=True).stdout.strip()


def test_threads_keep_to_one_and_what_they_start_has_all() -> None:
    def work() -> None:
        cpus.keep_to_one()
        one = os.sched_getaffinity(0)
        assert len(one) == 1
        assert one < ALL or len(ALL) == 1
        assert apart(lambda: os.sched_getaffinity(0)) == one
        with cpus.all_given():
            assert started() == str(sorted(ALL))
        assert os.sched_getaffinity(0) == one
        assert cpus.count() == len(ALL)

    apart(work)


def test_an_error_while_something_is_started_changes_nothing() -> None:
    def work() -> None:
        cpus.keep_to_one()
        with pytest.raises(FileNotFoundError), cpus.all_given():
            subprocess.run(["/no/such/program"], check=True)
        assert len(os.sched_getaffinity(0)) == 1

    apart(work)


def test_without_it_nothing_is_touched() -> None:
    with cpus.all_given():
        assert os.sched_getaffinity(0) == ALL
    assert cpus.count() == len(ALL)


def test_where_it_is_not_allowed_all_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(_who: int, _cpus: set[int]) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    cpus.keep_to_one()
    with cpus.all_given():
        assert os.sched_getaffinity(0) == ALL
    assert cpus.count() == len(ALL)
