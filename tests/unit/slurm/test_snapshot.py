from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.clock import FakeClock, SystemClock
from bridge.config import Config, SlurmSection
from bridge.slurm.client import SlurmClient
from bridge.slurm.hint_pace import MOST_ALONE
from bridge.slurm.job_reader import CHECK_PERIOD, UNEXPLAINED
from bridge.slurm.link import encode
from bridge.slurm.models import Job, JobLink, JobRequest, PodRef, Snapshot
from bridge.slurm.node_reader import PARTITIONS, PERIOD, SLOW_PERIOD
from bridge.slurm.query_plan import LARGEST_BULK, MOST_SINGLES
from bridge.slurm.snapshot import EMPTY_PERIOD, FORGET_OTHERS, SETTLE, STANDBY_PERIOD, Poller
from cluster.polling import eventually
from tests.fakes.slurmrestd import TOKEN, FakeJob, FakeSlurm, paths


def link(uid: str, cluster: str = "here") -> JobLink:
    return JobLink(cluster, (PodRef("ns", f"pod-{uid}", uid),))


class Scene:
    """A fake Slurm, a poller and the hands to move both."""

    def __init__(self, slurm: FakeSlurm, budget: int = 2) -> None:
        self.slurm, self.clock = slurm, FakeClock()
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(detail_budget=budget, read_timeout=0.8))
        self.client = SlurmClient(config, TOKEN)
        self.poller = Poller(self.client, "here", config, clock=self.clock)

    def add(self, uid: str, cluster: str = "here") -> int:
        return self.slurm.add({"name": uid, "admin_comment": encode(link(uid, cluster))}).job_id

    def poll(self) -> Snapshot:
        self.clock.advance(1)
        return self.poller.refresh()

    def asked(self) -> list[str]:
        """What one more poll asks for, but for whether a node has changed."""
        return [call for call in self.asked_all() if not call.startswith("GET nodes?")]

    def asked_all(self) -> list[str]:
        """What one more poll asks for."""
        self.slurm.calls.clear()
        self.poll()
        return paths(self.slurm.calls)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with FakeSlurm() as slurm:
        yield Scene(slurm)


def test_before_the_first_answer(scene: Scene) -> None:
    assert scene.poller.snapshot == Snapshot()
    assert scene.poller.age() == math.inf


def test_the_first_snapshot_is_complete(scene: Scene) -> None:
    ours, _, _ = scene.add("a"), scene.add("b", "elsewhere"), scene.slurm.add()
    told: list[Snapshot] = []
    scene.poller.subscribe(told.append)
    snapshot = scene.poll()
    assert told == [snapshot]
    assert snapshot.sequence == 1
    assert snapshot.jobs.keys() == {ours}
    assert snapshot.by_uid == {"a": (ours,)}
    assert len(snapshot.nodes) == 4
    assert snapshot.partitions["main"].default
    assert snapshot.settled_since == snapshot.began == scene.clock.monotonic()
    scene.clock.advance(3)
    assert scene.poller.age() == 3


def test_a_quiet_poll_asks_for_states_and_the_witness(scene: Scene) -> None:
    scene.slurm.start(scene.add("a"))
    scene.slurm.add()
    scene.poll()
    assert scene.asked() == ["GET jobs/state", "GET job/2?flags=MIXED"]


def test_a_job_of_others_costs_one_question_in_its_life(scene: Scene) -> None:
    last = scene.slurm.add().job_id
    for _ in range(100):
        scene.slurm.add(user="alice")
    witness = scene.slurm.add().job_id
    scene.poll()
    scene.slurm.calls.clear()
    for life in (scene.slurm.start, lambda job_id: scene.slurm.end(job_id, "COMPLETED")):
        for job_id in range(last, witness):
            life(job_id)
        scene.poll()
    assert [call for call in paths(scene.slurm.calls) if "job" in call] == [
        "GET jobs/state",
        f"GET job/{witness}?flags=MIXED",
    ] * 2


def test_the_load_does_not_depend_on_how_many_wait(scene: Scene) -> None:
    for number in range(100):
        scene.add(str(number))
    scene.slurm.calls.clear()
    scene.poll()
    # one list of all instead of a hundred questions
    assert [call for call in paths(scene.slurm.calls) if "job" in call] == ["GET jobs/state", "GET jobs?flags=MIXED"]
    for _ in range(3):
        assert len([call for call in scene.asked() if "job/" in call]) == 2  # one of them is the witness


def test_the_witness_is_not_asked_about_twice(scene: Scene) -> None:
    scene.add("a")
    scene.poll()
    assert scene.asked() == ["GET jobs/state", "GET job/1?flags=MIXED"]


def test_a_budget_of_one_reaches_more_than_the_witness() -> None:
    with FakeSlurm() as slurm:
        scene = Scene(slurm, budget=1)
        for name in "abc":
            scene.add(name)
        scene.poll()
        asked = {call for _ in range(2) for call in scene.asked() if "job/" in call}
    assert asked == {f"GET job/{job_id}?flags=MIXED" for job_id in (1, 2, 3)}


def test_a_start_costs_one_question(scene: Scene) -> None:
    ids = [scene.add(str(number)) for number in range(20)]
    for job_id in ids[1:]:
        scene.slurm.start(job_id)
    scene.poll()
    scene.slurm.start(ids[0], "node-[1-2]")
    asked = scene.asked()
    assert f"GET resources/{ids[0]}" in asked
    assert f"GET job/{ids[0]}?flags=MIXED" not in asked
    job = scene.poller.snapshot.jobs[ids[0]].job
    assert job.nodes == ("node-1", "node-2")
    assert job.start_time == scene.clock.time() - 1  # when it was last seen waiting


