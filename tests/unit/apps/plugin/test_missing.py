import threading
from types import SimpleNamespace

import pytest

from bridge.apps.plugin.missing import MissingJobs, RequestedPods
from bridge.control.brake import GuardLimits
from bridge.script.references import Objects
from tests.builders import site_pod as pod
from tests.fakes.clock import FakeClock
from tests.fakes.pool import FakePool, one_pool

LIMITS = GuardLimits(least=10, hold=60.0, settle=10.0)


def pool_with(number):
    pool = FakePool("pool")
    for index in range(number):
        pool.submit(pod(f"u{index}"), Objects())
        pool.run(f"u{index}")
    pool.obeys = True
    return pool


@pytest.fixture
def guarded():
    """Return a pool with 30 jobs, a clock and the checks of all jobs."""
    pool, clock = pool_with(30), FakeClock()
    return pool, clock, MissingJobs(one_pool(pool), clock, RequestedPods(pool.site), LIMITS)


def test_a_missing_job_is_cancelled(guarded):
    pool, clock, checks = guarded
    pool.set("u3", missing=True)
    checks.step()
    assert pool.count("cancel") == 0
    clock.advance(11)
    checks.step()
    assert (pool.count("cancel"), pool.count("cancel", "u3")) == (1, 1)


def test_a_job_that_appears_again_is_not_cancelled(guarded):
    pool, clock, checks = guarded
    pool.set("u3", missing=True)
    checks.step()
    pool.set("u3", missing=False)
    clock.advance(11)
    checks.step()
    assert pool.count("cancel") == 0


def test_many_missing_jobs_are_held_first(guarded):
    pool, clock, checks = guarded
    for index in range(20):
        pool.set(f"u{index}", missing=True)
    for _ in range(5):
        checks.step()
        clock.advance(10)
    assert pool.count("cancel") == 0
    clock.advance(20)
    checks.step()
    assert pool.count("cancel") == 20


def test_a_site_that_does_not_answer_is_asked_again(guarded):
    pool, clock, checks = guarded
    pool.set("u3", missing=True)
    checks.step()
    clock.advance(11)
    pool.down()
    checks.step()
    pool.problem = None
    checks.step()
    assert pool.count("cancel", "u3") == 2


def test_a_job_that_no_client_has_named_is_left_alone():
    pool, clock = pool_with(30), FakeClock()
    requested = RequestedPods(["u1", "gone"])
    checks = MissingJobs(one_pool(pool), clock, requested, LIMITS)
    pool.set("u3", missing=True)
    checks.step()
    clock.advance(11)
    checks.step()
    assert pool.count("cancel") == 0
    assert requested.keep({"u1", "gone"}) == {"u1"}
    requested.add(["u3"])
    checks.step()
    clock.advance(11)
    checks.step()
    assert pool.count("cancel", "u3") == 1


def test_a_pod_that_a_client_names_during_a_check_stays_named(monkeypatch):
    pools, requested = {"alpha": pool_with(5), "beta": pool_with(1)}, RequestedPods(["u1"])

    class Jobs(dict):
        def __iter__(self):
            requested.add(["u3"])  # by a thread of a request, after the jobs of alpha were read
            return super().__iter__()

    listed = Jobs(pools["beta"].jobs())
    monkeypatch.setattr(pools["beta"], "jobs", lambda: listed)
    MissingJobs(SimpleNamespace(pools=lambda: pools), FakeClock(), requested, LIMITS).step()
    assert requested.keep({"u1", "u3"}) == {"u1", "u3"}


def test_a_silent_site_does_not_delay_the_cancellations_at_the_others(monkeypatch):
    pools, clock, cancelled = {"alpha": pool_with(5), "beta": pool_with(5)}, FakeClock(), threading.Event()
    heard = []
    monkeypatch.setattr(pools["alpha"], "cancel", lambda *_, **__: heard.append(cancelled.wait(10)))
    monkeypatch.setattr(pools["beta"], "cancel", lambda *_, **__: cancelled.set())
    requested = RequestedPods(f"u{index}" for index in range(5))
    checks = MissingJobs(SimpleNamespace(pools=lambda: pools), clock, requested, LIMITS)
    for pool in pools.values():
        pool.set("u3", missing=True)
    checks.step()
    clock.advance(11)
    checks.step()
    assert heard == [True]
