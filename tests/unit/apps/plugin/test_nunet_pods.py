"""Pods of interLink on a DMS that cancels a job some time after the request."""

import threading
import time

import pytest

from bridge.apps.plugin.bodies import Creation
from bridge.apps.plugin.plugin_pods import Pods
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.errors import ScriptError, SiteError, SiteRefusedError, UnknownJobError
from bridge.pools import registry
from bridge.pools.registry import PoolContext
from bridge.script.references import Objects
from bridge.serving.http_error import AnswerError
from cluster.systems.dms import SECONDS, FakeDms
from tests.fakes.pool import one_pool


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
    made = registry.make(PoolContext(config, SystemClock(), interlink=True)).pools()["nunet"]
    made.ping()
    return made


@pytest.fixture
def pods(pool):
    return Pods(one_pool(pool), lambda seconds: False, 1.0)


class Posting:
    """A submission of the pool that has begun, and goes on when the test says so. ``posts``: their number."""

    def __init__(self, pool, monkeypatch):
        self.posts = 0
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._submit = pool._dms.submit
        monkeypatch.setattr(pool._dms, "submit", self)

    def __call__(self, *args):
        self.posts += 1
        self.begun.set()
        self.go_on.wait(3)
        return self._submit(*args)


@pytest.fixture
def posting(pool, monkeypatch):
    return Posting(pool, monkeypatch)


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
    assert (pool.jobs(), pool.follows.pods(), pool._submissions._by_uid) == ({}, [], {})
    time.sleep(0.1)  # the list of peers is not newer
    assert capacity(pool) == "18"


def test_a_deleted_pod_that_the_dms_no_longer_knows_is_forgotten(dms, pool, pods):
    create(pods, pod())
    pods.delete(pod())
    dms.jobs.clear()
    pool.poll()
    pods.forget_ended()
    assert (pool.jobs(), pool.follows.pods()) == ({}, [])


def test_a_pod_that_was_refused_can_be_deleted(dms, pods):
    with pytest.raises(ScriptError):
        create(pods, pod(workingDir="/x"))
    assert "cancelled" in pods.delete(pod(workingDir="/x"))
    pods.repeat_cancellations()
    assert pods._deletions.undelivered() == {}


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
    assert pods._deletions.undelivered() == {}


def test_a_creation_that_begins_during_the_cancellation_of_its_pod_is_refused(dms, pods, monkeypatch):
    create(pods, pod())
    refused = []

    def cancel(job):
        with pytest.raises(SiteRefusedError, match="the pod was deleted"):
            create(pods, pod())
        refused.append(job)

    monkeypatch.setattr(dms, "cancel", cancel)
    pods.delete(pod())
    assert refused == list(dms.jobs.values())


def test_a_deletion_under_a_wrong_name_cancels_nothing(dms, pods):
    create(pods, pod())
    other = pod()
    with pytest.raises(AnswerError, match="another UID"):
        pods.delete({**other, "metadata": {**other["metadata"], "name": "other"}})
    assert create(pods, pod()) == (other["metadata"]["uid"], "nunet-1")
    assert dms.cancelled == []


def test_a_deletion_under_a_wrong_name_does_not_forget_that_the_pod_was_deleted(dms, pods):
    create(pods, pod())
    pods.delete(pod())
    other = pod()
    with pytest.raises(AnswerError, match="another UID"):
        pods.delete({**other, "metadata": {**other["metadata"], "name": "other"}})
    with pytest.raises(SiteRefusedError, match="the pod was deleted"):
        create(pods, pod())


def test_a_creation_that_is_repeated_while_it_is_in_progress_gets_the_same_job(dms, pool, posting):
    def wait(seconds):
        posting.go_on.set()  # the second creation waits for the first
        time.sleep(0.01)
        return False

    pods, answers = Pods(one_pool(pool), wait, 10.0), []
    creations = [threading.Thread(target=lambda: answers.append(create(pods, pod()))) for _ in range(2)]
    for creation in creations:
        creation.start()
        assert posting.begun.wait(10)
    for creation in creations:
        creation.join(10)
    assert answers == [(pod()["metadata"]["uid"], "nunet-1")] * 2
    assert (posting.posts, len(dms.jobs)) == (1, 1)


def test_the_end_of_a_repeated_creation_does_not_end_the_first(dms, pool, posting):
    pods = Pods(one_pool(pool), lambda seconds: False, 0.0)
    creation = threading.Thread(target=create, args=(pods, pod()))
    creation.start()
    assert posting.begun.wait(10)
    with pytest.raises(UnknownJobError, match="another request"):
        create(pods, pod())
    with pytest.raises(UnknownJobError, match="being created"):
        pods.delete(pod())
    posting.go_on.set()
    creation.join(10)
    pods.repeat_cancellations()
    assert dms.cancelled == list(dms.jobs.values())
    assert len(dms.cancelled) == 1


def test_a_creation_ends_when_its_pod_is_deleted(dms, pool):
    def delete(seconds):
        with pytest.raises(UnknownJobError):
            pods.delete(pod())
        return False

    pods = Pods(one_pool(pool), delete, 10.0)
    dms.shows, dms.drop = False, 1
    with pytest.raises(SiteRefusedError, match="deleted"):
        create(pods, pod())
    pods.repeat_cancellations()
    assert list(pods._deletions.undelivered()) == [pod()["metadata"]["uid"]]
    dms.shows = True
    time.sleep(0.1)  # the list of peers is not newer
    pods.repeat_cancellations()
    assert dms.cancelled == list(dms.jobs.values())
    assert (len(dms.jobs), pods._deletions.undelivered()) == (1, {})
