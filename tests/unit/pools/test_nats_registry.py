"""The registry of pools, over a link without a network."""

import json
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from bridge import names
from bridge.errors import ScriptError, SiteRefusedError
from bridge.pools.submitter import job_view
from bridge.pools.submitter.nats_registry import MUTE, NatsPools
from bridge.pools.submitter.site_requests import LEAST_GAP, PERIOD
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import JobSubmission
from bridge.protocol.nats.envelope import LIMITS, pack, parse
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Event, Problem, Reply, Request
from bridge.protocol.nats.request_table import SNAPSHOT
from bridge.protocol.nats.subjects import Subjects
from bridge.script import library
from bridge.script.references import Objects
from tests.builders import job_status
from tests.builders import site_pod as pod
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

OWNER = "c1"
SUBJECTS = Subjects("bridge.v1", "alpha", OWNER)
SUBMIT = JobSubmission(namespace="n", name="p", script="x")


def job(uid: str, phase: str = "queued") -> JobStatus:
    return job_status(uid, phase, owner=OWNER)


def announce(
    sequence: int = 0,
    submitter: str = "s",
    pool: str = "alpha",
    digest: str = "d",
    library: str = "",
    gangs: bool = False,
) -> bytes:
    about = {"pool": pool, "submitter": submitter, "sequences": {OWNER: sequence}, "digest": digest, "library": library}
    about["gangs"] = about["heterogeneous_gangs"] = gangs
    return pack(Announce.model_validate({"time": 0, "period": 5, "version": "1", **about}))


def event(sequence: int, status: JobStatus, pool: str = "alpha") -> bytes:
    return pack(Event(pool=pool, submitter="s", sequence=sequence, status=status))


class Hub:
    """A hub whose workers run when the test calls them."""

    def __init__(self) -> None:
        self.link, self.clock = FakeLink(), FakeClock()
        self.pools = NatsPools(self.link, "bridge.v1", OWNER, self.clock)  # type: ignore[arg-type]
        self.link.after = self.pools.drain
        self.told: list[tuple[str, str]] = []
        self.pools.subscribe(lambda pool, uid: self.told.append((pool, uid)))
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.bodies: list[Any] = []
        for kind, pattern in SUBJECTS.requests().items():
            self.link.subscribe(pattern, lambda _s, data, respond, kind=kind: self._answer(kind, data, respond))
        self.answers["snapshot"] = [{"submitter": "s", "sequence": 0, "jobs": []}]

    def _answer(self, kind: str, data: bytes, respond: Any) -> None:
        self.asked.append(kind)
        self.bodies.append(parse(Request, data).body)
        answer = self.answers.get(kind)
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if callable(answer):
            answer = answer()
        respond(pack(answer) if isinstance(answer, Reply) else json.dumps({"v": 1, "body": answer or {}}).encode())

    @property
    def pool(self) -> Any:
        return self.pools.pools()["alpha"]

    def work(self) -> None:
        """Run the work of the workers."""
        for pool in self.pools.pools().values():
            if pool.due(self.clock.monotonic()):
                pool.ask()

    def asked_for(self, kind: str) -> int:
        return self.asked.count(kind)


@pytest.fixture
def hub() -> Hub:
    hub = Hub()
    hub.link.publish(SUBJECTS.announce, announce())
    hub.link.publish(SUBJECTS.buildconfig, pack(BuildConfigMessage(pool="alpha", digest="d", config={})))
    hub.work()
    return hub


@pytest.mark.parametrize("gangs", [False, True])
def test_a_member_of_a_group_is_sent_only_to_a_site_that_runs_groups(hub: Hub, gangs: bool) -> None:
    """An older submitter ignores the place of the member, and would run it without the others."""
    hub.link.publish(SUBJECTS.announce, announce(gangs=gangs))
    hub.answers["submit"] = {"status": asdict(job("u1"))}
    metadata = {"name": "p-1", "namespace": "n", "uid": "u1", "annotations": {names.PLACE_IN_JOB: "g/1/3"}}
    body = {"metadata": metadata, "spec": {"subdomain": "s", "containers": [{"name": "main", "image": "i"}]}}
    assert hub.pool.gangs is hub.pool.heterogeneous_gangs is gangs
    if not gangs:
        with pytest.raises(SiteRefusedError, match="runs no groups"):
            hub.pool.submit(body, Objects())
        assert not hub.asked_for("submit")
        return
    hub.pool.submit(body, Objects())
    place = hub.bodies[-1]["place"]
    assert (place["gang"], place["rank"], place["size"], place["per_node"]) == ("g", 1, 3, 1)
    assert place["names"][-2:] == ["p-1.s", "p-1"]


