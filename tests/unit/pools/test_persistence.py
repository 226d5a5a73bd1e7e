"""The persistence of pools, over a link and a store without a network."""

import json
import logging
from dataclasses import asdict
from typing import Any

import pytest

from bridge.pools.submitter import persistence
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.persistence import AGAIN, JobRecord, PoolPersistence, PoolRecord, job_key, write
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import JobSubmission
from bridge.protocol.nats.envelope import pack
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Event
from bridge.protocol.nats.request_table import SNAPSHOT
from bridge.protocol.nats.subjects import Subjects
from bridge.telemetry.metrics import POOL_REMEMBERED
from tests.builders import job_status
from tests.builders import site_pod as pod
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink
from tests.fakes.store import FakeStore

OWNER = "c1"
SUBJECTS = Subjects("bridge.v1", "alpha", OWNER)
CONFIG = BuildConfigMessage(pool="alpha", digest="d", config={"runtime": {"kind": "podman"}})


def announcement(**changes: Any) -> Announce:
    base = {"pool": "alpha", "submitter": "s", "sequences": {}, "time": 1.0, "period": 5, "version": "1", "digest": "d"}
    return Announce.model_validate({**base, **changes})


def status(job: str, **changes: Any) -> JobStatus:
    return job_status(job, **{"owner": OWNER, "name": f"pod-{job}", **changes})


def pool_record(time: float, **changes: Any) -> bytes:
    return write(PoolRecord(time=time, announce=announcement(**changes), buildconfig=CONFIG))


def job_record(job: str, pool: str = "alpha") -> bytes:
    return write(JobRecord(pool=pool, job=job))


class Hub:
    """A hub whose threads are the test's: ``turn`` is the synchronizer's, ``work`` the pools' workers'."""

    def __init__(self, store: FakeStore | None = None, now: float = 1_000_000.0) -> None:
        self.link, self.clock, self.store = FakeLink(), FakeClock(now), store or FakeStore()
        self.pools = NatsPools(self.link, "bridge.v1", OWNER, self.clock)  # type: ignore[arg-type]
        self.link.after = self.pools.drain
        self.persistence = PoolPersistence(self.store, self.pools, self.clock, lambda: True, "test")
        self.jobs: dict[str, JobStatus] = {}
        self.link.subscribe(SUBJECTS.request(SNAPSHOT), lambda _s, _d, respond: respond(self._snapshot()))
        self.link.subscribe(SUBJECTS.requests()["submit"], lambda s, _d, respond: respond(self._submit(s)))
        self.link.subscribe(SUBJECTS.requests()["cancel"], lambda s, _d, respond: respond(self._cancel(s)))

    def _snapshot(self) -> bytes:
        body = {"submitter": "s", "sequence": 0, "jobs": [asdict(job) for job in self.jobs.values()]}
        return json.dumps({"v": 1, "body": body}).encode()

    def _submit(self, subject: str) -> bytes:
        job = self.jobs.setdefault(subject.rpartition(".")[2], status(subject.rpartition(".")[2]))
        return json.dumps({"v": 1, "body": {"status": asdict(job)}}).encode()

    def _cancel(self, subject: str) -> bytes:
        self.jobs.pop(subject.rpartition(".")[2], None)
        return json.dumps({"v": 1, "body": {"status": None}}).encode()

    def announce(self, **changes: Any) -> None:
        self.link.publish(SUBJECTS.announce, pack(announcement(**changes)))

    def hello(self) -> None:
        self.announce()
        self.link.publish(SUBJECTS.buildconfig, pack(CONFIG))
        self.work()

    def work(self) -> None:
        for pool in self.pools.pools().values():
            if pool.due(self.clock.monotonic()):
                pool.ask()

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        self.persistence._synchronizer.step()

    def stored(self, kind: str) -> dict[str, Any]:
        return {key: json.loads(value) for key, value in self.store.content.get(kind, {}).items()}

    @property
    def pool(self) -> Any:
        return self.pools.pools()["alpha"]


def test_a_pool_is_remembered_with_its_buildconfig_and_the_age_of_its_words() -> None:
    hub = Hub()
    hub.turn()
    hub.hello()
    hub.turn()
    record = hub.stored("pools")["alpha"]
    assert record["time"] == hub.clock.now
    assert record["announce"]["digest"] == "d"
    assert record["buildconfig"]["config"]["runtime"]["kind"] == "podman"

    later = Hub(hub.store, hub.clock.now + 3600)
    later.turn()
    announce, heard = later.pool.announced()
    assert (announce.pool, later.clock.now - heard) == ("alpha", 3600)
    assert later.pool.buildconfig().runtime.kind == "podman"
    assert later.pool.complete_at() is None


def test_words_from_the_future_are_still_from_before() -> None:
    hub = Hub(FakeStore({"pools": {"alpha": pool_record(9e9)}}))
    hub.clock.advance(50)
    hub.turn()
    assert hub.pool.announced()[1] < hub.persistence._began


def test_what_was_heard_is_better_than_what_is_remembered() -> None:
    hub = Hub(FakeStore({"pools": {"alpha": pool_record(5.0, digest="d", batch="old")}}))
    hub.announce(batch="new", digest="d")
    heard = hub.pool.announced()
    hub.turn()
    assert hub.pool.announced() == heard
    assert hub.pool.buildconfig().runtime.kind == "podman"  # that was not heard
    assert hub.stored("pools")["alpha"]["announce"]["batch"] == "new"


