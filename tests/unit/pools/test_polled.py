"""The base of pools that cannot list their jobs: the view, the polls and the pings."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pytest

from bridge.core.threads import Supervisor
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, UnknownJobError
from bridge.pools.polled import polled_pool
from bridge.pools.polled.followed_jobs import ABSENT_AGAIN
from bridge.pools.polled.polled_pool import PolledPool, PolledPools
from bridge.pools.pool_interface import Pod
from bridge.protocol.model.announcement import Announcement, Readiness
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from tests.fakes.clock import FakeClock


def pod(job: str) -> Pod:
    return {"metadata": {"namespace": "jobs", "name": f"pod-{job}", "uid": job}, "spec": {}}


def state(job: str, phase: str = "running", **fields: str) -> JobStatus:
    return JobStatus(job=job, namespace="jobs", name=f"pod-{job}", phase=phase, **fields)


class Site(PolledPool):
    """A site whose answers a test sets. ``during`` runs between a request and its answer."""

    def __init__(self, clock: FakeClock, period: float = 5.0) -> None:
        super().__init__("far", clock, poll_period=period, ping_period=period, batch=2)
        self.jobs_there: dict[str, JobStatus | None] = {}
        self.requests: list[list[str]] = []
        self.error: Exception | None = None
        self.during = lambda: None
        self.changes: list[str] = []
        self.subscribe(self.changes.append)

    def _fetch(self, wanted: Sequence[Pod]) -> Mapping[str, JobStatus | None]:
        self.requests.append([each["metadata"]["uid"] for each in wanted])
        if self.error is not None:
            raise self.error
        found = {job: self.jobs_there[job] for job in self.requests[-1] if job in self.jobs_there}
        self.during()
        return found

    def ready(self) -> Readiness:
        raise NotImplementedError

    def prepare(self, pod: Pod) -> Pod:
        raise NotImplementedError

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        raise NotImplementedError

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        raise NotImplementedError

    def logs(self, pod: Pod, options: LogOptions) -> Iterator[bytes]:
        raise NotImplementedError

    def _announcement(self, problem: str) -> Announcement:
        return Announcement(pool="far", submitter="x", time=0, period=10, version="1", problem=problem)

    def _ping(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.fixture
def site(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(polled_pool, "THREADS", 1)  # the requests of a poll have an order
    return Site(clock)


def follow(site: Site, *jobs: str) -> None:
    for job in jobs:
        site.follows.add(pod(job))


def test_a_poll_asks_for_the_followed_pods_in_batches(site):
    follow(site, "a", "b", "c")
    site.jobs_there = {job: state(job) for job in "abc"}
    assert site.poll() == 0
    assert site.requests == [["a", "b"], ["c"]]
    assert set(site.jobs()) == {"a", "b", "c"}
    assert site.changes == ["a", "b", "c"]
    assert site.poll() == 0
    assert site.changes == ["a", "b", "c"], "an unchanged state is no change"
    known = site.job("a")
    site.jobs_there["a"] = state("a")
    site.poll()
    assert site.job("a") is known, "an equal state stays the same object"


def test_an_ended_job_is_not_polled_and_stays_in_the_view(site):
    follow(site, "a", "b")
    site.jobs_there = {"a": state("a", "ended", outcome="Succeeded"), "b": state("b")}
    site.poll()
    site.poll()
    assert site.requests == [["a", "b"], ["b"]]
    assert site.jobs()["a"].phase == "ended"


def test_a_job_that_the_site_does_not_know_leaves_the_view_and_is_polled_less_often(site, clock):
    follow(site, "a")
    site.jobs_there = {"a": state("a")}
    site.poll()
    site.jobs_there = {"a": None}
    clock.advance(1)
    site.poll()
    assert site.jobs() == {}
    assert site.changes == ["a", "a"]
    asked_at = []
    for _ in range(200):
        clock.advance(1)
        before = len(site.requests)
        site.poll()
        asked_at += [clock.monotonic()] * (len(site.requests) - before)
    gaps = [after - at for at, after in itertools.pairwise(asked_at)]
    assert gaps == [10, 20, 40, ABSENT_AGAIN, ABSENT_AGAIN]
    assert site.changes == ["a", "a"], "the job was absent before"


def test_no_answer_about_a_job_changes_nothing(site):
    follow(site, "a")
    site.jobs_there = {"a": state("a")}
    site.poll()
    site.jobs_there = {}
    site.poll()
    assert set(site.jobs()) == {"a"}
    with pytest.raises(SiteError, match="no valid state of pod jobs/pod-a"):
        site.status(pod("a"))
    assert set(site.jobs()) == {"a"}


def test_an_answer_to_an_earlier_request_does_not_remove_a_job_that_was_just_submitted(site, clock):
    follow(site, "a")
    site.jobs_there = {"a": None}

    def submitted() -> None:
        clock.advance(1)
        site.follows.record(state("a", "queued"), clock.monotonic())

    site.during = submitted
    site.poll()
    assert site.jobs()["a"].phase == "queued"


def test_an_end_is_final(site, clock):
    site.follows.record(state("a", "ended", outcome="Failed"), 1.0)
    site.follows.record(state("a", "running"), 2.0)
    assert site.job("a").phase == "ended"


def test_status_returns_none_only_if_the_site_says_so(site):
    site.jobs_there = {"a": None}
    assert site.status(pod("a")) is None
    site.error = SiteDownError("refused")
    with pytest.raises(SiteDownError):
        site.status(pod("a"))


@pytest.mark.parametrize("error", [SiteError("not JSON"), SiteRefusedError("HTTP 400"), SiteDownError("refused")])
def test_an_error_of_status_is_retryable_so_that_it_fails_no_pod(site, error):
    """The hub fails a pod if its submission ends with an error that is not, and a submission may ask for the state."""
    site.error = error
    with pytest.raises(SiteError) as raised:
        site.status(pod("a"))
    assert raised.value.retryable


def test_a_request_about_a_job_without_a_pod_uses_the_followed_pod(site):
    follow(site, "a")
    identity = {"metadata": {"namespace": "jobs", "name": "pod-a", "uid": "a"}}
    assert "spec" in site.follows.whole(identity)
    assert site.follows.whole({"metadata": {"uid": "b"}}) == {"metadata": {"uid": "b"}}


def test_a_site_that_is_down_gets_one_request_per_poll(site):
    follow(site, "a", "b", "c")
    site.error = SiteDownError("refused")
    assert [site.poll(), site.poll()] == [1, 2]
    assert len(site.requests) == 2


def test_a_refused_batch_does_not_stop_the_others(site):
    follow(site, "a", "b", "c")
    site.error = SiteRefusedError("500")
    assert site.poll() == 1
    assert len(site.requests) == 2


def test_a_job_of_which_nothing_is_known_is_no_failure_of_the_site(site):
    follow(site, "a", "b", "c")
    site.error = UnknownJobError("no peer shows it")
    assert (site.poll(), len(site.requests), site.changes) == (0, 2, [])
    with pytest.raises(UnknownJobError):
        site.status(pod("a"))


def test_an_answer_that_cannot_be_handled_is_logged_and_ends_nothing(site, caplog):
    follow(site, "a", "b", "c")
    site.error = TypeError("unhashable type: 'list'")
    assert (site.ping(), site.ping(), site.poll()) == (1, 2, 1)
    assert len(site.requests) == 2, "the other batches are requested"
    assert site.announced()[0].problem == "the site's answer could not be handled: TypeError"
    assert "unhashable type" in caplog.text
    with pytest.raises(SiteError, match="TypeError") as raised:
        site.status(pod("a"))
    assert raised.value.retryable


def test_an_unfollowed_job_leaves_the_view(site):
    follow(site, "a")
    site.jobs_there = {"a": state("a")}
    site.poll()
    site.follows.remove("a")
    assert site.jobs() == {}
    site.poll()
    assert len(site.requests) == 1


def test_the_contact_is_the_time_of_the_last_request_that_succeeded(site, clock):
    assert site.complete_at() is None
    first = clock.monotonic()
    site.ping()
    assert site.complete_at() == first
    clock.advance(5)
    site.error = SiteDownError("refused")
    site.ping()
    assert site.complete_at() == first


def test_failed_pings_make_the_pool_accept_no_pods_after_the_tolerance(site, clock):
    assert site.announced() is None
    site.ping()
    heard = clock.monotonic()
    site.error = SiteDownError("connection refused", hint="start the plugin")
    for expected in ("", "", "connection refused (start the plugin)"):
        clock.advance(10)
        site.ping()
        announcement, at = site.announced()
        assert (announcement.problem, at) == (expected, heard)
    site.error = None
    site.ping()
    assert site.announced()[0].problem == ""
    assert site.announced()[1] == clock.monotonic()


def test_a_site_that_never_answered_is_announced_with_its_problem(site):
    site.error = SiteDownError("connection refused")
    assert site.ping() == 1
    assert site.announced()[0].problem == "connection refused"


def test_the_source_names_the_pool_of_a_change(site):
    source, heard = PolledPools([site]), []
    source.subscribe(lambda name, job: heard.append((name, job)))
    site.follows.record(state("a"), 1.0)
    source.remove("far")
    assert source.pools() == {"far": site}
    assert heard == [("far", "a")]


def test_the_loops_ping_and_poll(clock):
    site = Site(clock, period=0.01)
    follow(site, "a")
    site.jobs_there = {"a": state("a")}
    supervisor = Supervisor()
    PolledPools([site]).start(supervisor)
    assert not supervisor.wait(0.3)
    supervisor.stop()
    assert supervisor.join(2) == []
    assert site.announced() is not None
    assert len(site.requests) >= 2
    assert supervisor.failure is None
