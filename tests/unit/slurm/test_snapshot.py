"""Polls: what they request, and what a snapshot has after answers and failures."""

import json
import logging
import math
from typing import Any

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.slurm.job_reader import UNEXPLAINED
from bridge.slurm.link import encode
from bridge.slurm.models import JobRequest, Snapshot
from bridge.slurm.snapshot import EMPTY_PERIOD, STANDBY_PERIOD, Poller
from bridge.slurm.states import Phase
from tests.fakes.slurmrestd import FakeSlurm, paths
from tests.unit.slurm.scene import Scene, job_requests, link


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


def test_jobs_of_others_are_counted_by_partition_and_phase(scene: Scene) -> None:
    scene.add("a")
    for _ in range(2):
        scene.slurm.start(scene.slurm.add().job_id)
    scene.slurm.add()
    scene.poll()
    scene.client.array_tasks[frozenset({"RUNNING", "CONFIGURING"})] = 7
    assert scene.poller.other_jobs() == {
        ("main", Phase.ALLOCATED): 2,
        ("main", Phase.PENDING): 1,
        ("", Phase.ALLOCATED): 7,
    }


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


@pytest.mark.parametrize("alone", [False, True], ids=["poll", "hint"])
def test_the_division_between_nodes_is_read_once_where_the_details_lack_it(scene: Scene, alone: bool) -> None:
    scene.poll()
    job_id = scene.client.submit(JobRequest("n", link("new"), external=True, cpus=1, tasks=8)).job_id
    scene.poller.expect(job_id, link("new"))
    scene.slurm.start(job_id, "node-[3-4]")
    scene.slurm.calls.clear()
    scene.poller.read(job_id) if alone else scene.poll()
    asked = [call for call in job_requests(scene.slurm) if str(job_id) in call]
    assert asked == [f"GET job/{job_id}?flags=MIXED", f"GET resources/{job_id}"]

    def division() -> list[tuple[str, int]]:
        given = scene.poller.snapshot.jobs[job_id].job.allotment
        return [(name, one.cpus) for name, one in given.nodes] if given is not None else []

    assert division() == [("node-3", 7), ("node-4", 1)]
    scene.slurm.jobs[job_id].states = ["SUSPENDED"]  # its details are read again
    scene.slurm.touch()
    assert [call for call in scene.asked() if "resources" in call] == []
    assert scene.poller.snapshot.jobs[job_id].job.states == {"SUSPENDED"}
    assert division() == [("node-3", 7), ("node-4", 1)]


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


def test_a_job_told_of_during_a_poll_is_in_what_the_poll_publishes(scene: Scene) -> None:
    scene.poll()

    def meanwhile(method: str, path: str) -> None:
        if path.endswith("jobs/state"):
            scene.poller.expect(7, link("new"))

    scene.slurm.fault = meanwhile
    assert scene.poll().by_uid == {"new": (7,)}


FAILURES: list[Any] = [
    "reset",
    "hang",
    (404, b"<html>not found</html>"),
    (502, b"bad gateway"),
    (200, b'{"jobs": []}'),
    (200, json.dumps({"meta": {"plugin": {}}, "errors": [], "jobs": None}).encode()),
    (200, json.dumps({"meta": {"plugin": {}}, "errors": [{"error": "half"}], "jobs": []}).encode()),
]


@pytest.mark.parametrize("fault", [*FAILURES, "slurmctld"])
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
    scene.slurm.down = fault == "slurmctld"
    scene.slurm.fault = lambda method, path: fault if where in path and not scene.slurm.down else None
    for _ in range(2):
        after = scene.poll()
        assert after.error
        assert (after.sequence, after.began, after.jobs) == (before.sequence, before.began, before.jobs)
    assert told == []
    scene.slurm.fault, scene.slurm.down = None, False
    back = scene.poll()
    assert (back.error, back.sequence, back.settled_since) == ("", 2, back.began)
    assert back.jobs[running].confirmations == 0
    assert (back.jobs[ended].confirmations, back.jobs[ended].missing) == (1, False)
    assert (back.jobs[gone].confirmations, back.jobs[gone].missing) == (1, True)
    final = scene.poll()
    assert [final.jobs[job_id].confirmations for job_id in (ended, gone, running)] == [2, 2, 0]
    assert final.settled_since == back.began


def test_silence_is_logged_once_and_so_is_the_return(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.slurm")
    scene.slurm.down = True
    for _ in range(3):
        scene.poll()
    scene.slurm.down = False
    scene.poll()
    scene.poll()
    told = [record.message for record in caplog.records]
    assert told == ["slurm does not answer", "all jobs are read", "slurm answers again"]


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


def test_after_a_failed_poll_each_submitted_job_is_in_the_snapshot_or_listed_as_unread(scene: Scene) -> None:
    for _ in range(2000):
        scene.slurm.add(user="alice")
    scene.poll()
    submitted = [scene.add(f"u{number}") for number in range(100)]
    for number, job_id in enumerate(submitted):
        scene.poller.expect(job_id, link(f"u{number}"))
    scene.slurm.down = True
    scene.poll()
    scene.slurm.down = False
    unread = []
    for _ in range(5):
        scene.clock.advance(1)
        snapshot = scene.poll()
        assert not set(submitted) - snapshot.jobs.keys() - snapshot.unread
        unread.append(len(set(submitted) & snapshot.unread))
    assert unread[0] and not unread[-1]


def test_a_submitted_job_that_is_also_named_on_its_pod_is_in_each_snapshot(scene: Scene) -> None:
    for _ in range(2000):
        scene.slurm.add(user="alice")
    scene.poll()
    submitted = [scene.add(f"u{number}") for number in range(100)]
    for sure in (True, False):
        for number, job_id in enumerate(submitted):
            scene.poller.expect(job_id, link(f"u{number}"), sure=sure)
    assert scene.poll().jobs.keys() == set(submitted)