def test_a_buildconfig_that_is_not_the_one_announced_now_is_not_taken() -> None:
    hub = Hub(FakeStore({"pools": {"alpha": pool_record(5.0)}}))
    hub.announce(digest="another")
    hub.turn()
    assert hub.pool.buildconfig() is None


def test_announcements_that_say_nothing_new_are_written_now_and_then() -> None:
    hub = Hub()
    hub.turn()
    hub.hello()
    hub.turn()
    writes = hub.store.asked.count("put")
    for number in range(5):
        hub.clock.advance(1)
        hub.announce(time=number, sequences={}, free={"cpu": str(number)}, jobs={"running": number})
        hub.turn()
    assert hub.store.asked.count("put") == writes
    hub.announce(problem="batch system down")
    hub.turn()
    assert hub.stored("pools")["alpha"]["announce"]["problem"] == "batch system down"
    hub.clock.advance(AGAIN)
    hub.announce(problem="batch system down", free={"cpu": "9"})
    hub.turn()
    assert hub.stored("pools")["alpha"]["time"] == hub.clock.now


def test_the_life_of_a_job() -> None:
    hub = Hub()
    hub.turn()
    hub.hello()
    hub.pool.send("u1", JobSubmission(namespace="ns", name="pod-u1", script="export TOKEN=hunter2"))
    hub.turn()
    assert hub.stored("jobs")["alpha/u1"] == {"v": 1, "pool": "alpha", "job": "u1"}
    writes = hub.store.asked.count("put")
    running = status("u1", phase="running", job_id="77")
    for number in (1, 2, 3):
        event = Event(pool="alpha", submitter="s", sequence=number, status=running)
        hub.link.publish(SUBJECTS.event, pack(event))
        hub.turn()
    assert hub.store.asked.count("put") == writes
    assert hub.persistence.remembered("alpha") == 1
    hub.pool.cancel(pod("u1"), 0, forget=True)
    hub.turn()
    assert hub.stored("jobs") == {}
    assert hub.persistence.remembered("alpha") == 0
    assert b"hunter2" not in b"".join(value for kind in hub.store.content.values() for value in kind.values())


def test_a_map_counts_until_the_site_has_listed_its_jobs() -> None:
    content = {"pools": {"alpha": pool_record(5.0)}, "jobs": {job_key("alpha", u): job_record(u) for u in ("a", "b")}}
    hub = Hub(FakeStore(content))
    hub.turn()
    assert (hub.persistence.remembered("alpha"), POOL_REMEMBERED.labels("alpha")._value.get()) == (2, 2)
    assert hub.pool.jobs() == {}
    event = Event(pool="alpha", submitter="s", sequence=1, status=status("c"))
    hub.link.publish(SUBJECTS.event, pack(event))  # no list yet: nothing is dropped
    hub.turn()
    assert hub.persistence.remembered("alpha") == 2
    hub.jobs = {"b": status("b"), "d": status("d")}
    hub.clock.advance(20)
    hub.work()
    hub.turn()
    assert hub.stored("jobs").keys() == {"alpha/b", "alpha/d"}
    assert (hub.persistence.remembered("alpha"), POOL_REMEMBERED.labels("alpha")._value.get()) == (2, 0)


def test_a_store_that_answers_late_undoes_nothing() -> None:
    content = {"pools": {"alpha": pool_record(5.0)}, "jobs": {"alpha/old": job_record("old")}}
    hub = Hub(FakeStore(content))
    hub.store.down = "down"
    hub.turn()
    hub.hello()
    hub.pools.remove("alpha")
    hub.store.down = ""
    hub.turn(60)
    assert hub.pools.pools() == {}
    assert hub.store.content == {"pools": {}, "jobs": {}}


def test_a_pool_that_is_removed_takes_its_jobs_along() -> None:
    hub = Hub()
    hub.turn()
    hub.jobs = {"a": status("a")}
    hub.hello()
    hub.turn()
    assert hub.stored("jobs").keys() == {"alpha/a"}
    hub.pools.remove("alpha")
    hub.turn()
    assert hub.store.content == {"pools": {}, "jobs": {}}


def test_jobs_of_nobody_and_garbage_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    content = {
        "pools": {"alpha": pool_record(5.0), "beta": pool_record(5.0), "gamma": b"{"},
        "jobs": {"alpha/a": job_record("a"), "nobody/b": job_record("b", "nobody"), "alpha/c": b"\xff"},
    }
    hub = Hub(FakeStore(content))
    hub.turn()
    hub.turn(1)
    assert set(hub.pools.pools()) == {"alpha"}
    assert hub.store.content["jobs"].keys() == {"alpha/a"}
    assert hub.store.content["pools"].keys() == {"alpha"}
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert told[0].kv["records"] == 3  # type: ignore[attr-defined]


def test_a_site_that_makes_up_jobs_fills_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "MOST_JOBS", 10)
    hub = Hub()
    hub.turn()
    hub.jobs = {f"u{number}": status(f"u{number}", job_id="x" * 5000) for number in range(50)}
    hub.hello()
    hub.turn()
    assert hub.persistence.remembered("alpha") == 10
    writes = hub.store.asked.count("put")
    hub.clock.advance(61)
    hub.work()
    hub.turn()
    assert hub.store.asked.count("put") == writes  # nothing has changed


def test_a_pool_that_says_too_much_is_not_kept_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    import random

    hub = Hub()
    hub.turn()
    for number in range(3):
        hub.announce(labels={"a": random.Random(number).randbytes(400_000).hex()})
        hub.turn(AGAIN)
    assert hub.stored("pools") == {}
    assert len([record for record in caplog.records if record.message == "a record was not stored"]) == 1
