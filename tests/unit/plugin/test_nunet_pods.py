"""Pods of interLink on a DMS that cancels a job some time after the request."""

import threading
import time

import pytest

from bridge.clock import SystemClock
from bridge.config import Config
from bridge.errors import ScriptError, SiteError, UnknownJobError
from bridge.plugin.bodies import Creation
from bridge.plugin.directory import OnePool
from bridge.plugin.pods import Pods
from bridge.pools.nunet import source
from bridge.script.references import Objects
from cluster.dms import SECONDS, FakeDms


class SlowDms(FakeDms):
    """A DMS whose jobs end only when the test says so."""

    def __init__(self):
        super().__init__()
        self.cancelled = []

    def cancel(self, job):
        self.cancelled.append(job)

    def end_cancelled(self):
        for job in self.cancelled:
            super().cancel(job)


@pytest.fixture
def dms():
    with SlowDms() as running:
        yield running


@pytest.fixture
def pool(dms):
    entry = {"name": "nunet", "url": dms.url, "pollPeriod": 0.1, "pingPeriod": 0.1, "cancelPath": "/api/v1/job/{job}"}
    config = Config.model_validate({"slurmRestApi": "", "pools": {"nunet": [entry]}})
    made = source.make(config, SystemClock(), interlink=True).pools()["nunet"]
    made.ping()
    return made


@pytest.fixture
def pods(pool):
    return Pods(OnePool(pool), lambda seconds: False, 1.0)


def pod(number=1, **more):
    container = {"name": "main", "image": "busybox", "env": [{"name": SECONDS, "value": "600"}], **more}
    return {
        "metadata": {"name": f"p{number}", "namespace": "r", "uid": f"0d1c34d6-0b5a-4f0f-9f3c-{number:012d}"},
        "spec": {"restartPolicy": "Never", "containers": [{**container, "resources": {"limits": {"cpu": "2"}}}]},
    }


def create(pods, found):
    return pods.create(Creation(found, Objects()))


def capacity(pool):
    pool.ping()
    return pool.announced()[0].capacity["cpu"]


def test_deleted_pods_leave_the_view_and_the_capacity_when_their_jobs_have_ended(dms, pool, pods):
    for number in range(3):
        create(pods, pod(number))
        pods.delete(pod(number))
    pool.poll()
    pods.forget_ended()
    assert [status.phase for status in pool.jobs().values()] == ["running"] * 3
    dms.end_cancelled()
    pool.poll()
    pods.forget_ended()
    assert (pool.jobs(), pool.followed.pods(), pool._ids) == ({}, [], {})
    time.sleep(0.1)  # the list of peers is not newer
    assert capacity(pool) == "18"


def test_a_deleted_pod_that_the_dms_no_longer_knows_is_forgotten(dms, pool, pods):
    create(pods, pod())
    pods.delete(pod())
    dms.jobs.clear()
    pool.poll()
    pods.forget_ended()
    assert (pool.jobs(), pool.followed.pods()) == ({}, [])


def test_a_pod_that_was_refused_can_be_deleted(dms, pods):
    with pytest.raises(ScriptError):
        create(pods, pod(workingDir="/x"))
    assert "cancelled" in pods.delete(pod(workingDir="/x"))
    pods.repeat_cancellations()
    assert pods._undelivered == {}


def test_a_pod_with_a_lost_answer_is_deleted_when_a_peer_shows_its_job(dms, pods):
    dms.shows, dms.drop = False, 1
    with pytest.raises(SiteError):
        create(pods, pod())
    with pytest.raises(UnknownJobError):
        pods.delete(pod())
    pods.repeat_cancellations()
    assert dms.cancelled == []
    dms.shows = True
    time.sleep(0.1)
    pods.repeat_cancellations()
    assert dms.cancelled == list(dms.jobs.values())
    assert pods._undelivered == {}


def test_a_pod_that_is_deleted_during_its_creation_is_cancelled_after_it(dms, pool, pods, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    submit = pool._dms.submit

    def slow(*args):
        begun.set()
        go_on.wait(10)
        return submit(*args)

    monkeypatch.setattr(pool._dms, "submit", slow)
    creation = threading.Thread(target=create, args=(pods, pod()))
    creation.start()
    assert begun.wait(10)
    with pytest.raises(UnknownJobError):
        pods.delete(pod())
    go_on.set()
    creation.join(10)
    pods.repeat_cancellations()
    assert dms.cancelled == list(dms.jobs.values())
    assert len(dms.cancelled) == 1
