"""The witness of a poll, job ids that Slurm uses again, and what polls read besides."""

import pytest

from bridge.slurm.job_reader import CHECK_PERIOD
from bridge.slurm.link import encode
from bridge.slurm.models import JobRequest, Snapshot
from bridge.slurm.snapshot import FORGET_OTHERS
from tests.fakes.slurmrestd import FakeJob, FakeSlurm
from tests.unit.slurm.scene import Scene, job_requests, link


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
    found = [(snapshot.jobs[job_id].confirmations, snapshot.jobs[job_id].missing) for job_id in (1, 2, 3)]
    assert found == [(1, True), (1, True), (0, False)]
    assert snapshot.by_uid == {"old-0": (1,), "old-1": (2,), "new": (3,)}

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
    found = [(known.missing, known.job.nodes) for known in scene.poll().jobs.values()]
    assert found == [(True, ("node-0",)), (True, ()), (True, ())]


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
