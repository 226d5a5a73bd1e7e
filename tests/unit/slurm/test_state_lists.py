from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from bridge.clock import FakeClock
from bridge.config import Config, SlurmSection
from bridge.slurm import client as clients
from bridge.slurm.client import SlurmClient
from bridge.slurm.link import encode
from bridge.slurm.models import JobLink, PodRef, Snapshot
from bridge.slurm.snapshot import Poller
from bridge.slurm.state_lists import SHARE, SHARE_IF_WANTED
from tests.fakes.slurmrestd import TOKEN, FakeSlurm, paths

LIST = 10.0
"""Seconds that the list of all jobs takes."""


def link(uid: str) -> JobLink:
    return JobLink("here", (PodRef("ns", f"pod-{uid}", uid),))


class SlowClient(SlurmClient):
    """A client of a slurmrestd whose list of all jobs takes ``LIST`` seconds of a fake clock."""

    fake: FakeClock

    def job_states(self, ids: Sequence[int] | None = None) -> dict[int, frozenset[str]]:
        if ids is None:
            self.fake.advance(LIST)
        return super().job_states(ids)

    def estimate_list(self) -> float:
        super().estimate_list()
        return LIST


class Scene:
    """A fake Slurm with jobs of others, and a poller that knows the jobs on pods."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm, self.clock = slurm, FakeClock(1000)
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(detail_budget=2))
        client = SlowClient(config, TOKEN)
        client.fake = self.clock
        self.on_pods: dict[int, JobLink] = {}
        known = lambda wanted: {i: found for i, found in self.on_pods.items() if wanted(i)}  # noqa: E731
        self.poller = Poller(client, "here", config, clock=self.clock, known=known)
        for _ in range(5):
            slurm.add(user="alice")

    def add(self, uid: str, *, labelled: bool = True) -> int:
        job_id = self.slurm.add({"name": uid, "admin_comment": encode(link(uid))}).job_id
        if labelled:
            self.on_pods[job_id] = link(uid)
        return job_id

    def poll(self, wait: float = 1) -> Snapshot:
        self.slurm.calls.clear()
        self.clock.advance(wait)
        return self.poller.refresh()

    def lists(self) -> list[str]:
        """Return the last poll's requests for states."""
        return [call for call in paths(self.slurm.calls) if call.startswith("GET jobs/state")]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with FakeSlurm() as slurm:
        yield Scene(slurm)


def test_the_first_snapshot_has_the_jobs_on_pods_before_the_list_of_all_jobs(scene: Scene) -> None:
    ours, unlabelled = scene.add("a"), scene.add("b", labelled=False)
    first = scene.poll()
    assert scene.lists() == [f"GET jobs/state?job_id={ours}"]
    assert (first.sequence, first.jobs.keys(), first.listed_at) == (1, {ours}, -math.inf)
    second = scene.poll()
    assert scene.lists() == ["GET jobs/state"]
    assert second.jobs.keys() == {ours, unlabelled}
    assert second.listed_at == second.began


def test_without_a_job_on_a_pod_the_first_snapshot_is_complete(scene: Scene) -> None:
    unlabelled = scene.add("b", labelled=False)
    first = scene.poll()
    assert scene.lists() == ["GET jobs/state"]
    assert (first.jobs.keys(), first.listed_at) == ({unlabelled}, first.began)


def test_a_poll_asks_for_podbridges_jobs_only_while_the_list_of_all_jobs_is_slow(scene: Scene) -> None:
    ours = scene.add("a")
    scene.poll()
    complete = scene.poll()
    for _ in range(3):
        snapshot = scene.poll()
        assert scene.lists() == [f"GET jobs/state?job_id={ours}"]
    assert snapshot.listed_at == complete.began < snapshot.began
    scene.slurm.start(ours)
    assert scene.poll().jobs[ours].job.nodes == ("node-0",)
    scene.poll(SHARE * LIST)
    assert scene.lists() == ["GET jobs/state"]


def test_a_wanted_list_of_all_jobs_is_read_after_a_rest(scene: Scene) -> None:
    scene.add("a")
    scene.poll()
    scene.poll()
    late = scene.add("late", labelled=False)
    scene.poller.list_all()
    assert late not in scene.poll(1).jobs
    assert late in scene.poll(SHARE_IF_WANTED * LIST).jobs
    scene.poll(SHARE_IF_WANTED * LIST)
    assert scene.lists() != ["GET jobs/state"]


def test_submitted_ended_and_lost_jobs_are_found_without_the_list_of_all_jobs(scene: Scene) -> None:
    ended, lost = scene.add("a"), scene.add("b")
    scene.poll()
    scene.poll()
    submitted = scene.add("c", labelled=False)
    scene.poller.expect(submitted, link("c"))
    on_pod = scene.add("d")
    scene.slurm.end(ended, "COMPLETED")
    scene.slurm.forget(lost)
    scene.poll()
    snapshot = scene.poll()
    assert snapshot.jobs[ended].is_confirmed
    assert snapshot.jobs[lost].missing
    assert snapshot.jobs[lost].is_confirmed
    assert snapshot.by_uid["c"] == (submitted,)
    assert snapshot.by_uid["d"] == (on_pod,)
    scene.poll()
    assert scene.lists() == [f"GET jobs/state?job_id={submitted}&job_id={on_pod}"]


def test_without_any_job_a_poll_checks_that_slurmctld_answers(scene: Scene) -> None:
    scene.poll()
    scene.poll()
    assert scene.lists() == []
    scene.slurm.down = True
    assert scene.poll().error


def test_a_reused_id_is_found_without_the_list_of_all_jobs(scene: Scene) -> None:
    ours = scene.add("a")
    scene.poll()
    scene.poll()
    scene.slurm.forget(ours)
    scene.slurm.jobs[ours] = scene.slurm.add(user="alice")
    scene.slurm.jobs[ours].job_id = ours
    scene.slurm.jobs[ours].submit_time += 100
    snapshot = scene.poll()
    assert scene.lists()[-1] == "GET jobs/state"
    assert snapshot.jobs[ours].missing


def test_ids_are_asked_for_in_parts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_IDS", 2)
    ids = [scene.add(uid) for uid in "abc"]
    snapshot = scene.poll()
    assert scene.lists() == [f"GET jobs/state?job_id={ids[0]}&job_id={ids[1]}", f"GET jobs/state?job_id={ids[2]}"]
    assert snapshot.jobs.keys() == set(ids)
