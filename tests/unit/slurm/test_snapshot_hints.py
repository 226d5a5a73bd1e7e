"""The thread of the poller: pauses, wakes and hints."""

import threading
import time

import pytest

from bridge.slurm.hint_pace import MOST_ALONE
from bridge.slurm.link import encode
from bridge.slurm.models import Job, JobLink
from bridge.slurm.snapshot import SETTLE
from cluster.polling import eventually
from tests.fakes.slurmrestd import FakeSlurm
from tests.unit.slurm.scene import Running, Scene, job_requests, link


def test_a_wake_shortens_a_long_pause(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        job_id = scene.add("a")
        assert not running.wait(lambda now: now.sequence > 1, 0.05)
        running.poller.wake()
        assert running.wait(lambda now: job_id in now.jobs)


def test_a_submission_is_followed_by_a_poll_when_slurm_has_had_time_to_start_the_job(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60, poll_busy=0.1) as running:
        time.sleep(0.3)
        scene.slurm.calls.clear()
        submitted, job_id = time.monotonic(), scene.add("a")
        running.poller.expect(job_id, link("a"))
        eventually(lambda: scene.slurm.count("GET", "jobs/state"), every=0.005)
        assert SETTLE <= time.monotonic() - submitted < 2, "not at the end of the idle period"


def test_submissions_one_after_another_do_not_shorten_the_busy_period(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60, poll_busy=0.5) as running:
        scene.slurm.calls.clear()
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            running.poller.expect(scene.add("a"), link("a"))
            time.sleep(0.05)
        assert scene.slurm.count("GET", "jobs/state") <= 3


def test_wakes_do_not_hammer(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        scene.slurm.calls.clear()
        for _ in range(1000):
            running.poller.wake()
        running.wait(lambda now: now.sequence > 50, 0.05)
        assert scene.slurm.count("GET", "jobs/state") <= 2


def test_a_hint_causes_a_poll_at_once(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        time.sleep(0.1)
        job_id = scene.add("a")
        running.poller.hint()
        assert running.wait(lambda now: job_id in now.jobs, 0.15), "a wake may wait for 0.25 s"


def test_a_flood_of_hints_causes_few_polls(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        scene.slurm.calls.clear()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            running.poller.hint()
            time.sleep(0.001)
        assert 2 <= scene.slurm.count("GET", "jobs/state") <= 8, "the burst of 4, and 3 per second"


@pytest.mark.parametrize("known", ["by the poll", "by the submission"])
def test_a_hint_about_a_job_of_podbridge_costs_one_request(scene: Scene, known: str) -> None:
    job_id, other = scene.add("a") if known == "by the poll" else 0, scene.add("b")
    with Running(scene.slurm, poll_busy=60) as running:
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
    running = Running(scene.slurm, poll_busy=60)
    running.poller.subscribe_hints(links.append)
    with running:
        scene.slurm.start(job_id)
        running.poller.hint(job_id)
        eventually(lambda: links == [link("a")])


def test_the_first_report_of_an_end_wakes_no_loop_and_is_confirmed_after_the_busy_period(scene: Scene) -> None:
    job_id = scene.add("a")
    scene.slurm.start(job_id)
    running = Running(scene.slurm, poll_idle=60, poll_busy=0.2)
    running.poller._node_reader.changed = lambda **_: False  # type: ignore[method-assign]  # it causes a poll too
    with running:
        told: list[int] = []
        running.poller.subscribe(lambda now: told.append(now.jobs[job_id].confirmations))
        began = time.monotonic()
        scene.slurm.end(job_id, "CANCELLED")
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.jobs[job_id].is_confirmed)
        assert time.monotonic() - began >= 0.19  # a timer may end a moment early
        assert 1 not in told, "a decision about it would delay the next one, which terminates the pod"


def test_a_hint_about_a_job_of_others_costs_nothing(scene: Scene) -> None:
    foreign = scene.slurm.add().job_id
    with Running(scene.slurm, poll_idle=60) as running:
        scene.slurm.calls.clear()
        assert running.poller.hint(foreign)
        assert not running.wait(lambda now: now.sequence > 1, 0.3)
        assert job_requests(scene.slurm) == []


def test_a_hint_about_an_unknown_job_causes_a_poll(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        job_id = scene.add("a")
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.sequence == 2 and job_id in now.jobs)


def test_a_hint_about_an_id_that_belongs_to_another_job_now_is_decided_by_a_poll(scene: Scene) -> None:
    job_id = scene.add("a")
    with Running(scene.slurm, poll_busy=60) as running:
        scene.slurm.jobs[job_id].asked["admin_comment"] = encode(link("b"))
        running.poller.hint(job_id)
        assert running.wait(lambda now: now.sequence == 2)
        assert running.poller.snapshot.by_uid.keys() == {"b"}


def test_a_job_that_cannot_be_read_alone_is_left_to_the_poll(scene: Scene) -> None:
    job_id = scene.add("a")
    with Running(scene.slurm, poll_busy=60) as running:
        scene.slurm.fault = lambda method, path: (502, b"") if f"/job/{job_id}" in path else None
        running.poller.hint(job_id)
        eventually(lambda: running.poller.snapshot.error, every=0.01)
        assert running.poller.snapshot.jobs[job_id].job.states == {"PENDING"}


def test_the_jobs_of_many_hints_are_read_by_one_poll(scene: Scene) -> None:
    jobs = [scene.add(f"u{number}") for number in range(3 * MOST_ALONE)]
    with Running(scene.slurm, poll_busy=60) as running:
        time.sleep(0.1)
        scene.slurm.calls.clear()
        for job_id in jobs:
            scene.slurm.start(job_id)
            running.poller.hint(job_id)
        assert running.wait(lambda now: all(now.jobs[job_id].job.nodes for job_id in jobs))
        assert scene.slurm.count("GET", "jobs/state") >= 1
        assert scene.slurm.count("GET", "/job/") <= 2 * MOST_ALONE + 2


def test_a_standby_ignores_hints(scene: Scene) -> None:
    running = Running(scene.slurm, poll_idle=60)
    running.poller._leads = lambda: False
    with running:
        assert not running.poller.hint()
        assert not running.wait(lambda now: now.sequence > 1, 0.2)


def test_hints_do_not_shorten_the_pause_after_a_failure(scene: Scene) -> None:
    with Running(scene.slurm, poll_idle=60) as running:
        scene.slurm.fault = lambda method, path: (502, b"")
        running.poller.hint()
        eventually(lambda: running.poller.snapshot.error, every=0.01)
        scene.slurm.calls.clear()
        for _ in range(20):
            running.poller.hint()
            time.sleep(0.01)
        assert scene.slurm.count("GET", "jobs/state") <= 1
