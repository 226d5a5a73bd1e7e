"""The pace of a control loop."""

import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, cast

import pytest

from bridge.clock import SystemClock
from bridge.control import control_loop
from bridge.control.control_loop import (
    BATCH_DELAY,
    FIRST_DELAY,
    LONGEST_RESYNC_PERIOD,
    PAUSE_FACTOR,
    RESYNC_PERIOD,
    Loop,
)
from bridge.core.threads import Supervisor
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from cluster.polling import eventually
from tests.fakes.clock import FakeClock


class Recorder(Loop):
    """Records when it reconciles. A whole reconciliation takes ``cost`` seconds of CPU time."""

    def __init__(self, cost: float = 0.0, caches: Sequence[Cache] = ()) -> None:
        super().__init__("recorder", caches, None, 1, SystemClock())
        self.times: list[float] = []
        self.parts: list[tuple[float, Set[str]]] = []
        self.cost = cost

    def reconcile(self) -> None:
        end = time.thread_time() + self.cost
        while time.thread_time() < end:
            pass
        self.times.append(time.monotonic())

    def reconcile_some(self, keys: Set[str]) -> None:
        self.parts.append((time.monotonic(), keys))


@contextmanager
def running(loop: Loop) -> Iterator[None]:
    supervisor = Supervisor()
    loop.start(supervisor)
    try:
        yield
    finally:
        supervisor.stop()
        loop.wake()  # it looks for a stop when its pause ends
        assert supervisor.join(5) == []


@pytest.fixture
def resync_period(monkeypatch: pytest.MonkeyPatch) -> float:
    """A shorter :data:`~bridge.control.control_loop.RESYNC_PERIOD`, in seconds."""
    period = 0.3
    monkeypatch.setattr(control_loop, "RESYNC_PERIOD", period)
    return period


def test_a_change_after_a_pause_is_reconciled_before_the_next_ones_are_collected() -> None:
    loop, delays = Recorder(), []
    with running(loop):
        for count in range(1, 7):
            time.sleep(3 * BATCH_DELAY)
            loop.times.clear()
            began = time.monotonic()
            loop.wake()
            eventually(lambda: loop.times, f"reconciliation {count}")
            delays.append(loop.times[0] - began)
    assert min(delays) < 0.7 * BATCH_DELAY, "the fastest, since the machine may be busy"


def test_changes_in_quick_succession_share_a_reconciliation() -> None:
    loop = Recorder()
    with running(loop):
        end = time.monotonic() + 10 * BATCH_DELAY
        while time.monotonic() < end:
            loop.wake()
            time.sleep(0.001)
    assert len(loop.times) >= 2
    assert all(later - earlier >= 0.9 * BATCH_DELAY for earlier, later in pairwise(loop.times))


def test_touched_objects_do_not_wait_for_the_pause_of_a_whole_reconciliation(resync_period: float) -> None:
    loop, delays = Recorder(cost=resync_period / PAUSE_FACTOR), []
    with running(loop):
        for key in map(str, range(4)):
            loop.times.clear()
            eventually(lambda: loop.times, "a whole reconciliation")
            time.sleep(2 * BATCH_DELAY)
            began = time.monotonic()
            loop.touch((key,))
            loop.wake()
            eventually(lambda key=key: any(key in keys for _, keys in loop.parts), "a partial one", 5)  # type: ignore[misc]
            delays.append(loop.parts[-1][0] - began)
    assert min(delays) < resync_period / 4


def test_an_urgent_key_waits_for_no_pause_and_no_whole_reconciliation(resync_period: float) -> None:
    loop, delays = Recorder(cost=resync_period / PAUSE_FACTOR), []
    with running(loop):
        eventually(lambda: loop.times, "the first one is whole")
        for key in map(str, range(6)):
            loop.touch(("other",))
            loop.wake()
            time.sleep(1.2 * BATCH_DELAY)  # a partial one has just been, and a whole one is due or not
            began = time.monotonic()
            loop.touch((key,), at_once=True)
            eventually(lambda key=key: any(key in keys for _, keys in loop.parts), "a partial one", 5, 0.001)  # type: ignore[misc]
            delays.append(loop.parts[-1][0] - began)
    assert min(delays) < FIRST_DELAY, "the fastest, since the machine may be busy"


@pytest.mark.parametrize("at_once", [False, True])
def test_the_first_reconciliation_is_whole(at_once: bool) -> None:
    loop = Recorder()
    loop.touch(("one",), at_once=at_once)
    with running(loop):
        eventually(lambda: loop.times, "a reconciliation")
    assert not loop.parts or loop.times[0] < loop.parts[0][0]


