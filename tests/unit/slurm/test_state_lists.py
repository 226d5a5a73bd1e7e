import math
import re
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import Mock

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.errors import SlurmUnavailableError
from bridge.slurm import job_reader, query_plan, state_lists
from bridge.slurm import slurm_client as clients
from bridge.slurm.link import encode
from bridge.slurm.models import Job, JobLink, Snapshot
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller
from bridge.slurm.state_lists import SHARE, SHARE_IF_WANTED
from tests.builders import link
from tests.fakes.clock import FakeClock
from tests.fakes.slurmrestd import TOKEN, FakeSlurm, paths

MANY = state_lists.ALWAYS_CHEAP
LIST = 10.0
"""Seconds that the list of all jobs takes."""


class SlowClient(SlurmClient):
    """A client of a slurmrestd whose list of all jobs takes ``LIST`` seconds of a fake clock.

    ``meanwhile`` is called between the answer of slurmctld about all jobs and the end of the request.
    """

    fake: FakeClock
    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def job_states(self, ids: Sequence[int] | None = None) -> dict[int, frozenset[str]]:
        if ids is None:
            self.fake.advance(LIST)
        found = super().job_states(ids)
        if ids is None:
            self.meanwhile()
        return found

    def estimate_list(self) -> float:
        super().estimate_list()
        return LIST


class Scene:
    """A fake Slurm with jobs of others, and a poller that knows the jobs on pods."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm, self.clock = slurm, FakeClock(1000)
        config = Config(slurm_rest_api=slurm.url, slurm=SlurmSection(detail_budget=2))
        self.client = client = SlowClient(config, TOKEN)
        client.fake = self.clock
        self.on_pods: dict[int, JobLink] = {}
        self.returned: list[int] = []
        self.started: list[Callable[[], None]] = []
        self.poller = Poller(
            client, "here", config, clock=self.clock, jobs_on_pods=self.known, start=self.started.append
        )
        for _ in range(5):
            slurm.add(user="alice")

    def known(self, wanted: Callable[[int], bool]) -> dict[int, JobLink]:
        found = {job_id: link for job_id, link in self.on_pods.items() if wanted(job_id)}
        self.returned += found
        return found

    def add(self, uid: str, *, labelled: bool = True) -> int:
        job_id = self.slurm.add({"name": uid, "admin_comment": encode(link(uid))}).job_id
        if labelled:
            self.on_pods[job_id] = link(uid)
        return job_id

    def poll(self, wait: float = 1) -> Snapshot:
        self.slurm.calls.clear()
        self.clock.advance(wait)
        return self.poller.refresh()

    def read_list(self) -> Snapshot:
        """Let the request for the list of all jobs, which a poll has started, end; return the snapshot of a poll."""
        self.started.pop()()
        assert not self.started
        return self.poll()

    def list_all(self) -> Snapshot:
        """Request the list of all jobs, and read it."""
        self.poller.list_all()
        self.poll()
        return self.read_list()

    def lists(self) -> list[str]:
        """Return the last poll's requests for states."""
        return [call for call in paths(self.slurm.calls) if call.startswith("GET jobs/state")]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(state_lists, "ALWAYS_CHEAP", 0)
    with FakeSlurm() as slurm:
        yield Scene(slurm)


def test_the_first_snapshot_has_the_jobs_on_pods_before_the_list_of_all_jobs(scene: Scene) -> None:
    ours, unlabelled = scene.add("a"), scene.add("b", labelled=False)
    scene.poller.list_all()
    first = scene.poll()
    assert scene.lists() == [f"GET jobs/state?job_id={ours}"]
    assert (first.sequence, first.jobs.keys(), first.listed_at) == (1, {ours}, -math.inf)
    second = scene.read_list()
    assert second.jobs.keys() == {ours, unlabelled}
    assert second.listed_at == first.began


def test_the_comment_of_a_pod_is_computed_once_while_its_job_waits_to_be_read(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_plan, "LARGEST_BULK", 0)
    monkeypatch.setattr(query_plan, "LARGEST_SINGLES", query_plan.MOST_SINGLES)
    ours = {scene.add(f"p{number}") for number in range(query_plan.MOST_SINGLES + 1)}
    scene.poller.list_all()
    assert len(scene.poll().jobs) == query_plan.MOST_SINGLES
    assert scene.poll().jobs.keys() == ours
    assert sorted(scene.returned) == sorted(ours)


