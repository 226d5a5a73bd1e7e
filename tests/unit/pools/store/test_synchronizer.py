"""The synchronizer, step by step, on a clock that the test moves."""

import logging
import threading
import time
from collections.abc import Collection, Mapping

import pytest

from bridge.clock import SystemClock
from bridge.core.threads import Supervisor
from bridge.pools.store.synchronizer import BATCH, COMPARE, Key, StoreSynchronizer
from bridge.telemetry.metrics import STORE_UP
from tests.fakes.clock import FakeClock
from tests.fakes.store import FakeStore


class FakeSource:
    kinds = ("pools", "jobs")

    def __init__(self) -> None:
        self.known: dict[Key, bytes] = {}
        self.changed: list[set[Key]] = []

    def merge(self, stored: Mapping[str, Mapping[str, bytes]], changed: Collection[Key]) -> None:
        self.changed.append(set(changed))
        for kind, values in stored.items():
            for key, value in values.items():
                if (kind, key) not in changed and value != b"garbage":
                    self.known.setdefault((kind, key), value)

    def all_keys(self) -> Collection[Key]:
        return list(self.known)

    def value(self, kind: str, key: str) -> bytes | None:
        return self.known.get((kind, key))


class Kept:
    def __init__(self, content: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        self.store, self.source, self.clock = FakeStore(content), FakeSource(), FakeClock()
        self.leading = self.reachable = True
        self.synchronizer = StoreSynchronizer(
            self.store, self.source, self.clock, lambda: self.leading, "test", lambda: self.reachable
        )

    def say(self, kind: str, key: str, value: bytes | None) -> None:
        if value is None:
            self.source.known.pop((kind, key), None)
        else:
            self.source.known[kind, key] = value
        self.synchronizer.mark(kind, key)

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.synchronizer.step()


def test_what_the_store_has_is_taken_once() -> None:
    kept = Kept({"pools": {"a": b"1"}})
    kept.turn()
    assert kept.synchronizer.loaded.is_set()
    assert kept.source.known == {("pools", "a"): b"1"}
    kept.turn(1)
    assert kept.store.asked == ["load", "load"]


def test_the_last_word_on_a_key_is_written_and_one_round_is_enough() -> None:
    kept = Kept()
    kept.turn()
    for number in range(100):
        kept.say("jobs", "j", str(number).encode())
    kept.say("jobs", "gone", b"x")
    kept.say("jobs", "gone", None)
    assert kept.synchronizer.waiting == 2
    kept.turn()
    assert kept.store.content["jobs"] == {"j": b"99"}
    assert kept.store.asked.count("put") == 1
    assert kept.synchronizer.waiting == 0


def test_many_keys_are_written_in_batches() -> None:
    kept = Kept()
    kept.turn()
    for number in range(3 * BATCH + 1):
        kept.say("jobs", str(number), b"x")
    kept.turn()
    assert len(kept.store.content["jobs"]) == 3 * BATCH + 1
    assert kept.store.asked.count("put") == 4


def test_a_store_that_is_down_is_told_of_once_and_brought_into_step(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [r.kv["error"] for r in caplog.records if r.levelno >= logging.WARNING]  # type: ignore[attr-defined]

    kept = Kept()
    kept.turn()
    kept.say("jobs", "before", b"1")
    kept.turn()
    kept.store.down = "connection refused"
    for number in range(200):
        kept.say("jobs", "j", str(number).encode())
        kept.turn(0.5)
    assert STORE_UP.labels("test")._value.get() == 0
    assert warnings() == ["connection refused (start it)"]
    assert kept.store.asked.count("put") + kept.store.asked.count("load") < 30  # it is not hammered
    kept.store.down = "wrong password"
    kept.turn(11)
    assert warnings()[1:] == ["wrong password (start it)"]  # something else is wrong now
    kept.store.content.clear()  # it comes back without what it was given
    kept.store.down = ""
    kept.turn(11)
    assert kept.store.content["jobs"] == {"before": b"1", "j": b"199"}
    assert STORE_UP.labels("test")._value.get() == 1
    kept.store.down = "connection refused"
    kept.say("jobs", "j", b"x")
    kept.turn(1)
    assert len(warnings()) == 3  # another time


def test_what_changed_before_the_store_answered_is_not_taken_from_it() -> None:
    kept = Kept({"pools": {"a": b"old"}, "jobs": {"gone": b"old", "kept": b"1"}})
    kept.store.down = "down"
    kept.turn()
    kept.say("pools", "a", b"new")
    kept.say("jobs", "gone", None)
    kept.store.down = ""
    kept.turn(11)
    assert kept.source.changed[-1] == {("pools", "a"), ("jobs", "gone")}
    assert kept.store.content == {"pools": {"a": b"new"}, "jobs": {"kept": b"1"}}


def test_everything_is_compared_now_and_then_and_in_doubt() -> None:
    kept = Kept({"pools": {"a": b"1", "b": b"garbage"}})
    kept.turn()
    assert kept.store.content["pools"] == {"a": b"1"}
    kept.store.content["pools"] = {}
    kept.turn(COMPARE - 1)
    assert kept.store.content["pools"] == {}
    kept.turn(1)
    assert kept.store.content["pools"] == {"a": b"1"}
    kept.store.content["pools"] = {}
    kept.synchronizer.compare_soon()
    kept.turn()
    assert kept.store.content["pools"] == {"a": b"1"}


def test_who_does_not_lead_reads_once_and_writes_nothing() -> None:
    kept = Kept({"pools": {"a": b"1", "b": b"garbage"}})
    kept.leading = False
    kept.turn()
    kept.say("pools", "a", None)
    kept.say("pools", "c", b"3")
    for _ in range(5):
        kept.turn(COMPARE)
    assert kept.store.content["pools"] == {"a": b"1", "b": b"garbage"}
    assert kept.store.asked == ["load", "load"]
    kept.store.content["pools"]["d"] = b"4"  # by the leader before
    kept.leading = True
    kept.turn()
    assert kept.store.content["pools"] == {"a": b"1", "c": b"3", "d": b"4"}


def test_one_that_loses_the_lead_stops_in_the_middle() -> None:
    kept = Kept()
    kept.turn()
    for number in range(3 * BATCH):
        kept.say("jobs", str(number), b"x")
    put = kept.store.put

    def put_and_lose(kind: str, values: Mapping[str, bytes]) -> None:
        put(kind, values)
        kept.leading = False

    kept.store.put = put_and_lose  # type: ignore[method-assign]
    kept.turn()
    assert len(kept.store.content["jobs"]) == BATCH


def test_what_can_not_be_reached_is_not_asked_and_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept({"pools": {"a": b"1"}})
    kept.reachable = False
    for _ in range(5):
        kept.turn(10)
    assert kept.store.asked == []
    assert not caplog.records
    assert STORE_UP.labels("test")._value.get() == 0
    kept.reachable = True
    kept.turn()
    assert kept.synchronizer.loaded.is_set()


def test_nobody_waits_for_a_store_that_hangs_and_the_last_words_are_written() -> None:
    kept = Kept()
    hanging = threading.Event()
    put = kept.store.put

    def hang(kind: str, values: Mapping[str, bytes]) -> None:
        hanging.wait(10)
        put(kind, values)

    kept.store.put = hang  # type: ignore[method-assign]
    synchronizer = StoreSynchronizer(kept.store, kept.source, SystemClock(), lambda: True, "test")
    kept.synchronizer = synchronizer
    supervisor = Supervisor()
    synchronizer.start(supervisor)
    assert synchronizer.loaded.wait(5)
    kept.say("jobs", "first", b"x")
    time.sleep(0.4)
    begun = time.monotonic()
    for number in range(10_000):
        kept.say("jobs", str(number % 100), b"x")
    assert time.monotonic() - begun < 1
    assert synchronizer.waiting <= 101
    supervisor.stop()
    hanging.set()
    assert supervisor.join(5) == []
    assert supervisor.failure is None
    assert len(kept.store.content["jobs"]) == 101
    assert kept.store.closed == 1
