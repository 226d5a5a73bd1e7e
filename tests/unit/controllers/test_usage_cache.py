"""The use of CPU and memory: counters that never fall, rates, and requests that cost a silent site nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bridge.errors import SiteDownError
from bridge.protocol.model.announcement import Announcement
from bridge.protocol.model.jobs import ContainerState, ContainerUse, JobUsage
from controllers.kubelet.stats import summary
from controllers.kubelet.usage_cache import CACHED, FAILED, NOTHING, PodUse, PoolUse, UsageCache, Use, pod_use, total
from tests.builders import job_status
from tests.fakes.clock import FakeClock
from tests.fakes.log_pool import LogPool, running, terminated


def job(at: float, *containers: tuple[str, int, float, int], uid: str = "a") -> JobUsage:
    uses = [ContainerUse(name=name, restarts=n, cpu=cpu, memory=memory) for name, n, cpu, memory in containers]
    return JobUsage(job=uid, at=at, containers=uses)


def test_rates_are_those_between_two_measurements() -> None:
    first = pod_use(job(100, ("main", 0, 2, 10), ("side", 0, 1, 5)), None)
    assert first == PodUse(100, Use(3, 15), {("main", 0): Use(2, 10), ("side", 0): Use(1, 5)})
    assert pod_use(job(100, ("main", 0, 2, 10), ("side", 0, 1, 5)), first) is first, "the same measurement"
    second = pod_use(job(110, ("main", 0, 7, 20), ("side", 0, 1, 5)), first)
    assert second.pod == Use(8, 25, 0.5)
    assert second.containers == {("main", 0): Use(7, 20, 0.5), ("side", 0): Use(1, 5, 0.0)}


def test_no_counter_falls() -> None:
    first = pod_use(job(100, ("main", 0, 9, 1)), None)
    lost = pod_use(job(110, ("main", 0, 4, 1)), first)
    assert (lost.pod.cpu, lost.containers["main", 0]) == (9, Use(9, 1, 0.0))
    restarted = pod_use(job(120, ("main", 1, 2, 1)), lost)
    assert restarted.pod == Use(11, 1, 0.2)
    assert restarted.containers == {("main", 1): Use(2, 1)}
    elsewhere = pod_use(job(50, ("main", 1, 1, 1)), restarted)
    assert (elsewhere.at, elsewhere.pod) == (50, Use(1, 1))


@pytest.mark.parametrize("moments", [(5e-324, 1e-323), (1e13, 2.0**62)])
def test_what_a_job_claims_leaves_the_answer_about_others(moments: tuple[float, float]) -> None:
    use = pod_use(job(moments[0], ("main", 0, 0, 2**62)), None)
    use = pod_use(job(moments[1], ("main", 0, 2.0**62, 2**62)), use)
    status = job_status("a", "running", containers=[ContainerState(name="main", state="running", started_at=1.0)])
    measured = PoolUse({"a": use}, 1.0, use.pod)
    assert summary("site", 0.0, [{"metadata": {"uid": "a"}}], lambda _: status, measured)["pods"]


def pods(at: float, **cpu: float) -> dict[str, PodUse]:
    return {uid: PodUse(at, Use(seconds, 10, 0.25), {}) for uid, seconds in cpu.items()}


def test_the_end_of_a_pod_does_not_reduce_the_cpu_time_of_its_node() -> None:
    assert total({}, NOTHING) is None
    first = PoolUse(pods(1, a=5, b=7), 1, total(pods(1, a=5, b=7), NOTHING))
    assert first.total == Use(12, 20)
    second = PoolUse(pods(2, b=8, new=100), 2, total(pods(2, b=8, new=100), first))
    assert second.total == Use(13, 20, 0.5)
    assert total({}, second) == Use(13, 0, 0)


class Asked:
    """A pool with two jobs, of which one runs; counts its requests."""

    def __init__(self) -> None:
        self.clock = FakeClock(1000.0)
        self.pool, self.requests = LogPool("one"), list[Sequence[str]]()
        self.pool.runs("a", "ns", "a", running("main"))
        self.pool.runs("b", "ns", "b", terminated("main"), phase="ended")
        self.pool.usage = self.answer
        self.problem: Exception | None = None
        self.cache = UsageCache(self.clock)

    def answer(self, jobs: Sequence[str]) -> list[JobUsage]:
        self.requests.append(jobs)
        if self.problem is not None:
            raise self.problem
        return [job(self.clock.time(), ("main", 0, 1, 1), uid=uid) for uid in ("a", "b", "not-asked-for")]


def test_one_request_for_all_running_pods_and_only_their_answers() -> None:
    asked = Asked()
    for _ in range(3):
        assert set(asked.cache.of(asked.pool).pods) == {"a"}
    assert asked.requests == [["a"]]
    asked.clock.advance(CACHED)
    asked.cache.of(asked.pool)
    assert len(asked.requests) == 2


def test_a_site_that_does_not_answer_is_asked_rarely() -> None:
    asked = Asked()
    assert asked.cache.of(asked.pool).total is not None
    asked.clock.advance(CACHED)
    asked.problem = SiteDownError("no connection")
    for _ in range(3):
        assert asked.cache.of(asked.pool) == PoolUse(failed=True)
        asked.clock.advance(FAILED / 4)
    assert len(asked.requests) == 2
    asked.problem = None
    asked.clock.advance(FAILED)
    answer = asked.cache.of(asked.pool)
    assert not answer.failed
    assert answer.pods["a"].pod.rate == pytest.approx(0), "the counters go on"


def test_a_silent_site_and_one_that_measures_nothing_are_not_asked() -> None:
    asked = Asked()
    announcement = Announcement(pool="one", submitter="s", time=0, period=10, version="1")
    asked.pool.announced = lambda: (announcement, asked.clock.monotonic() - 31)  # type: ignore[method-assign]
    assert asked.cache.of(asked.pool) is NOTHING
    asked.pool.announced = lambda: None  # type: ignore[method-assign]
    asked.pool.usage = None
    asked.clock.advance(CACHED)
    assert asked.cache.of(asked.pool) is NOTHING
    assert asked.requests == []
