"""Pods at a pool that cannot list its jobs: a real API server, podbridge's own permissions, and a site in memory."""

import time

import pytest

from bridge import names
from bridge.errors import SiteUnknownOutcomeError
from cluster.polling import eventually
from tests.contract.controllers.test_virtual import Hub, started_place, uid

pytestmark = pytest.mark.real


@pytest.fixture
def place(kubernetes, monkeypatch):
    with started_place(kubernetes, monkeypatch) as made:
        made.pool.is_listing = False
        yield made


def test_a_pod_carries_its_intent_before_it_is_submitted_and_until_its_job_is_forgotten(place):
    place.pool.problem = SiteUnknownOutcomeError("no answer")
    pod = place.pod()
    found = place.seen(pod, lambda p: names.JOB_INTENT in p.metadata.get("annotations", {}), "intended")
    assert names.POOL_FINALIZER in found["metadata"]["finalizers"]
    assert uid(pod) not in place.pool.site
    place.pool.problem = None
    place.taken(pod)
    assert uid(pod) in place.pool.followed
    place.pool.run(uid(pod))
    place.phase(pod, "Running")
    place.delete(pod, 0)  # by force
    place.gone(pod)
    assert place.pool.site == {}
    assert place.pool.count("forget", uid(pod)) == 1
    eventually(lambda: uid(pod) not in place.pool.followed, "the pod is not followed any more")


def test_a_pod_that_is_deleted_by_force_while_the_hub_is_down_is_not_forgotten(place):
    pod = place.submitted_pod()
    place.pool.run(uid(pod))
    place.hub.stop()
    place.delete(pod, 0)
    assert place.get(pod) is not None
    place.hub = Hub(place.kubernetes, place.pools)
    place.gone(pod)
    assert place.pool.site == {}


def test_a_new_process_asks_for_an_intended_pod_and_submits_it_only_after_the_time_out(place):
    place.pool.problem = SiteUnknownOutcomeError("no answer")
    pod = place.pod()
    place.seen(pod, lambda p: names.JOB_INTENT in p.metadata.get("annotations", {}), "intended")
    place.hub.stop()
    place.pool.problem, place.pool.asked[:] = None, []
    began = time.monotonic()
    place.hub = Hub(place.kubernetes, place.pools)
    place.taken(pod)
    assert [what for what, _ in place.pool.asked].index("status") < [w for w, _ in place.pool.asked].index("submit")
    assert time.monotonic() - began > 6, "submitTimeout and a margin for clocks"
    assert place.pool.count("submit", uid(pod)) == 1


def test_the_logs_of_a_finished_pod_stay_until_it_is_deleted(place):
    pod = place.submitted_pod()
    place.pool.end(uid(pod))
    place.phase(pod, "Succeeded")
    time.sleep(1)
    assert place.pool.count("forget") == 0
    place.delete(pod)
    place.gone(pod)
    assert place.pool.site == {}