def test_fewer_reasons_are_read_while_jobs_of_others_are_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_plan, "LARGEST_BULK", 0)
    monkeypatch.setattr(job_reader, "FEW_JOBS", 50)
    scene.poller._job_reader._budget = 6
    for _ in range(200):
        scene.slurm.add(user="alice")
    ours = {scene.add(f"p{number}") for number in range(10)}
    scene.list_all()

    def reasons() -> list[int]:
        return [len((scene.poll(1), job_reads(scene) & ours)[1]) for _ in range(10)]

    reasons()
    assert set(reasons()) == {6 - job_reader.OTHERS_RATE}
    monkeypatch.setattr(job_reader, "FEW_JOBS", 1000)  # the rest is read at once
    scene.poll(1)
    assert set(reasons()) == {6}


def test_jobs_of_others_are_read_slowly_unless_a_decision_waits_for_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_plan, "LARGEST_BULK", 0)
    monkeypatch.setattr(job_reader, "FEW_JOBS", 50)
    others = [scene.slurm.add(user="alice").job_id for _ in range(995)]
    ours, unlabelled = scene.add("a"), scene.add("b", labelled=False)
    first = scene.list_all()
    assert len(job_reads(scene) - {ours}) == job_reader.LONGEST_PAUSE * job_reader.OTHERS_RATE
    assert first.jobs.keys() == {ours, unlabelled}, "the newest are read first"
    scene.poll(10)
    assert len(job_reads(scene) - {ours, unlabelled}) == 10 * job_reader.OTHERS_RATE
    scene.poll(0.1)
    assert job_reads(scene) <= {ours, unlabelled}
    read = [len((scene.poll(0.3), job_reads(scene) - {ours, unlabelled})[1]) for _ in range(40)]
    assert 12 * job_reader.OTHERS_RATE - 2 <= sum(read) <= 12 * job_reader.OTHERS_RATE + 2
    assert 1 not in read, "not only the lowest id"
    scene.slurm.end(ours, "COMPLETED")
    scene.poll(0.1)
    assert ours in job_reads(scene), "a job of podbridge has no pause"
    assert scene.poller.snapshot.listed_at == -math.inf
    assert scene.poller.snapshot.settled_since == first.settled_since, "slurmctld has answered every poll"
    scene.poller.hurry()
    for _ in range(len(others) // query_plan.MOST_SINGLES):
        scene.poll(0.1)
    assert scene.poller.snapshot.listed_at > -math.inf


def test_a_standby_does_not_read_many_jobs(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_plan, "LARGEST_BULK", 0)
    monkeypatch.setattr(job_reader, "FEW_JOBS", 50)
    leads = False
    monkeypatch.setattr(scene.poller, "_leads", lambda: leads)
    ours = {scene.add(f"p{number}") for number in range(300)}
    first = scene.poll().jobs.keys()
    assert 0 < len(first) < len(ours) - job_reader.FEW_JOBS
    scene.poll(8)
    assert len(job_reads(scene)) <= 1, "only the witness"
    leads = True
    for _ in range(2):
        scene.poll(0.1)
    assert scene.poller.snapshot.jobs.keys() == ours


def job_reads(scene: Scene) -> set[int]:
    """Return the jobs that the last poll has read alone."""
    found = (re.match(r"GET job/(\d+)", call) for call in paths(scene.slurm.calls))
    return {int(match[1]) for match in found if match}


def test_polls_go_on_while_the_list_of_all_jobs_is_read(scene: Scene) -> None:
    ours, late = scene.add("a"), scene.add("late", labelled=False)
    scene.poller.list_all()
    scene.poll()
    (request,) = scene.started
    scene.slurm.start(ours)
    assert scene.poll().jobs[ours].job.nodes == ("node-0",)
    began = scene.clock.monotonic()
    request()
    scene.slurm.end(ours, "COMPLETED")
    submitted = scene.add("b", labelled=False)  # later than the list
    scene.poller.expect(submitted, link("b"))
    snapshot = scene.poll()
    # newer answers count: the list still has the job as running, and lacks the submitted one
    assert snapshot.jobs.keys() == {ours, late, submitted}
    assert snapshot.jobs[ours].confirmations == 1
    assert snapshot.listed_at == began
    assert len(scene.started) == 1


def test_jobs_that_have_ended_while_the_list_of_all_jobs_was_read_stay_ended(scene: Scene) -> None:
    ours, short = scene.add("a"), 0
    scene.slurm.start(ours)
    scene.poller.list_all()
    scene.poll()

    def meanwhile() -> None:
        nonlocal short
        short = scene.add("b", labelled=False)  # later than the list
        scene.poller.expect(short, link("b"))
        scene.poll()
        for job_id in (ours, short):
            scene.slurm.end(job_id, "COMPLETED")
        for _ in range(3):
            scene.poll()

    scene.client.meanwhile = meanwhile
    snapshot = scene.read_list()
    for _ in range(2):
        assert [snapshot.jobs[job_id].is_confirmed for job_id in (ours, short)] == [True, True]
        assert snapshot.jobs[ours].job.states == {"COMPLETED"}
        snapshot = scene.poll()
    assert snapshot.listed_at > -math.inf
    assert not job_reads(scene) & {ours, short}


def test_a_list_that_arrives_after_the_list_has_become_cheap_is_not_used_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.add("a")
    scene.poller.list_all()
    scene.poll()
    monkeypatch.setattr(state_lists, "ALWAYS_CHEAP", MANY)
    scene.started.pop()()
    cheap = scene.poll(60)
    assert scene.lists() == ["GET jobs/state"]
    monkeypatch.setattr(state_lists, "ALWAYS_CHEAP", 0)
    scene.poll()
    assert scene.poll().listed_at > cheap.listed_at


def test_a_list_is_read_again_after_the_poll_that_was_to_use_it_has_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.add("a")
    scene.list_all()
    scene.poll(SHARE_IF_WANTED * LIST)
    scene.poller.list_all()  # this process becomes the leader
    leading_since = scene.poll().began
    scene.add("b", labelled=False)
    with monkeypatch.context() as patch:
        patch.setattr(scene.client, "job", Mock(side_effect=SlurmUnavailableError("time-out")))
        assert scene.read_list().error
    scene.poll()
    scene.poll(SHARE_IF_WANTED * LIST)
    assert scene.read_list().listed_at > leading_since


def test_a_list_that_is_requested_late_enough_is_read_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.add("a")
    scene.poller.list_all()
    began = scene.poll().began
    read = scene.client.job

    def job(job_id: int) -> Job:
        scene.poller.list_all(began)  # a decision while the poll that uses the list reads jobs
        return read(job_id)

    scene.poller.list_all(began)
    with monkeypatch.context() as patch:
        patch.setattr(scene.client, "job", job)
        scene.read_list()
    scene.poll(SHARE_IF_WANTED * LIST)
    assert not scene.started
    scene.poller.list_all()
    began = scene.poll().began
    scene.poller.list_all(began + 1)
    scene.read_list()
    scene.poll(SHARE_IF_WANTED * LIST)
    assert len(scene.started) == 1


def test_a_standby_reads_no_expensive_list_of_all_jobs(scene: Scene) -> None:
    ours = scene.add("a")
    for _ in range(3):
        snapshot = scene.poll(SHARE * LIST)
    assert (snapshot.jobs.keys(), scene.started) == ({ours}, [])
    scene.poller.list_all()  # it becomes the leader
    scene.poll()
    assert scene.read_list().listed_at > -math.inf


def test_without_a_job_on_a_pod_the_first_snapshot_waits_for_no_list(scene: Scene) -> None:
    unlabelled = scene.add("b", labelled=False)
    scene.poller.list_all()
    assert scene.poll().sequence == 1
    second = scene.read_list()
    assert second.jobs.keys() == {unlabelled}


def test_a_poll_asks_for_podbridges_jobs_only_while_the_list_of_all_jobs_is_slow(scene: Scene) -> None:
    ours = scene.add("a")
    scene.poller.list_all()
    began = scene.poll().began
    scene.read_list()
    for _ in range(3):
        snapshot = scene.poll()
        assert scene.lists() == [f"GET jobs/state?job_id={ours}"]
    assert snapshot.listed_at == began < snapshot.began
    scene.slurm.start(ours)
    assert scene.poll().jobs[ours].job.nodes == ("node-0",)
    assert not scene.started
    scene.poll(SHARE * LIST)
    assert len(scene.started) == 1


def test_a_wanted_list_of_all_jobs_is_read_after_a_rest(scene: Scene) -> None:
    scene.add("a")
    scene.list_all()
    late = scene.add("late", labelled=False)
    scene.poller.list_all()
    scene.poll(1)
    assert not scene.started
    scene.poll(SHARE_IF_WANTED * LIST)
    assert late in scene.read_list().jobs
    scene.poll(SHARE_IF_WANTED * LIST)
    assert not scene.started


def test_a_list_that_is_wanted_later_is_not_read_before(scene: Scene) -> None:
    scene.poller.list_all(scene.clock.monotonic() + 5)
    scene.poller.list_all()
    scene.poll(4)
    assert not scene.started
    scene.poll(1)
    assert len(scene.started) == 1


def test_a_failed_list_of_all_jobs_is_read_again_and_fails_no_poll(scene: Scene) -> None:
    scene.add("a")
    scene.poller.list_all()
    scene.poll()
    scene.slurm.down = True
    scene.started.pop()()
    scene.slurm.down = False
    assert not scene.poll().error
    assert not scene.started
    scene.poll(SHARE_IF_WANTED * LIST)
    assert scene.read_list().listed_at > -math.inf


@pytest.fixture
def few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a poll read three jobs at most."""
    monkeypatch.setattr(query_plan, "LARGEST_SINGLES", 3)
    monkeypatch.setattr(query_plan, "MOST_SINGLES", 3)
    monkeypatch.setattr(query_plan, "LARGEST_BULK", 0)


@pytest.mark.usefixtures("few_reads")
def test_the_newest_jobs_are_read_first_and_pods_as_new_as_them_need_no_others(scene: Scene) -> None:
    ids = [*scene.slurm.jobs, scene.add("crashed", labelled=False), scene.slurm.add(user="alice").job_id]
    for job_id in ids:
        scene.slurm.jobs[job_id].submit_time = 1000 + 10 * job_id
    scene.poller.list_all()
    began = scene.poll().began
    first = scene.read_list()
    assert set(first.by_uid) == {"crashed"}
    last = ids[-2]
    assert (first.listed_at, first.requested_at, first.partial_since) == (-math.inf, began, 1000 + 10 * last)
    assert first.listed_for(1000 + 10 * last) == -math.inf
    assert first.listed_for(1001 + 10 * last) == began
    second = scene.poll()
    assert second.partial_since < first.partial_since
    third = scene.poll()
    assert (third.listed_at, third.partial_since) == (began, math.inf)


@pytest.mark.usefixtures("few_reads")
def test_after_ids_have_begun_again_newer_jobs_may_have_lower_ids(scene: Scene) -> None:
    for job_id in scene.slurm.jobs:
        scene.slurm.jobs[job_id].submit_time = 1000 + 10 * job_id
    scene.slurm.jobs[min(scene.slurm.jobs)].submit_time = 5000
    assert scene.list_all().partial_since == math.inf


def test_submitted_ended_and_lost_jobs_are_found_without_the_list_of_all_jobs(scene: Scene) -> None:
    ended, lost = scene.add("a"), scene.add("b")
    scene.list_all()
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
    # a lost job comes back if the state of slurmctld is restored
    assert scene.lists() == [f"GET jobs/state?job_id={lost}&job_id={submitted}&job_id={on_pod}"]


def test_without_any_job_a_poll_checks_that_slurmctld_answers(scene: Scene) -> None:
    scene.poll()
    scene.poll()
    assert scene.lists() == []
    scene.slurm.down = True
    assert scene.poll().error


def test_a_reused_id_is_found_without_the_list_of_all_jobs(scene: Scene) -> None:
    ours = scene.add("a")
    scene.list_all()
    scene.slurm.forget(ours)
    scene.slurm.jobs[ours] = scene.slurm.add(user="alice")
    scene.slurm.jobs[ours].job_id = ours
    scene.slurm.jobs[ours].submit_time += 100
    snapshot = scene.poll()
    assert snapshot.jobs[ours].missing
    assert scene.read_list().listed_at > -math.inf


def test_ids_are_asked_for_in_parts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_IDS", 2)
    ids = [scene.add(uid) for uid in "abc"]
    snapshot = scene.poll()
    assert scene.lists() == [f"GET jobs/state?job_id={ids[0]}&job_id={ids[1]}", f"GET jobs/state?job_id={ids[2]}"]
    assert snapshot.jobs.keys() == set(ids)


def test_the_list_of_few_jobs_is_read_by_each_poll_however_long_it_took(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_lists, "ALWAYS_CHEAP", MANY)
    scene.add("a")
    scene.list_all()
    scene.poll()
    assert scene.lists() == ["GET jobs/state"]


def test_a_job_that_comes_back_is_seen_without_the_list_of_all_jobs(scene: Scene) -> None:
    ours = scene.add("a")
    scene.list_all()
    lost = scene.slurm.jobs.pop(ours)
    for _ in range(3):
        snapshot = scene.poll()
    assert snapshot.jobs[ours].missing
    assert snapshot.jobs[ours].is_confirmed
    scene.slurm.jobs[ours] = lost
    assert not scene.poll().jobs[ours].missing