def test_a_job_that_ran_before_the_first_list_about_it(scene: Scene) -> None:
    scene.poll()
    job_id = scene.client.submit(JobRequest("n", link("new"), external=True)).job_id
    scene.poller.expect(job_id, link("new"))
    scene.slurm.start(job_id, "node-3")
    assert [call for call in scene.asked() if str(job_id) in call] == [f"GET job/{job_id}?flags=MIXED"]
    assert scene.poller.snapshot.jobs[job_id].job.nodes == ("node-3",)
    assert scene.poller.snapshot.by_uid == {"new": (job_id,)}


def test_a_start_taken_back_before_its_nodes_were_asked_for(scene: Scene) -> None:
    job_id, _ = scene.add("a"), scene.add("b")
    scene.poll()

    def meanwhile(method: str, path: str) -> None:
        if "/resources/" in path:
            scene.slurm.requeue(job_id)

    scene.slurm.start(job_id)
    scene.slurm.fault = meanwhile
    assert scene.poll().jobs[job_id].job.nodes == ()
    scene.slurm.fault = None
    assert scene.poll().jobs[job_id].job.states == {"PENDING", "REQUEUED"}
    scene.slurm.start(job_id, "node-2")
    assert scene.poll().jobs[job_id].job.nodes == ("node-2",)


def test_a_submitted_job_is_in_the_next_snapshot(scene: Scene) -> None:
    for number in range(10):
        scene.slurm.start(scene.add(f"other-{number}", "elsewhere"))
    scene.poll()
    job_id = scene.client.submit(JobRequest("n", link("new"), external=True)).job_id
    scene.poller.expect(job_id, link("new"))
    scene.slurm.fault = lambda method, path: (500, b"must not be asked") if "/job/" in path else None
    scene.slurm.fault = None
    assert scene.poll().by_uid == {"new": (job_id,)}
    assert scene.poller.pause() == SlurmSection().poll_busy


def test_a_job_told_of_during_a_poll_is_in_what_the_poll_publishes(scene: Scene) -> None:
    scene.poll()

    def meanwhile(method: str, path: str) -> None:
        if path.endswith("jobs/state"):
            scene.poller.expect(7, link("new"))

    scene.slurm.fault = meanwhile
    assert scene.poll().by_uid == {"new": (7,)}


