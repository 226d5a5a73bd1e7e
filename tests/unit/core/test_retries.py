"""Back-off of failed calls, and one log line for many failures."""

import logging
import threading
import time

import pytest

from bridge.core.retries import Backoff, Reports, Retries
from bridge.core.threads import Supervisor
from bridge.core.workers import Workers
from bridge.errors import LostLeadershipError, SlurmUnavailableError
from tests.fakes.clock import FakeClock


def test_each_failure_in_a_row_doubles_the_rest_up_to_the_limit():
    clock = FakeClock(0.0)
    retries = Retries(Backoff(first=1, limit=8), clock, rand=lambda: 0.0)
    begins = []
    while clock.now < 40:
        if not retries.resting("a", "bind"):
            begins.append(clock.now)
            retries.failed("a", "bind")
        clock.advance(0.5)
    assert begins == [0, 1, 3, 7, 15, 23, 31, 39]


def test_a_back_off_is_for_one_key_and_one_kind_and_ends_with_a_success():
    clock = FakeClock(0.0)
    retries = Retries(Backoff(first=4), clock, rand=lambda: 0.0)
    retries.failed("a", "bind")
    assert [retries.resting(*entry) for entry in (("a", "bind"), ("a", "cancel"), ("b", "bind"))] == [
        True,
        False,
        False,
    ]
    retries.succeeded("a", "bind")
    assert not retries.resting("a", "bind")
    retries.failed("a", "bind")
    clock.advance(4)
    assert not retries.resting("a", "bind")
    clock.advance(100)  # long after the last failure: the next one counts as the first
    retries.failed("a", "bind")
    clock.advance(4)
    assert not retries.resting("a", "bind")


def test_old_failures_are_forgotten():
    clock = FakeClock(0.0)
    retries = Retries(clock=clock)
    for number in range(5000):
        retries.failed(f"key{number}", "bind")
        clock.advance(1)
    assert len(retries._failures) < 1100


def test_delays_of_many_keys_are_spread():
    clock = FakeClock(0.0)
    retries = Retries(Backoff(first=10, jitter=0.2), clock)
    for number in range(100):
        retries.failed(f"key{number}", "bind")
    clock.advance(9)
    resting = sum(retries.resting(f"key{number}", "bind") for number in range(100))
    assert 20 < resting < 80


def test_one_report_a_kind_in_a_while_with_the_number_left_out():
    clock = FakeClock(0.0)
    reports = Reports(30, clock)
    assert [reports.due("a"), reports.due("a"), reports.due("b"), reports.due("a")] == [0, None, 0, None]
    clock.advance(30)
    assert reports.due("a") == 2
    assert reports.due("a") is None


def test_an_api_that_is_away_is_asked_a_few_times_for_each_pod_and_one_line_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """200 pods with permanent failures, decided repeatedly as in the scheduler."""
    supervisor, calls, lock = Supervisor(), dict[str, int](), threading.Lock()
    workers = Workers("away", 8)

    def call(key: str) -> None:
        with lock:
            calls[key] = calls.get(key, 0) + 1
        raise SlurmUnavailableError("jobs/: no answer")

    workers.start(supervisor)
    end = time.monotonic() + 2
    with caplog.at_level(logging.WARNING, "bridge.core.workers"):
        while time.monotonic() < end:
            for number in range(200):
                workers.submit(f"uid{number}", lambda key=f"uid{number}": call(key), 2, kind="bind")  # type: ignore[misc]
            time.sleep(0.01)
        supervisor.stop()
        assert supervisor.join(5) == []
    assert len(calls) == 200
    assert max(calls.values()) <= 4  # at 0, 0.4 to 0.5, 1.2 to 1.5 s
    assert sum(calls.values()) <= 800
    assert [record.getMessage() for record in caplog.records] == ["call failed; it will be retried"]


def test_a_lost_lease_is_no_failure_and_a_caller_with_a_back_off_of_its_own_gets_no_second_one() -> None:
    supervisor, done = Supervisor(), threading.Semaphore(0)
    workers = Workers("own", 1, done=lambda _: done.release())

    def lost() -> None:
        raise LostLeadershipError("lost")

    def away() -> None:
        raise SlurmUnavailableError("away")

    workers.start(supervisor)
    for call, kind in ((lost, "bind"), (away, "")):
        for _ in range(3):
            assert workers.submit("key", call, kind=kind)
            assert done.acquire(timeout=5)
    supervisor.stop()
    assert supervisor.join(5) == []