def test_what_a_group_may_request_follows_from_the_buildconfig(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.pool.flavor_limits == ""
    config = {"flavors": [{"name": "f", "max_resources": {"cpu": "2"}, "partition": "p"}]}
    hub.link.publish(SUBJECTS.buildconfig, pack(BuildConfigMessage(pool="alpha", digest="e", config=config)))
    hub.link.publish(SUBJECTS.announce, announce(digest="e"))
    with monkeypatch.context() as patch:
        patch.setattr("bridge.script.flavor_limits.dump", None)  # computed once for a BuildConfig
        assert hub.pool.flavor_limits == '{"flavors":[{"name":"f","max_resources":{"cpu":"2"}}]}'
    for refused in ({"unknown": 1}, {"flavors": [{"name": f"f{n}"} for n in range(1001)]}):
        message = BuildConfigMessage(pool="alpha", digest="e", config=refused)
        hub.link.publish(SUBJECTS.buildconfig, pack(message))
        assert hub.pool.flavor_limits is None
        assert "invalid" in hub.pool.ready().message
    hub.link.publish(SUBJECTS.announce, announce(digest="f"))
    assert hub.pool.flavor_limits is None


def test_a_pool_is_found_by_its_announcement() -> None:
    hub = Hub()
    assert hub.pools.pools() == {}
    hub.link.publish(SUBJECTS.announce, announce())
    found, at = hub.pool.announced()
    assert (found.pool, at) == ("alpha", hub.clock.now)
    assert hub.pool.jobs() == {}
    assert hub.pool.complete_at() is None
    assert ("alpha", "") in hub.told


@pytest.mark.parametrize("racing", [False, True])
def test_a_user_that_the_site_cannot_give_is_refused_before_anything_is_sent(racing: bool) -> None:
    hub = Hub()
    raw = json.loads(announce()) | {"user": {"uid": 1000, "gid": 1000}}
    hub.link.publish(SUBJECTS.announce, json.dumps(raw).encode())
    hub.link.publish(SUBJECTS.buildconfig, pack(BuildConfigMessage(pool="alpha", digest="d", config={})))
    body = pod("p")
    body["spec"]["securityContext"] = {"runAsUser": 185}
    with pytest.raises(ScriptError, match="runAsUser: 185 is not allowed"):
        hub.pool.offer(body, Objects(), 5) if racing else hub.pool.submit(body, Objects())
    assert hub.asked_for("submit") == 0


def test_the_first_snapshot_is_asked_for_at_once_and_then_every_minute() -> None:
    hub = Hub()
    hub.link.publish(SUBJECTS.announce, announce())
    hub.answers["snapshot"] = [{"submitter": "s", "sequence": 0, "jobs": [asdict(job("a"))]}]
    began = hub.clock.now
    hub.work()
    hub.work()
    assert (hub.asked_for("snapshot"), hub.pool.complete_at()) == (1, began)
    assert set(hub.pool.jobs()) == {"a"}
    assert ("alpha", "a") in hub.told
    hub.clock.advance(PERIOD - 1)
    hub.work()
    assert hub.asked_for("snapshot") == 1
    hub.clock.advance(1)
    hub.work()
    assert hub.asked_for("snapshot") == 2


def test_events_change_the_view_without_asking(hub: Hub) -> None:
    hub.link.publish(SUBJECTS.event, event(1, job("a")))
    hub.link.publish(SUBJECTS.event, event(2, job("a", "running")))
    assert hub.pool.jobs()["a"].phase == "running"
    hub.clock.advance(5)
    hub.work()
    assert hub.asked_for("snapshot") == 1
    assert hub.told.count(("alpha", "a")) == 2


def test_a_gap_a_new_submitter_an_announcement_ahead_and_a_reconnect_bring_a_snapshot(hub: Hub) -> None:
    causes: list[Callable[[], object]] = [
        lambda: hub.link.publish(SUBJECTS.event, event(5, job("a"))),
        lambda: hub.link.publish(SUBJECTS.announce, announce(9)),
        lambda: hub.link.publish(SUBJECTS.announce, announce(0, "another")),
        lambda: [watcher(True) for watcher in hub.link.watchers],
    ]
    for number, cause in enumerate(causes):
        hub.clock.advance(5)
        hub.work()
        assert hub.asked_for("snapshot") == 1 + number
        cause()
        hub.work()
        assert hub.asked_for("snapshot") == 2 + number


def test_snapshots_do_not_follow_each_other_without_a_pause(hub: Hub) -> None:
    for number in range(50):
        hub.link.publish(SUBJECTS.event, event(2 * number + 5, job("a")))
        hub.work()
        hub.clock.advance(0.1)
    assert hub.asked_for("snapshot") <= 7


def test_a_long_snapshot_comes_in_pages() -> None:
    hub = Hub()
    hub.link.publish(SUBJECTS.announce, announce())
    hub.answers["snapshot"] = [
        {"submitter": "s", "sequence": 3, "jobs": [asdict(job("a")), asdict(job("b"))], "more": True},
        {"submitter": "s", "sequence": 4, "jobs": [asdict(job("c"))], "more": True},
        {"submitter": "s", "sequence": 4, "jobs": []},
    ]
    hub.work()
    assert set(hub.pool.jobs()) == {"a", "b", "c"}


def test_a_snapshot_that_breaks_off_changes_nothing_and_is_asked_for_again(hub: Hub) -> None:
    hub.link.publish(SUBJECTS.event, event(1, job("a")))
    before = hub.pool.complete_at()
    hub.clock.advance(PERIOD)
    hub.answers["snapshot"] = [
        {"submitter": "s", "sequence": 3, "jobs": [asdict(job("b"))], "more": True},
        {"submitter": "s", "sequence": "no number", "jobs": []},
        {"submitter": "s", "sequence": 3, "jobs": [asdict(job("a"))]},
    ]
    hub.work()
    assert (set(hub.pool.jobs()), hub.pool.complete_at()) == ({"a"}, before)
    hub.clock.advance(1)
    hub.work()
    assert hub.pool.complete_at() == hub.clock.now


def test_a_site_whose_pages_never_end_does_not_hold_the_hub(hub: Hub) -> None:
    hub.clock.advance(PERIOD)
    hub.answers["snapshot"] = [{"submitter": "s", "sequence": 3, "jobs": [asdict(job("a"))], "more": True}]
    hub.work()
    assert hub.asked_for("snapshot") == 3
    assert hub.pool.jobs() == {}


def test_nats_9_1_one_job_that_makes_no_sense_does_not_hide_the_others(hub: Hub) -> None:
    hub.link.publish(SUBJECTS.event, event(1, job("b", "running")))
    hub.clock.advance(PERIOD)
    jobs = [asdict(job("a")), {"job": "b", "phase": "exploded"}, asdict(job("c"))]
    hub.answers["snapshot"] = [{"submitter": "s", "sequence": 3, "jobs": jobs}]
    hub.work()
    phases = {uid: status.phase for uid, status in hub.pool.jobs().items()}
    assert phases == {"a": "queued", "b": "running", "c": "queued"}


def test_an_announcement_whose_folder_no_annotation_can_have_is_dropped(hub: Hub) -> None:
    """Otherwise the node could not be written any more, and would stay ready after the site has fallen silent."""
    about = {"pool": "alpha", "submitter": "s", "time": 0, "period": 5, "version": "1", "folder": "f" * 300_000}
    hub.link.publish(SUBJECTS.announce, json.dumps(about).encode())
    assert hub.pools.dropped == {"announce": 1}


def test_nats_9_6_what_a_pool_says_about_another_is_dropped(hub: Hub) -> None:
    hub.link.publish(Subjects("bridge.v1", "beta", OWNER).announce, announce(pool="alpha", sequence=99))
    hub.link.publish(Subjects("bridge.v1", "beta", OWNER).event, event(1, job("a")))
    forged = BuildConfigMessage(pool="alpha", digest="d", config={"header": "rm -rf ~"})
    hub.link.publish(Subjects("bridge.v1", "beta", OWNER).buildconfig, pack(forged))
    assert hub.pools.dropped == {"announce": 1, "event": 1, "buildconfig": 1}
    assert set(hub.pools.pools()) == {"alpha"}
    assert hub.pool.jobs() == {}
    assert hub.pool.buildconfig().header == ""


def test_garbage_is_dropped_and_counted(hub: Hub) -> None:
    for data in (b"", b"\xff", b"{}", b"[" * 1000, b"\x78\x9c"):
        hub.link.publish(SUBJECTS.event, data)
    hub.link.publish("bridge.v1.UPPER.event.c1", event(1, job("a")))
    assert hub.pools.dropped == {"event": 6}
    assert set(hub.pools.pools()) == {"alpha"}


def test_a_large_event_is_dropped_and_a_snapshot_makes_up_for_it(hub: Hub) -> None:
    told = json.loads(event(1, job("a")))
    told["status"]["message"] = "x" * LIMITS[Event]
    hub.link.publish(SUBJECTS.event, zlib.compress(json.dumps(told).encode()))
    assert hub.pools.dropped["event"] == 1
    hub.clock.advance(1)
    hub.link.publish(SUBJECTS.event, event(2, job("b")))
    hub.work()
    assert hub.asked_for("snapshot") == 2


@pytest.mark.parametrize("size", [LIMITS[Event] - 1000, LIMITS[Event] * 4])
def test_small_messages_that_become_large_are_a_flood(hub: Hub, size: int) -> None:
    data = zlib.compress(json.dumps({**json.loads(event(1, job("a"))), "x": "x" * size}).encode())
    for _ in range(20):
        hub.link.publish(SUBJECTS.event, data)
    assert "alpha" in hub.pools._muted


def test_the_buildconfig_is_the_one_that_the_announcement_names(hub: Hub) -> None:
    assert hub.pool.buildconfig() is not None
    new = BuildConfigMessage(pool="alpha", digest="d2", config={"header": "module load x"})
    hub.link.publish(SUBJECTS.buildconfig, pack(new))
    assert hub.pool.buildconfig().header == ""
    hub.link.publish(SUBJECTS.announce, announce(digest="d2"))
    assert hub.pool.buildconfig().header == "module load x"
    assert hub.asked_for("describe") == 0


def test_an_unknown_buildconfig_is_asked_for_once_and_again_later(hub: Hub) -> None:
    hub.answers["describe"] = {
        "announce": json.loads(announce()),
        "buildconfig": {"pool": "alpha", "digest": "d3", "config": {"footer": "x"}},
    }
    hub.link.publish(SUBJECTS.announce, announce(digest="d2"))
    hub.clock.advance(2)
    for _ in range(5):
        hub.work()
        hub.clock.advance(1.5)
    assert hub.asked_for("describe") == 1
    assert hub.pool.buildconfig() is None
    hub.link.publish(SUBJECTS.announce, announce(digest="d3"))
    assert hub.pool.buildconfig().footer == "x"


def test_a_buildconfig_that_can_not_be_used_is_none_and_says_why(hub: Hub) -> None:
    bad = BuildConfigMessage(pool="alpha", digest="d2", config={"runtime": {"kind": "rocket"}})
    hub.link.publish(SUBJECTS.buildconfig, pack(bad))
    hub.link.publish(SUBJECTS.announce, announce(digest="d2"))
    hub.clock.advance(5)
    hub.work()
    assert hub.pool.buildconfig() is None
    assert "runtime.kind" in hub.pool.ready().problem
    assert hub.asked_for("describe") == 0


def test_a_submit_is_in_the_view_at_once_and_a_confirmed_end_leaves_it(hub: Hub) -> None:
    hub.answers["submit"] = {"status": asdict(job("a"))}
    hub.answers["cancel"] = [{"status": asdict(job("a", "ended"))}, {"status": None}]
    assert hub.pool.send("a", SUBMIT) == job("a")
    assert set(hub.pool.jobs()) == {"a"}
    assert hub.pool.cancel(pod("a"), 30) == job("a", "ended")
    assert set(hub.pool.jobs()) == {"a"}
    hub.link.publish(SUBJECTS.event, event(1, job("a", "ended")))
    assert hub.pool.cancel(pod("a"), 0, forget=True) is None
    assert hub.pool.jobs() == {}


def test_a_site_that_is_down_is_asked_less_and_less_until_it_speaks(hub: Hub) -> None:
    hub.link.subscriptions = [each for each in hub.link.subscriptions if len(each.subjects) == 3]
    hub.pool.request_snapshot()
    tries, attempts = 0, hub.pool._client.call

    def call(kind: Any, *args: Any) -> Any:
        nonlocal tries
        tries += kind is SNAPSHOT
        return attempts(kind, *args)

    hub.pool._client.call = call
    for _ in range(300):
        hub.clock.advance(1)
        hub.work()
    assert 8 <= tries <= 18
    hub.link.publish(SUBJECTS.announce, announce(0, "again"))
    hub.work()
    assert tries <= 19


def test_a_removed_pool_comes_back_with_its_next_word(hub: Hub) -> None:
    hub.pools.remove("alpha")
    assert hub.pools.pools() == {}
    hub.link.publish(SUBJECTS.event, event(1, job("a")))
    assert hub.pools.pools() == {}
    hub.link.publish(SUBJECTS.announce, announce(1))
    assert set(hub.pools.pools()) == {"alpha"}


def test_a_subscriber_that_fails_ends_nothing(hub: Hub) -> None:
    hub.pool.subscribe(lambda _uid: 1 / 0)
    hub.link.publish(SUBJECTS.event, event(1, job("a")))
    assert set(hub.pool.jobs()) == {"a"}


def test_ten_thousand_jobs_and_an_event_costs_little(hub: Hub) -> None:
    for number in range(10_000):
        hub.pool.receive(Event(pool="alpha", submitter="s", sequence=number + 1, status=job(f"u{number}")))
    begun = time.process_time()
    for number in range(1000):
        hub.link.publish(SUBJECTS.event, event(10_001 + number, job(f"u{number}", "running")))
    assert time.process_time() - begun < 2


# --- the library stays here -------------------------------------------------------------------------------------------
LIBRARY = library.text("apptainer")
WHOLE = SUBMIT.model_copy(update={"script": f"#!/bin/bash\nbefore\n{LIBRARY}after\n"})
TAKEN = {"status": asdict(job("a")), "existed": False}


def announced(digest: str) -> Hub:
    hub = Hub()
    hub.link.publish(SUBJECTS.announce, announce(library=digest))
    hub.answers["submit"] = TAKEN
    return hub


def test_a_site_that_has_the_library_is_not_sent_it() -> None:
    hub = announced(library.digest("apptainer"))
    assert hub.pool.send("a", WHOLE).job == "a"
    cut = {"before": "#!/bin/bash\nbefore\n", "library": library.digest("apptainer"), "after": "after\n"}
    assert [body["script"] for body in hub.bodies] == [cut]


@pytest.mark.parametrize(
    ("digest", "script"),
    [
        *((digest, WHOLE.script) for digest in ("", "0" * 64, library.digest("podman"))),
        (library.digest("apptainer"), LIBRARY[:-1]),
    ],
    ids=["none", "another version", "another runtime", "a script with a part of the library only"],
)
def test_a_site_that_lacks_this_library_is_sent_all(digest: str, script: str) -> None:
    hub = announced(digest)
    hub.pool.send("a", SUBMIT.model_copy(update={"script": script}))
    assert [body["script"] for body in hub.bodies] == [script]


@pytest.mark.parametrize("reason", ["UnknownLibrary", "GarbledMessage"])
def test_a_submitter_of_another_version_is_sent_all_at_once(reason: str) -> None:
    hub = announced(library.digest("apptainer"))
    refusal = Reply(error=Problem(reason=reason, message="no"))
    hub.answers["submit"] = lambda: Reply(body=TAKEN) if len(hub.bodies) > 1 else refusal
    assert hub.pool.send("a", WHOLE).job == "a"
    assert [type(body["script"]) for body in hub.bodies] == [dict, str]
    assert hub.bodies[1]["script"] == WHOLE.script


def test_another_refusal_is_told_and_nothing_is_sent_again() -> None:
    hub = announced(library.digest("apptainer"))
    hub.answers["submit"] = Reply(error=Problem(reason="UnknownFlavor", message="no"))
    with pytest.raises(SiteRefusedError, match="no"):
        hub.pool.send("a", WHOLE)
    assert len(hub.bodies) == 1


def test_a_pool_that_floods_is_left_alone_for_a_while_and_all_others_are_heard(hub: Hub) -> None:
    hub.link.publish(Subjects("bridge.v1", "loud", OWNER).announce, announce(pool="loud"))
    hub.pools._on_flood("loud")
    hub.pools._listen()
    heard = len(hub.told)
    hub.link.publish(Subjects("bridge.v1", "loud", OWNER).announce, announce(pool="loud"))
    assert len(hub.told) == heard
    hub.link.publish(SUBJECTS.event, event(1, job("a")))
    assert ("alpha", "a") in hub.told
    hub.clock.advance(MUTE)
    hub.pools._listen()
    hub.link.publish(Subjects("bridge.v1", "loud", OWNER).announce, announce(pool="loud"))
    assert hub.told[-1] == ("loud", "")
    assert len(hub.link.subscriptions) == 1 + len(SUBJECTS.requests())


def wait_until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_sites_that_do_not_answer_delay_no_other_pool() -> None:
    hub, answer = Hub(), threading.Event()
    names = [f"hung{number}" for number in range(20)]
    for name in (*names, "alpha"):
        hub.link.publish(Subjects("bridge.v1", name, OWNER).announce, announce(pool=name))
    for name in names:
        hub.pools.pools()[name].ask = lambda: answer.wait(10)
    before = threading.active_count()
    hub.pools.tick()
    wait_until(lambda: hub.pool.complete_at() is not None)
    hub.pools.tick()  # each pool is asked once at a time
    wait_until(lambda: threading.active_count() == before + len(names))
    answer.set()
    wait_until(lambda: threading.active_count() == before)
    assert hub.pools._requesting == set()


def test_the_number_of_pools_that_are_asked_at_once_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pools.submitter.nats_registry.MOST_REQUESTS", 3)
    hub, answer, asked = Hub(), threading.Event(), []
    for number in range(5):
        name = f"p{number}"
        hub.link.publish(Subjects("bridge.v1", name, OWNER).announce, announce(pool=name))

        def ask(name: str = name) -> None:
            asked.append(name)
            answer.wait(10)

        hub.pools.pools()[name].ask = ask
    hub.pools.tick()
    wait_until(lambda: len(asked) == 3)
    answer.set()
    wait_until(lambda: hub.pools._requesting == set())
    for pool in hub.pools.pools().values():
        if pool.name in asked:
            pool._schedule.requested_at = hub.clock.now
    hub.pools.tick()
    wait_until(lambda: len(asked) == 5)


def test_an_answer_that_cannot_be_handled_is_requested_again_after_a_back_off(
    monkeypatch: pytest.MonkeyPatch, isolates: list[tuple[str, str]]
) -> None:
    """As for pools that are polled: one site must not end the process, in which all others are served."""
    hub = Hub()
    hub.link.publish(SUBJECTS.announce, announce())
    with monkeypatch.context() as patch:
        patch.setattr(job_view.JobView, "snapshot", lambda *_: 1 / 0)
        for _ in range(3):
            hub.clock.advance(60)
            assert hub.pool.due(hub.clock.now)
            hub.pool.ask()
    assert isolates == [("pools", "alpha")] * 3
    hub.clock.advance(LEAST_GAP)
    assert not hub.pool.due(hub.clock.now)
    assert hub.pool.complete_at() is None
    hub.clock.advance(60)
    assert hub.pool.due(hub.clock.now)
    hub.pool.ask()
    assert hub.pool.complete_at() is not None
