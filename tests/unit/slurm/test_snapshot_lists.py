"""Lists of many jobs, of nodes and of partitions."""

import logging
import math
import threading

import pytest

from bridge.clock import SystemClock
from bridge.slurm.models import Job, Snapshot
from bridge.slurm.node_reader import PARTITIONS, PERIOD, SLOW_PERIOD
from bridge.slurm.query_plan import LARGEST_BULK, MOST_SINGLES
from tests.unit.slurm.scene import Scene


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
    assert {record.message for record in caplog.records} == {"reading all jobs for the first time", "all jobs are read"}


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
    scene.poller._node_reader._requested_at = scene.poller._node_reader._due_at = 0
    thread = threading.Thread(target=scene.poller._wait, args=(stop, 60.0, 0.0))
    scene.slurm.nodes["node-1"].states.add("DRAIN")  # first: else the answer may be older, and ends the pause too
    thread.start()
    thread.join(5)
    alive = thread.is_alive()
    stop.set()
    thread.join()
    assert not alive
    assert "DRAIN" in scene.poll().nodes["node-1"].states
