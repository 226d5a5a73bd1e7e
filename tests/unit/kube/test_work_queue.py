from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.core.retries import Backoff
from bridge.kube.work_queue import WorkQueue
from tests.examples import examples
from tests.fakes.clock import FakeClock

KEYS = st.sampled_from("abcd")
DELAYS = st.integers(-1, 5)
END = -1
"""The key that ends the workers of a test."""


class Model(RuleBasedStateMachine):
    """The guarantees of the queue: no added key is lost, no key is processed twice at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(0)
        self.queue: WorkQueue[str] = WorkQueue("test", clock=self.clock, backoff=Backoff(1, 8, jitter=0))
        self.wanted: set[str] = set()  # must be returned by get, now or after done
        self.due: dict[str, float] = {}
        self.held: set[str] = set()
        self.failures: Counter[str] = Counter()

    def wake(self) -> None:
        for key in [key for key, when in self.due.items() if when <= self.clock.now]:
            del self.due[key]
            self.wanted.add(key)

    def later(self, key: str, delay: float) -> None:
        if delay <= 0:
            self.wanted.add(key)
        else:
            self.due[key] = min(self.due.get(key, 1e9), self.clock.now + delay)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.later(key, 0)

    @rule(key=KEYS, delay=DELAYS)
    def add_after(self, key: str, delay: int) -> None:
        self.queue.add_after(key, delay)
        self.later(key, delay)

    @rule(key=KEYS)
    def retry(self, key: str) -> None:
        self.queue.retry(key)
        self.failures[key] += 1
        self.later(key, min(8, 2 ** (self.failures[key] - 1)))

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.failures[key] = 0

    @rule(seconds=st.integers(1, 9))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def get(self) -> None:
        self.wake()
        key = self.queue.get(timeout=0)
        if self.wanted - self.held:
            assert key in self.wanted - self.held
            self.wanted.discard(key)
            self.held.add(key)
        else:
            assert key is None

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.queue.done(key)
        self.held.discard(key)

    @invariant()
    def counts(self) -> None:
        assert len(self.queue) <= len(self.wanted - self.held) + len(self.due)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=examples(40, 150), stateful_step_count=40, deadline=None, derandomize=True)


def test_many_threads_lose_nothing_and_never_share_a_key() -> None:
    queue: WorkQueue[int] = WorkQueue("threads")
    busy: set[int] = set()
    versions: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    lock = threading.Lock()
    clashes = []

    def work() -> None:
        while (key := queue.get()) >= 0:
            with lock:
                if key in busy:
                    clashes.append(key)
                busy.add(key)
                seen[key] = versions[key]
            with lock:
                busy.discard(key)
            queue.done(key)
        queue.done(key)
        queue.add(END)  # for the next worker

    def produce() -> None:
        for number in range(400):
            key = number % 7
            with lock:
                versions[key] += 1
            if number % 3:
                queue.add(key)
            else:
                queue.add_after(key, 0.001)

    workers = [threading.Thread(target=work) for _ in range(4)]
    producers = [threading.Thread(target=produce) for _ in range(3)]
    for thread in workers + producers:
        thread.start()
    for thread in producers:
        thread.join(10)
    end = threading.Event()
    for _ in range(200):
        with lock:
            if seen == versions and not busy:
                break
        end.wait(0.01)
    queue.add(END)
    for thread in workers:
        thread.join(5)
        assert not thread.is_alive()
    assert not clashes
    assert seen == versions


def test_delay_is_watched_while_the_first_waiter_works() -> None:
    queue: WorkQueue[str] = WorkQueue("waiters")
    got: list[str] = []
    working = threading.Event()
    finish = threading.Event()

    def work() -> None:
        while (key := queue.get()) != "end":
            got.append(key)
            if key == "long":
                working.set()
                finish.wait(5)
            queue.done(key)
        queue.done(key)
        queue.add("end")  # for the other worker

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    queue.add_after("later", 0.15)
    for _ in range(3):
        queue.add("long")
        assert working.wait(2)
    end = threading.Event()
    for _ in range(100):
        if "later" in got:
            break
        end.wait(0.01)
    assert "later" in got
    finish.set()
    queue.add("end")
    for thread in threads:
        thread.join(5)


def test_get_gives_up() -> None:
    queue: WorkQueue[str] = WorkQueue("empty")
    assert queue.get(timeout=0.01) is None
    queue.add("a")
    assert [queue.get(timeout=0.01), queue.get(timeout=0.01)] == ["a", None]


@pytest.mark.parametrize("failures", [1, 2, 3, 10])
def test_back_off_grows_for_each_key_alone(failures: int) -> None:
    clock = FakeClock(0)
    queue: WorkQueue[str] = WorkQueue("backoff", clock=clock, backoff=Backoff(1, 60, jitter=0))
    for _ in range(failures):
        queue.retry("bad")
        clock.advance(60)
        assert queue.get(0) == "bad"
        queue.done("bad")
    queue.retry("bad")
    queue.retry("good")
    clock.advance(1)
    assert queue.get(0) == "good"
    assert queue.get(0) is None
    clock.advance(min(60, 2**failures))
    assert queue.get(0) == "bad"
