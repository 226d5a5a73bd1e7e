"""Calls on a bounded number of threads."""

import threading
import time
from collections.abc import Iterator

import pytest

from bridge.core.threads import Supervisor
from bridge.core.workers import IDLE, Workers
from bridge.errors import BatchError
from tests.fakes.clock import FakeClock


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr("bridge.core.workers.POLL", 0.02)  # a thread looks for a stop as often
    made = Supervisor()
    yield made
    made.stop()
    assert made.join(5) == []


def _threads(name: str) -> int:
    return sum(thread.name.startswith(f"{name}-") for thread in threading.enumerate())


def test_as_many_threads_as_calls_at_once_and_never_more_than_allowed(supervisor: Supervisor) -> None:
    workers, go, running = Workers("grow", 3), threading.Event(), threading.Semaphore(0)

    def call() -> None:
        running.release()
        go.wait(5)

    workers.start(supervisor)
    assert _threads("grow") == 0
    for number, expected in enumerate((1, 2, 3, 3, 3)):
        assert workers.submit(f"key{number}", call)
        assert _threads("grow") == expected
    for _ in range(3):
        assert running.acquire(timeout=5)
    assert workers.backlog
    assert not running.acquire(timeout=0.1)
    go.set()
    for _ in range(2):
        assert running.acquire(timeout=5)


def test_a_thread_is_used_again(supervisor: Supervisor) -> None:
    workers = Workers("again", 8)
    workers.start(supervisor)
    for number in range(20):
        workers.submit(f"key{number}", lambda: None)
        while workers.busy(f"key{number}"):
            time.sleep(0.001)
    assert _threads("again") == 1


def test_idle_threads_end_and_a_later_call_starts_one(supervisor: Supervisor) -> None:
    clock = FakeClock()
    workers, gate, called = Workers("idle", 4, clock=clock), threading.Event(), threading.Event()
    workers.start(supervisor)
    for number in range(4):
        workers.submit(f"key{number}", lambda: gate.wait(5))
    first = [thread for thread in threading.enumerate() if thread.name.startswith("idle-")]
    assert len(first) == 4
    gate.set()
    while any(workers.busy(f"key{number}") for number in range(4)):
        time.sleep(0.001)
    clock.advance(IDLE)
    for thread in first:
        thread.join(5)
    assert _threads("idle") == 0
    assert not supervisor.stopping.is_set()
    assert workers.submit("later", called.set)
    assert called.wait(5)
    assert _threads("idle") == 1
    assert not supervisor._writers & set(first)


def test_no_idle_thread_ends_that_a_call_needs(supervisor: Supervisor) -> None:
    """A thread that has found no call for a long time sees under the lock that one has come."""
    workers = Workers("needed", 2)
    workers.submit("running", lambda: None)
    workers._started = 1
    assert not workers._leave()
    workers._started = 2
    assert not workers._leave(), "the call is still in the queue"
    workers._queue.get()
    assert workers._leave()
    assert not workers._leave(), "it runs on the last thread"


def test_no_call_is_lost_while_threads_end(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.core.workers.IDLE", 0.0)
    monkeypatch.setattr("bridge.core.workers.POLL", 0.0005)
    workers, called = Workers("race", 3), threading.Semaphore(0)
    workers.start(supervisor)
    for number in range(300):
        assert workers.submit(f"key{number}", called.release)
        if number % 3 == 0:
            time.sleep(0.0005)
    for _ in range(300):
        assert called.acquire(timeout=5)


def test_calls_that_came_before_the_start_are_carried_out(supervisor: Supervisor) -> None:
    workers, called = Workers("early", 2), threading.Semaphore(0)
    for number in range(5):
        workers.submit(f"key{number}", called.release)
    assert not called.acquire(timeout=0.1)
    workers.start(supervisor)
    for _ in range(5):
        assert called.acquire(timeout=5)
    assert _threads("early") == 2


def test_one_call_a_key_at_a_time_and_the_most_urgent_first(supervisor: Supervisor) -> None:
    workers, order, done = Workers("order", 1), list[str](), threading.Event()
    for key, urgency in (("late", 8), ("soon", 1), ("usual", 5)):
        assert workers.submit(key, lambda key=key: order.append(key), urgency)  # type: ignore[misc]
        assert not workers.submit(key, lambda: order.append("twice"), urgency)
    workers.submit("last", done.set, 9)
    workers.start(supervisor)
    assert done.wait(5)
    assert order == ["soon", "usual", "late"]


def test_neither_an_error_of_ours_nor_a_bug_ends_more_than_a_call(
    supervisor: Supervisor, isolates: list[tuple[str, str]]
) -> None:
    done = threading.Event()
    workers = Workers("errors", 1, done=lambda _: done.set())

    def refused() -> None:
        raise BatchError("no")

    def bug() -> None:
        raise ZeroDivisionError

    workers.start(supervisor)
    workers.submit("one", refused)
    assert done.wait(5)
    assert not workers.busy("one")
    assert not supervisor.stopping.is_set()
    done.clear()
    workers.submit("two", bug, kind="bind")
    assert done.wait(5)
    assert isolates == [("worker", "two")]
    assert not workers.submit("two", bug, kind="bind"), "a back-off"
    assert not supervisor.stopping.is_set()