# --- job ids used again -----------------------------------------------------------------------------------------------
def test_lost_state_is_seen_though_every_id_and_state_is_as_before(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        scene.slurm.start(scene.add(f"old-{number}"))
    scene.slurm.start(scene.slurm.add().job_id)
    scene.poll()
    scene.slurm.lose_state()
    for _ in range(2):
        scene.slurm.start(scene.slurm.add(user="alice").job_id)
    scene.slurm.start(scene.add("new"))
    scene.slurm.start(scene.slurm.add().job_id)
    snapshot = scene.poll()
    assert [(known.confirmations, known.missing) for known in map(snapshot.jobs.__getitem__, (1, 2, 3))] == [
        (1, True),
        (1, True),
        (0, False),
    ]
    assert snapshot.by_uid == {"old-0": (1,), "old-1": (2,), "new": (3,)}
    assert [snapshot.jobs[job_id].confirmations for job_id in (1, 2)] == [1, 1]
    assert [scene.poll().jobs[job_id].confirmations for job_id in (1, 2)] == [2, 2]
    assert [record.message for record in caplog.records] == ["Slurm assigned a job id again: all jobs are read again"]


def test_lost_state_in_the_middle_of_a_poll(scene: Scene) -> None:
    scene.slurm.start(scene.add("a"))
    scene.add("b")
    scene.add("c")
    scene.poll()

    def meanwhile(method: str, path: str) -> None:
        if "/resources/" in path and scene.slurm.jobs[2].user == "slurm":
            scene.slurm.lose_state()
            for _ in range(3):
                scene.slurm.start(scene.slurm.add(user="alice").job_id, "node-3")

    scene.slurm.start(2, "node-1")
    scene.slurm.fault = meanwhile
    snapshot = scene.poll()
    assert [(known.missing, known.job.nodes) for known in snapshot.jobs.values()] == [
        (True, ("node-0",)),
        (True, ()),
        (True, ()),
    ]


def test_a_job_just_submitted_and_lost_whose_id_is_anothers(scene: Scene) -> None:
    scene.poll()
    job_id = scene.client.submit(JobRequest("n", link("new"), external=True)).job_id
    scene.poller.expect(job_id, link("new"))
    scene.slurm.lose_state()
    scene.slurm.start(scene.slurm.add(user="alice").job_id)
    known = scene.poll().jobs[job_id]
    assert (known.missing, known.confirmations, known.job.nodes) == (True, 1, ())


def test_a_failed_poll_makes_jobs_just_submitted_prove_that_they_are_ours(scene: Scene) -> None:
    scene.poll()
    first = scene.client.submit(JobRequest("n", link("first"), external=True)).job_id
    scene.poller.expect(first, link("first"))
    scene.slurm.down = True
    assert scene.poll().error
    scene.slurm.down = False
    scene.slurm.lose_state()
    scene.slurm.add(user="alice")
    second = scene.client.submit(JobRequest("n", link("second"), external=True)).job_id
    scene.poller.expect(second, link("second"))
    snapshot = scene.poll()
    assert snapshot.jobs[first].missing
    assert snapshot.by_uid == {"first": (first,), "second": (second,)}


def test_a_requeue_is_not_taken_for_lost_state(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    job_id = scene.slurm.add().job_id
    scene.slurm.start(job_id)
    scene.poll()
    scene.slurm.requeue(job_id)
    scene.slurm.start(job_id)
    scene.poll()
    assert not caplog.records


def test_after_a_long_silence_jobs_of_others_are_read_anew(scene: Scene) -> None:
    first, last = scene.slurm.add().job_id, scene.slurm.add().job_id
    scene.poll()
    scene.clock.advance(FORGET_OTHERS)
    del scene.slurm.jobs[first]
    scene.slurm.jobs[first] = FakeJob(first, {"name": "late", "admin_comment": encode(link("late"))})
    assert scene.poll().by_uid == {"late": (first,)}
    assert last in scene.slurm.jobs


# --- many jobs --------------------------------------------------------------------------------------------------------
def test_a_first_list_that_is_too_large_is_read_in_parts(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.slurm")
    number, size = 400, 2 * LARGEST_BULK // 400
    for _ in range(number - 1):
        scene.slurm.add(user="alice")
    ours = scene.add("a")
    scene.client.job_bytes = size
    told: list[Snapshot] = []
    scene.poller.subscribe(told.append)
    polls = 1
    while not scene.poll().sequence:
        assert scene.poller.progress == f"read {polls * MOST_SINGLES} of {number} jobs"
        assert scene.poller.age() == math.inf
        scene.client.job_bytes = size
        polls += 1
    assert polls == -(-number // MOST_SINGLES)
    assert scene.slurm.count("GET", "jobs?") == 0
    assert scene.slurm.count("GET", "/job/") == number + polls - 1  # and a witness each time
    assert [snapshot.jobs.keys() for snapshot in told] == [{ours}]
    assert scene.poller.progress == ""
    assert {record.message for record in caplog.records} == {
        "reading all jobs for the first time",
        "all jobs are read",
    }


def test_a_list_that_fails_is_read_in_parts_the_next_time(scene: Scene) -> None:
    for _ in range(10):
        scene.slurm.add()
    scene.client.job_bytes = LARGEST_BULK / 10
    scene.slurm.fault = lambda method, path: "reset" if "/jobs?" in path else None
    assert scene.poll().error
    assert scene.poll().sequence == 1


@pytest.mark.parametrize(("kind", "end"), [("old_scene", "/jobs"), ("scene", "/jobs/state")])
def test_a_list_that_takes_too_long_gets_more_time(request: pytest.FixtureRequest, kind: str, end: str) -> None:
    scene: Scene = request.getfixturevalue(kind)
    scene.slurm.add()

    def slow(method: str, path: str) -> None:
        if path.endswith(end):
            scene.slurm._closing.wait(1.2)

    scene.slurm.fault = slow
    assert "timed out" in scene.poll().error  # 0.8 s
    assert scene.poll().sequence == 1


def test_excluded_nodes_take_the_memory_of_their_hostlist() -> None:
    text = "node-[0001-2500]"
    jobs = [Job(number, frozenset({"PENDING"}), excluded=text) for number in range(2)]
    assert len(jobs[0].excluded_nodes) == 2500
    assert jobs[0].excluded_nodes is jobs[1].excluded_nodes


FAILURES: list[Any] = [
    "reset",
    "hang",
    (404, b"<html>not found</html>"),
    (502, b"bad gateway"),
    (200, b'{"jobs": []}'),
    (200, json.dumps({"meta": {"plugin": {}}, "errors": [], "jobs": None}).encode()),
    (200, json.dumps({"meta": {"plugin": {}}, "errors": [{"error": "half"}], "jobs": []}).encode()),
]


@pytest.mark.parametrize("fault", FAILURES)
@pytest.mark.parametrize("where", ["jobs/state", "/job/", "/nodes"])
def test_a_failed_answer_changes_nothing_but_the_error(scene: Scene, where: str, fault: Any) -> None:
    running, ended, gone = scene.add("a"), scene.add("b"), scene.add("c")
    for number in range(30):
        scene.slurm.start(scene.add(f"other-{number}", "elsewhere"))
    scene.slurm.start(running)
    before = scene.poll()
    told: list[Snapshot] = []
    scene.poller.subscribe(told.append)
    scene.slurm.end(ended, "TIMEOUT")
    scene.slurm.forget(gone)
    scene.poller.wake(nodes=True)
    scene.slurm.fault = lambda method, path: fault if where in path else None
    for _ in range(2):
        after = scene.poll()
        assert after.error
        assert (after.sequence, after.began, after.jobs) == (before.sequence, before.began, before.jobs)
    assert told == []
    scene.slurm.fault = None
    back = scene.poll()
    assert (back.error, back.sequence, back.settled_since) == ("", 2, back.began)
    assert back.jobs[running].confirmations == 0
    assert (back.jobs[ended].confirmations, back.jobs[ended].missing) == (1, False)
    assert (back.jobs[gone].confirmations, back.jobs[gone].missing) == (1, True)
    final = scene.poll()
    assert (final.jobs[ended].confirmations, final.jobs[gone].confirmations, final.jobs[running].confirmations) == (
        2,
        2,
        0,
    )
    assert final.settled_since == back.began


def test_a_slurmctld_that_is_down_ends_nothing(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    scene.poll()
    scene.slurm.down = True
    for _ in range(5):
        assert scene.poll().error
    assert scene.poller.snapshot.jobs[job_id].confirmations == 0
    scene.slurm.down = False
    assert scene.poll().jobs[job_id].confirmations == 0


def test_silence_is_logged_once_and_so_is_the_return(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.slurm")
    scene.slurm.down = True
    for _ in range(3):
        scene.poll()
    scene.slurm.down = False
    scene.poll()
    scene.poll()
    assert [record.message for record in caplog.records] == [
        "slurm does not answer",
        "all jobs are read",
        "slurm answers again",
    ]


def test_pauses(scene: Scene) -> None:
    settings = SlurmSection()
    scene.poll()
    assert scene.poller.pause() == EMPTY_PERIOD
    job_id = scene.add("a")
    scene.poll()
    assert scene.poller.pause() == settings.poll_busy
    scene.slurm.start(job_id)
    scene.poll()
    assert scene.poller.pause() == settings.poll_idle
    scene.slurm.end(job_id, "CANCELLED")
    scene.poll()
    assert scene.poller.pause() == settings.poll_busy
    scene.poll()
    assert scene.poller.pause() == EMPTY_PERIOD
    scene.poller.expect(99, link("b"))
    assert scene.poller.pause() == settings.poll_busy
    scene.slurm.down = True
    pauses = []
    for _ in range(10):
        scene.poll()
        pauses.append(scene.poller.pause())
    assert pauses[0] <= settings.poll_busy
    assert 8 <= pauses[-1] <= 10


def test_a_standby_polls_seldom(scene: Scene) -> None:
    leading = [True]
    config = Config(slurm_rest_api=scene.slurm.url)
    poller = Poller(scene.client, "here", config, clock=scene.clock, leads=lambda: leading[0])
    scene.add("a")
    poller.expect(99, link("b"))
    poller.refresh()
    assert poller.pause() == config.slurm.poll_busy
    leading[0] = False
    assert poller.pause() == STANDBY_PERIOD


def test_a_drain_is_seen_at_the_next_poll(scene: Scene) -> None:
    scene.poll()
    (asked,) = [call for call in scene.asked_all() if "nodes" in call]
    assert asked.startswith("GET nodes?update_time=")
    scene.slurm.nodes["node-1"].states.add("DRAIN")
    scene.clock.advance(PERIOD)
    assert "DRAIN" in scene.poll().nodes["node-1"].states
    scene.slurm.nodes["node-1"].states.discard("DRAIN")
    scene.poller.wake(nodes=True)
    assert "DRAIN" not in scene.poller.refresh().nodes["node-1"].states


def test_nodes_are_requested_less_often_without_jobs(scene: Scene) -> None:
    scene.poll()
    reader = scene.poller._node_reader
    scene.slurm.nodes["node-1"].states.add("DRAIN")
    scene.clock.advance(PERIOD)
    assert not reader.changed(slowly=True)
    scene.clock.advance(SLOW_PERIOD - PERIOD)
    assert reader.changed(slowly=True)


def test_nodes_that_have_not_changed_are_not_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.poll()
    scene.slurm._nodes_changed -= 10  # long ago
    nodes = scene.poller.snapshot.nodes
    read = []
    monkeypatch.setattr("bridge.slurm.parsers.read_node", lambda obj: read.append(obj))
    assert scene.poll().nodes is nodes
    assert read == []


@pytest.mark.parametrize(
    ("took", "asked"),
    [
        # 1,000 nodes: what changes right after an answer is read within two seconds
        (0.25, [True] * 6),
        (0.75, [False, False, True, False, False, True]),
    ],
)
def test_nodes_that_take_long_are_read_less_often(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, took: float, asked: list[bool]
) -> None:
    since = scene.client.nodes_since

    def slow(moment: int) -> object:
        scene.clock.advance(took)
        return since(moment)

    monkeypatch.setattr(scene.client, "nodes_since", slow)
    scene.poll()
    # a second each
    assert [any("nodes" in call for call in scene.asked_all()) for _ in range(6)] == asked


def test_partitions_are_looked_at_now_and_then(scene: Scene) -> None:
    scene.poll()
    assert "GET partitions" not in scene.asked()
    scene.clock.advance(PARTITIONS)
    assert "GET partitions" in scene.asked()


def test_a_changed_node_ends_the_pause_between_two_polls(scene: Scene) -> None:
    scene.poll()
    stop = threading.Event()
    scene.poller._clock = scene.poller._node_reader._clock = SystemClock()
    scene.poller._node_reader._asked_at = scene.poller._node_reader._due_at = 0
    thread = threading.Thread(target=scene.poller._wait, args=(stop, 60.0, 0.0))
    scene.slurm.nodes["node-1"].states.add("DRAIN")  # first: else the answer may be older, and ends the pause too
    thread.start()
    thread.join(5)
    alive = thread.is_alive()
    stop.set()
    thread.join()
    assert not alive
    assert "DRAIN" in scene.poll().nodes["node-1"].states


def test_nodes_that_could_not_be_read_are_asked_for_again(scene: Scene) -> None:
    scene.poll()
    scene.poller.wake(nodes=True)
    scene.slurm.fault = lambda method, path: (502, b"") if "nodes" in path else None
    assert scene.poll().error
    scene.slurm.fault = None
    assert any("nodes" in call for call in scene.asked_all())


@pytest.fixture
def old_scene() -> Iterator[Scene]:
    with FakeSlurm("22.05.8") as slurm:
        yield Scene(slurm)


def test_the_oldest_api_reads_the_list_only_after_a_change(old_scene: Scene) -> None:
    scene = old_scene
    job_id = scene.slurm.add({"name": "a", "comment": encode(link("a"))}).job_id
    scene.slurm.add({"name": "b", "comment": encode(link("b"))}, user="alice")
    assert scene.poll().by_uid == {"a": (job_id,)}
    scene.slurm._changed -= 10  # long ago
    scene.slurm._nodes_changed -= 10
    first = scene.poller.snapshot.jobs
    asked = scene.asked()
    assert [call.partition("=")[0] for call in asked] == ["GET diag", "GET jobs?update_time"]
    assert scene.poller.snapshot.sequence == 2
    assert scene.poller.snapshot.jobs == first
    scene.slurm.start(job_id)
    assert scene.poll().jobs[job_id].job.nodes == ("node-0",)
    scene.slurm.end(job_id, "CANCELLED")
    assert scene.poll().jobs[job_id].confirmations == 1
    scene.slurm._changed -= 10
    assert scene.poll().jobs[job_id].confirmations == 2
    scene.slurm.forget(job_id)
    assert scene.poll().jobs[job_id].missing


def test_the_oldest_api_learns_a_first_reason_though_slurm_counts_it_as_no_change(old_scene: Scene) -> None:
    scene = old_scene
    job_id = scene.slurm.add({"name": "a", "comment": encode(link("a"))}).job_id
    scene.slurm.jobs[job_id].reason = "None"
    scene.poll()
    assert not scene.poller.snapshot.jobs[job_id].job.reason
    scene.slurm.jobs[job_id].reason = "Resources"
    scene.slurm._changed -= 10  # long ago
    scene.clock.advance(UNEXPLAINED)
    assert scene.poll().jobs[job_id].job.reason == "Resources"
    scene.clock.advance(UNEXPLAINED)
    assert "GET jobs?update_time" in [call.partition("=")[0] for call in scene.asked()]


def test_the_oldest_api_misses_no_change_when_a_poll_fails_half_way(old_scene: Scene) -> None:
    scene = old_scene
    job_id = scene.slurm.add({"name": "a", "comment": encode(link("a"))}).job_id
    scene.poll()
    scene.slurm.start(job_id)
    scene.poller.wake(nodes=True)
    scene.slurm.fault = lambda method, path: (502, b"") if path.endswith("nodes") else None
    assert scene.poll().error
    scene.slurm.fault = None
    assert scene.poll().jobs[job_id].job.nodes == ("node-0",)


# --- the thread -------------------------------------------------------------------------------------------------------
class Running:
    """A poller in a thread of its own, with the machine's clock."""

    def __init__(self, slurm: FakeSlurm, **settings: float) -> None:
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(**settings))  # type: ignore[arg-type]
        self.poller = Poller(SlurmClient(config, TOKEN), "here", config)
        self.stop = threading.Event()
        self.new = threading.Condition()
        self.poller.subscribe(self._note)
        self.threads = [
            threading.Thread(target=run, args=(self.stop,), daemon=True)
            for run in (self.poller.run, self.poller.run_hints)
        ]

    def _note(self, _: Snapshot) -> None:
        with self.new:
            self.new.notify_all()

    def wait(self, wish: Callable[[Snapshot], bool], seconds: float = 5) -> bool:
        with self.new:
            return self.new.wait_for(lambda: wish(self.poller.snapshot), seconds)

    def __enter__(self) -> Running:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()


def test_a_wake_shortens_a_long_pause(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        job_id = scene.add("a")
        assert not running.wait(lambda now: now.sequence > 1, 0.05)
        running.poller.wake()
        assert running.wait(lambda now: job_id in now.jobs)


def test_a_submission_is_followed_by_a_poll_when_slurm_has_had_time_to_start_the_job(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60, poll_busy=0.1) as running:
        assert running.wait(lambda now: now.sequence == 1)
        time.sleep(0.3)
        scene.slurm.calls.clear()
        submitted, job_id = time.monotonic(), scene.add("a")
        running.poller.expect(job_id, link("a"))
        eventually(lambda: scene.slurm.count("GET", "jobs/state"), every=0.005)
        assert SETTLE <= time.monotonic() - submitted < 2, "not at the end of the idle period"


def test_submissions_one_after_another_do_not_shorten_the_busy_period(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60, poll_busy=0.5) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.calls.clear()
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            running.poller.expect(scene.add("a"), link("a"))
            time.sleep(0.05)
        assert scene.slurm.count("GET", "jobs/state") <= 3


def test_wakes_do_not_hammer(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.calls.clear()
        for _ in range(1000):
            running.poller.wake()
        running.wait(lambda now: now.sequence > 50, 0.05)
        assert scene.slurm.count("GET", "jobs/state") <= 2


def test_a_hint_causes_a_poll_at_once(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        time.sleep(0.1)
        job_id = scene.add("a")
        running.poller.hint()
        assert running.wait(lambda now: job_id in now.jobs, 0.15), "a wake may wait for 0.25 s"


def test_a_flood_of_hints_causes_few_polls(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.calls.clear()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            running.poller.hint()
            time.sleep(0.001)
        assert 2 <= scene.slurm.count("GET", "jobs/state") <= 8, "the burst of 4, and 3 per second"


def job_requests(slurm: FakeSlurm) -> list[str]:
    return [call for call in paths(slurm.calls) if "job" in call or "resources" in call]


@pytest.mark.parametrize("known", ["by the poll", "by the submission"])
def test_a_hint_about_a_job_of_podbridge_costs_one_request(scene: Scene, known: str) -> None:
    job_id, other = scene.add("a") if known == "by the poll" else 0, scene.add("b")
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        before = running.poller.snapshot
        if not job_id:
            job_id = scene.add("a")
            running.poller.expect(job_id, link("a"))
        scene.slurm.calls.clear()
        scene.slurm.start(job_id)
        running.poller.hint(job_id)
        assert running.wait(lambda now: job_id in now.jobs and now.jobs[job_id].job.nodes == ("node-0",))
        now = running.poller.snapshot
        assert job_requests(scene.slurm) == [f"GET job/{job_id}?flags=MIXED"]
        assert (now.sequence, now.began) == (before.sequence, before.began), "nothing is known of other jobs"
        assert now.jobs[other] is before.jobs[other]
        assert now.by_uid == {"a": (job_id,), "b": (other,)}
        assert not now.absent
        scene.slurm.end(job_id, "TIMEOUT")
        running.poller.hint(job_id)
        eventually(lambda: running.poller.snapshot.jobs[job_id].confirmations == 1)
        running.poller.wake()
        assert running.wait(lambda now: now.jobs[job_id].is_confirmed), "by the next list"


class Held:
    """Lets requests for a path wait until they are let go; ``arrived`` is set when one waits."""

    def __init__(self, slurm: FakeSlurm, part: str) -> None:
        self.slurm, self.part = slurm, part
        self.arrived, self.go = threading.Event(), threading.Event()
        slurm.fault = self

    def __call__(self, method: str, path: str) -> None:
        if self.part in path and not self.go.is_set():
            self.arrived.set()
            self.go.wait(5)


def test_a_poll_in_progress_does_not_delay_a_hint_and_does_not_undo_it(scene: Scene) -> None:
    job_id, other = scene.add("a"), scene.add("b")
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        running.poller._job_reader.require_check()
        running.poller.wake(nodes=True)
        held = Held(scene.slurm, "partitions")  # after the list of states, in which both jobs are pending
        assert held.arrived.wait(5)
        scene.slurm.start(job_id)
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.jobs[job_id].job.nodes == ("node-0",)), "during the poll"
        assert running.poller.snapshot.sequence == 1
        read = running.poller.snapshot.jobs[job_id]
        held.go.set()
        assert running.wait(lambda now: now.sequence == 2)
        now = running.poller.snapshot
        assert now.jobs[job_id] is read, "the answers of the poll are older"
        assert now.jobs.keys() == {job_id, other}
        scene.slurm.end(job_id, "CANCELLED")
        running.poller.wake()
        assert running.wait(lambda now: now.jobs[job_id].confirmations == 1), "the next poll is newer"


def test_a_job_just_submitted_that_a_hint_reports_during_a_poll_stays_in_the_snapshot(scene: Scene) -> None:
    scene.add("a")
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        running.poller._job_reader.require_check()
        running.poller.wake(nodes=True)
        held = Held(scene.slurm, "partitions")
        assert held.arrived.wait(5)
        job_id = scene.add("new")
        running.poller.expect(job_id, link("new"))
        scene.slurm.start(job_id)
        running.poller.hint(job_id)
        assert running.wait(lambda now: job_id in now.jobs and now.jobs[job_id].job.nodes == ("node-0",))
        held.go.set()
        assert running.wait(lambda now: now.sequence == 2)
        assert running.poller.snapshot.jobs[job_id].job.nodes == ("node-0",)
        assert running.poller.snapshot.by_uid["new"] == (job_id,)
        lists = scene.slurm.count("GET", "jobs/state")
        running.poller.wake()
        eventually(lambda: scene.slurm.count("GET", "jobs/state") > lists + 1 or running.poller.wake())
        assert running.poller.snapshot.jobs[job_id].job.nodes == ("node-0",)


def test_the_answer_to_a_hint_that_is_older_than_a_poll_is_not_used(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    with Running(scene.slurm, poll_busy=60, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        states: list[frozenset[str]] = []
        running.poller.subscribe(lambda now: states.append(now.jobs[job_id].job.states))
        read, held = running.poller._client.job, threading.Event()

        def late(number: int) -> Job:
            job = read(number)
            if not held.is_set() and threading.current_thread() is running.threads[1]:
                held.set()
                scene.slurm.end(job_id, "CANCELLED")
                running.poller.wake()
                assert running.wait(lambda now: now.sequence == 2)
            return job

        running.poller._client.job = late  # type: ignore[method-assign]
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.jobs[job_id].is_confirmed)
        assert set(states) == {frozenset({"CANCELLED"})}, "never running again"


def test_subscribers_learn_which_job_a_hint_was_about(scene: Scene) -> None:
    job_id = scene.add("a")
    links: list[JobLink] = []
    with Running(scene.slurm, poll_busy=60) as running:
        running.poller.subscribe_hints(links.append)
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.start(job_id)
        running.poller.hint(job_id)
        eventually(lambda: links == [link("a")])


def test_the_first_report_of_an_end_wakes_no_loop(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    with Running(scene.slurm, poll_idle=60, poll_busy=0.2) as running:
        running.poller._node_reader.changed = lambda **_: False  # type: ignore[method-assign]  # it causes a poll too
        assert running.wait(lambda now: now.sequence == 1)
        told: list[int] = []
        running.poller.subscribe(lambda now: told.append(now.jobs[job_id].confirmations))
        scene.slurm.end(job_id, "CANCELLED")
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.jobs[job_id].is_confirmed)
        assert 1 not in told, "a decision about it would delay the next one, which terminates the pod"


def test_an_end_that_a_hint_reports_is_confirmed_after_the_busy_period(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    with Running(scene.slurm, poll_idle=60, poll_busy=0.2) as running:
        running.poller._node_reader.changed = lambda **_: False  # type: ignore[method-assign]  # it causes a poll too
        assert running.wait(lambda now: now.sequence == 1)
        began = time.monotonic()
        scene.slurm.end(job_id, "CANCELLED")
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.jobs[job_id].is_confirmed)
        assert time.monotonic() - began >= 0.2


def test_a_hint_about_a_job_of_others_costs_nothing(scene: Scene) -> None:
    foreign = scene.slurm.add().job_id
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.calls.clear()
        assert running.poller.hint(foreign)
        assert not running.wait(lambda now: now.sequence > 1, 0.3)
        assert job_requests(scene.slurm) == []


def test_a_hint_about_an_unknown_job_causes_a_poll(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        job_id = scene.add("a")
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.sequence == 2 and job_id in now.jobs)


def test_a_hint_about_an_id_that_belongs_to_another_job_now_is_decided_by_a_poll(scene: Scene) -> None:
    job_id = scene.add("a")
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.jobs[job_id].asked["admin_comment"] = encode(link("b"))
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.sequence == 2)
        assert running.poller.snapshot.by_uid.keys() == {"b"}


def test_a_job_that_cannot_be_read_alone_is_left_to_the_poll(scene: Scene) -> None:
    job_id = scene.add("a")
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.fault = lambda method, path: (502, b"") if f"/job/{job_id}" in path else None
        running.poller.hint(job_id)
        eventually(lambda: running.poller.snapshot.error, every=0.01)
        assert running.poller.snapshot.jobs[job_id].job.states == {"PENDING"}


def test_the_jobs_of_many_hints_are_read_by_one_poll(scene: Scene) -> None:
    jobs = [scene.add(f"u{number}") for number in range(3 * MOST_ALONE)]
    with Running(scene.slurm, poll_busy=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        time.sleep(0.1)
        scene.slurm.calls.clear()
        for job_id in jobs:
            scene.slurm.start(job_id)
            running.poller.hint(job_id)
        assert running.wait(lambda now: all(now.jobs[job_id].job.nodes for job_id in jobs))
        assert scene.slurm.count("GET", "jobs/state") >= 1
        assert scene.slurm.count("GET", "/job/") <= 2 * MOST_ALONE + 2


def test_reasons_are_read_once_a_second_however_many_polls_there_are(scene: Scene) -> None:
    for number in range(20):
        scene.add(str(number))
    scene.poll()
    scene.poll()
    scene.slurm._nodes_changed -= 10  # long ago
    scene.slurm.calls.clear()
    for _ in range(11):
        scene.clock.advance(0.1)
        scene.poller.refresh()
    assert scene.slurm.count("GET", "jobs/state") == 11
    assert scene.slurm.count("GET", "/job/") == 2, "the witness of one poll, and one reason"


def test_a_poll_without_news_has_a_witness_once_a_second(scene: Scene) -> None:
    scene.slurm.start(scene.add("a"))
    scene.poll()
    told: list[Snapshot] = []
    scene.poller.subscribe(told.append)
    before = scene.poller.snapshot
    scene.slurm.calls.clear()
    for _ in range(3):
        scene.clock.advance(CHECK_PERIOD / 4)
        assert scene.poller.refresh() is before, "without a witness, the old answers are not confirmed"
    assert job_requests(scene.slurm) == ["GET jobs/state"] * 3
    assert not told
    scene.clock.advance(CHECK_PERIOD / 4)
    assert scene.poller.refresh().sequence == before.sequence + 1
    assert job_requests(scene.slurm) == ["GET jobs/state"] * 4 + ["GET job/1?flags=MIXED"]
    assert len(told) == 1


@pytest.mark.parametrize("known", ["by the poll", "by the submission"])
def test_a_start_between_two_witnesses_costs_one_request(scene: Scene, known: str) -> None:
    other = scene.add("b")
    job_id = scene.add("a") if known == "by the poll" else 0
    before = scene.poll()
    if not job_id:
        job_id = scene.client.submit(JobRequest("n", link("a"), external=True)).job_id
        scene.poller.expect(job_id, link("a"))
    scene.slurm.start(job_id)
    scene.slurm.calls.clear()
    scene.clock.advance(0.3)
    now = scene.poller.refresh()
    assert job_requests(scene.slurm) == ["GET jobs/state", f"GET job/{job_id}?flags=MIXED"]
    assert now.jobs[job_id].job.nodes == ("node-0",)
    assert now.jobs[other] is before.jobs[other]
    assert (now.sequence, now.began) == (before.sequence, before.began), "nothing is confirmed about other jobs"
    scene.clock.advance(0.3)
    assert scene.poller.refresh() is now


def test_the_end_of_a_prolog_is_in_the_list_of_states(scene: Scene) -> None:
    job_id, _ = scene.add("a"), scene.add("b")
    scene.slurm.start(job_id, configuring=True)
    assert scene.poll().jobs[job_id].job.states == {"RUNNING", "CONFIGURING"}
    scene.slurm.start(job_id)
    assert f"GET job/{job_id}?flags=MIXED" not in scene.asked()
    now = scene.poller.snapshot.jobs[job_id]
    assert (now.job.states, now.job.nodes) == ({"RUNNING"}, ("node-0",))
    scene.slurm.jobs[job_id].states = ["RUNNING", "RESIZING"]
    assert f"GET job/{job_id}?flags=MIXED" in scene.asked()


def test_changed_nodes_need_no_witness(scene: Scene) -> None:
    job_id = scene.add("a")
    before = scene.poll()
    scene.slurm.nodes["node-2"].states.add("DRAIN")
    scene.slurm._nodes_changed += 1
    scene.slurm.start(job_id)
    scene.slurm.calls.clear()
    scene.clock.advance(0.9 * CHECK_PERIOD)
    now = scene.poller.refresh()
    assert job_requests(scene.slurm) == ["GET jobs/state", f"GET job/{job_id}?flags=MIXED"]
    assert "DRAIN" in now.nodes["node-2"].states
    assert (now.sequence, now.jobs[job_id].job.nodes) == (before.sequence, ("node-0",))


@pytest.mark.parametrize("what", ["an end", "a new job of others", "a missing job", "another job", "many starts"])
def test_any_other_news_needs_the_witness(scene: Scene, what: str) -> None:
    jobs = [scene.add(str(number)) for number in range(12)]
    scene.slurm.start(jobs[0])
    before = scene.poll()
    scene.slurm.calls.clear()
    match what:
        case "an end":
            scene.slurm.end(jobs[0], "COMPLETED")
        case "a new job of others":
            scene.slurm.add(user="alice")
        case "a missing job":
            del scene.slurm.jobs[jobs[3]]
        case "another job":
            scene.slurm.jobs[jobs[3]].asked["admin_comment"] = encode(link("else"))
            scene.slurm.start(jobs[3])
        case _:
            for job_id in jobs[1:11]:
                scene.slurm.start(job_id)
    scene.clock.advance(0.3)
    now = scene.poller.refresh()
    assert now.sequence == before.sequence + 1
    if what == "another job":
        assert job_requests(scene.slurm)[-1] == "GET jobs?flags=MIXED", "all jobs are read again"
        assert now.jobs[jobs[3]].job.link == link("else")
    else:
        assert job_requests(scene.slurm)[-1] == f"GET job/{jobs[-1]}?flags=MIXED"


def test_a_wanted_list_of_all_jobs_is_in_the_next_snapshot(scene: Scene) -> None:
    scene.add("a")
    scene.poll()
    scene.poller.list_all()
    scene.clock.advance(0.3)
    assert scene.poller.refresh().listed_at == scene.clock.monotonic()


def test_a_submitted_job_is_in_the_snapshot_of_a_poll_without_a_witness(scene: Scene) -> None:
    before = scene.poll()
    job_id = scene.client.submit(JobRequest("n", link("new"), external=True)).job_id
    scene.poller.expect(job_id, link("new"))
    scene.clock.advance(0.3)
    now = scene.poller.refresh()
    assert now.sequence == before.sequence
    assert (now.by_uid, now.jobs[job_id].job.states) == ({"new": (job_id,)}, {"PENDING"})
    scene.slurm.start(job_id)
    scene.clock.advance(0.3)
    assert scene.poller.refresh().jobs[job_id].job.nodes == ("node-0",)


def test_an_end_is_confirmed_by_the_next_poll_without_delay(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    scene.poll()
    scene.slurm.end(job_id, "CANCELLED")
    for confirmations in (1, 2):
        scene.clock.advance(0.3)
        assert scene.poller.refresh().jobs[job_id].confirmations == confirmations


def test_a_changed_node_is_in_the_next_snapshot_without_delay(scene: Scene) -> None:
    scene.poll()
    scene.slurm.nodes["node-2"].states.add("DRAIN")
    scene.clock.advance(PERIOD)
    assert "DRAIN" in scene.poller.refresh().nodes["node-2"].states


def test_the_witness_that_has_just_started_is_read_once(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.poll()
    scene.slurm.start(job_id)
    scene.slurm.calls.clear()
    assert scene.poll().jobs[job_id].job.nodes == ("node-0",)
    assert job_requests(scene.slurm) == ["GET jobs/state", f"GET job/{job_id}?flags=MIXED"]


def test_reasons_yield_to_the_jobs_that_start() -> None:
    with FakeSlurm() as slurm:
        scene = Scene(slurm, budget=4)
        waiting = [scene.add(str(number)) for number in range(30)]
        scene.poll()
        scene.poll()
        slurm.calls.clear()
        for job_id in waiting[:3]:
            slurm.start(job_id)
            scene.clock.advance(0.25)
            scene.poller.refresh()
        assert len(job_requests(slurm)) == 6, "a list and a job three times"
        slurm.calls.clear()
        scene.clock.advance(0.25)
        scene.poller.refresh()
        assert slurm.count("GET", "/job/") == 2, "the witness and one reason: 3 of the budget of 4 are spent"


def test_a_standby_ignores_hints(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        running.poller._leads = lambda: False
        assert running.wait(lambda now: now.sequence == 1)
        assert not running.poller.hint()
        assert not running.wait(lambda now: now.sequence > 1, 0.2)


def test_hints_do_not_shorten_the_pause_after_a_failure(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
        scene.slurm.fault = lambda method, path: (502, b"")
        running.poller.hint()
        eventually(lambda: running.poller.snapshot.error, every=0.01)
        scene.slurm.calls.clear()
        for _ in range(20):
            running.poller.hint()
            time.sleep(0.01)
        assert scene.slurm.count("GET", "jobs/state") <= 1


def test_stopping_does_not_wait_for_the_pause(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        assert running.wait(lambda now: now.sequence == 1)
    assert running.poller.snapshot.sequence == 1