def test_keys_that_are_touched_in_quick_succession_share_a_partial_reconciliation() -> None:
    loop, keys = Recorder(), [str(number) for number in range(200)]
    with running(loop):
        eventually(lambda: loop.times, "the first one is whole")
        for key in keys:
            loop.touch((key,))
            time.sleep(0.001)
        # on a busy machine, a whole reconciliation may come between and include some of the keys
        eventually(lambda: set().union(*(part for _, part in loop.parts)) == set(keys) or loop.times[1:], "all keys")
    times = [at for at, _ in loop.parts]
    assert all(later - earlier >= 0.9 * BATCH_DELAY for earlier, later in pairwise(times))


def test_touched_objects_do_not_keep_a_whole_reconciliation_from_its_turn() -> None:
    loop = Recorder(cost=0.01)
    with running(loop):
        end = time.monotonic() + 6 * PAUSE_FACTOR * loop.cost
        while time.monotonic() < end:
            loop.touch(("one",))
            loop.wake()
            time.sleep(0.001)
    assert len(loop.times) >= 3
    assert loop.parts


@pytest.mark.parametrize(
    ("took", "whole_after", "resync_after"),
    [
        (0.0, BATCH_DELAY, RESYNC_PERIOD),
        (0.04, 0.76, RESYNC_PERIOD),
        (0.1, RESYNC_PERIOD, 1.9),
        (1.0, RESYNC_PERIOD, LONGEST_RESYNC_PERIOD),
    ],
)
def test_the_pause_after_a_whole_reconciliation(took: float, whole_after: float, resync_after: float) -> None:
    loop = Recorder()
    loop.clock = FakeClock()
    loop._pause(whole=True, cpu_seconds=took)
    now = loop.clock.monotonic()
    assert loop._resync_at - now == pytest.approx(resync_after)
    loop.wake()
    assert loop._next() - now == pytest.approx(whole_after - FIRST_DELAY), "after a change"


def test_an_error_about_no_single_object_stops_no_other_loop_and_makes_this_one_stuck(
    isolates: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, works = Recorder(), threading.Event()
    monkeypatch.setattr("bridge.control.control_loop.STUCK", 0.2)
    reconcile = loop.reconcile

    def broken() -> None:
        reconcile()
        if not works.is_set():
            raise ZeroDivisionError

    loop.reconcile = broken  # type: ignore[method-assign]
    with running(loop):
        eventually(lambda: len(loop.times) >= 2 and loop.stuck(), "repeated, and reported as stuck")
        works.set()
        eventually(lambda: not loop.stuck(), "it makes progress again")
    assert set(isolates) == {("loop", "recorder")}


class Lease:
    """A lease that a test takes away."""

    held, inherited = True, False

    def check(self) -> None:
        raise NotImplementedError


def test_a_lease_that_was_lost_during_a_long_pause_is_noticed(resync_period: float) -> None:
    lease, started = Lease(), list[float]()
    loop = Recorder(cost=LONGEST_RESYNC_PERIOD / PAUSE_FACTOR)
    loop._elector = cast(Elector, lease)
    loop.on_started_leading = lambda: started.append(time.monotonic())  # type: ignore[method-assign]
    with running(loop):
        eventually(lambda: loop.times, "the first reconciliation")
        lease.held = False
        eventually(lambda: loop.leading_since is None, "the loss", LONGEST_RESYNC_PERIOD / 2)
        lease.held = True
        eventually(lambda: len(loop.times) == 2, "a reconciliation of the new term", LONGEST_RESYNC_PERIOD / 2)
    assert len(started) == 2


class Nodes:
    """A cache with one subscriber."""

    synced, listing = True, False

    def subscribe(self, fn: Any) -> None:
        self.deliver = fn


def node(version: str, *, ready: str = "True") -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    return {"kind": "Node", "metadata": {"name": "n1", "resourceVersion": version}, "status": status}


@pytest.mark.parametrize(
    ("listing", "old", "new", "wakes"),
    [
        (False, None, node("1"), True),
        (False, node("1"), None, True),
        (False, node("1"), node("2"), False),
        (False, node("1"), node("2", ready="False"), True),
        (False, node("1"), {**node("2"), "spec": {"unschedulable": True}}, True),
        (False, node("1"), {**node("2"), "metadata": {"name": "n1", "labels": {}, "resourceVersion": "2"}}, True),
        (True, node("1"), node("2"), True),
    ],
)
def test_a_node_that_is_reported_again_wakes_no_loop(listing: bool, old: Any, new: Any, wakes: bool) -> None:
    nodes = Nodes()
    loop = Recorder(caches=[cast(Cache, nodes)])
    loop.clock = FakeClock()
    loop.subscribe()
    loop._pause(whole=True, cpu_seconds=0.0)
    loop._is_woken = False
    pause = loop._next() - loop.clock.monotonic()
    assert pause == pytest.approx(RESYNC_PERIOD)
    nodes.listing = listing
    nodes.deliver("update", old, new)
    assert (loop._next() - loop.clock.monotonic() < pause) == wakes
