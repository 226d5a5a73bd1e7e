"""One interLink pool: submissions with an unknown outcome, cancellation, its announcement."""

import pytest

from bridge import names
from bridge.config.interlink import InterlinkSection
from bridge.errors import MissingReferenceError, ScriptError, SiteDownError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.interlink.messages import PingResponse
from bridge.pools.interlink.interlink_client import Ping
from bridge.pools.interlink.interlink_pool import InterlinkPool
from bridge.pools.interlink.interlink_transport import ServerError
from bridge.protocol.model.jobs import JobStatus, pod_of
from bridge.script.buildconfig import BuildConfig
from tests.builders import NO_OBJECTS
from tests.builders import site_pod as pod


class Plugin:
    """The client of a plugin whose answers a test sets. ``asked`` has the requests about jobs."""

    def __init__(self) -> None:
        self.asked = []
        self.jobs = {}
        self.bodies = []
        self.fault = None
        self.after = None
        self.delete_fault = None
        self.pong = Ping(PingResponse())

    def ping(self):
        if isinstance(self.pong, Exception):
            raise self.pong
        return self.pong

    def create(self, body, job, timeout):
        self.asked.append("create")
        self.bodies.append(body)
        if self.fault is not None:
            raise self.fault
        self.jobs[job] = state(job)
        if self.after is not None:
            raise self.after
        return "42"

    def delete(self, sent):
        self.asked.append("delete")
        self.bodies.append(sent)
        if self.delete_fault is not None:
            raise self.delete_fault
        self.jobs.pop(sent["metadata"]["uid"])

    def statuses(self, pods):
        self.asked.append("status")
        return {uid: self.jobs.get(uid) for each in pods for uid in [each["metadata"]["uid"]]}


def state(job, phase="running", **fields):
    return JobStatus(job=job, namespace="ns", name="pod", phase=phase, **fields)


@pytest.fixture
def plugin():
    return Plugin()


@pytest.fixture
def make(plugin, clock):
    def pool(config=None, **fields):
        section = InterlinkSection.model_validate({"name": "far", "url": "http://plugin.test", **fields})
        return InterlinkPool(section, plugin, clock, 5.0, config)

    return pool


def test_a_submitted_pod_is_in_the_view(make, plugin, clock):
    pool = make()
    status = pool.submit(pod("a"), NO_OBJECTS)
    assert (status.phase, status.job_id, status.submitted_at) == ("queued", "42", clock.time())
    assert pool.jobs() == {"a": status}
    assert plugin.asked == ["create"]


def test_a_state_without_a_job_id_keeps_the_one_of_the_submission(make, clock):
    pool = make()
    submitted = pool.submit(pod("a"), NO_OBJECTS).submitted_at
    clock.advance(1)
    status = pool.status(pod("a"))
    assert (status.phase, status.job_id, status.submitted_at) == ("running", "42", submitted)


def test_after_an_unknown_outcome_the_job_is_looked_for_first(make, plugin):
    pool = make()
    plugin.after = SiteUnknownOutcomeError("no answer")
    with pytest.raises(SiteUnknownOutcomeError):
        pool.submit(pod("a"), NO_OBJECTS)
    assert pool.submit(pod("a"), NO_OBJECTS).phase == "running"
    assert plugin.asked == ["create", "status"]


def test_a_pod_that_an_earlier_process_may_have_submitted_is_looked_for_first(make, plugin):
    intended = pod("a")
    intended["metadata"]["annotations"] = {names.JOB_INTENT: "far"}
    plugin.jobs["a"] = state("a")
    assert make().submit(intended, NO_OBJECTS).phase == "running"
    assert plugin.asked == ["status"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_pod_fails_after_the_configured_number_of_server_errors(make, plugin, answered):
    pool = make(createAttempts=2)
    plugin.fault = ServerError("POST /create: HTTP 500: sbatch: error", answered=answered)
    with pytest.raises(SiteRefusedError if answered else SiteUnknownOutcomeError) as raised:
        pool.submit(pod("a"), NO_OBJECTS)
    assert raised.value.retryable
    with pytest.raises(SiteRefusedError, match="sbatch: error") as raised:
        pool.submit(pod("a"), NO_OBJECTS)
    assert not raised.value.retryable
    assert plugin.asked.count("create") == 2


def test_a_plugin_that_answers_an_error_although_it_has_created_the_pod(make, plugin):
    plugin.after = ServerError("POST /create: HTTP 500: cannot write the job id", answered=True)
    assert make().submit(pod("a"), NO_OBJECTS).phase == "running"
    assert plugin.asked == ["create", "status"]


def test_time_outs_do_not_fail_the_pod(make, plugin):
    pool = make(createAttempts=1)
    plugin.fault = SiteUnknownOutcomeError("timed out")
    for _ in range(3):
        with pytest.raises(SiteUnknownOutcomeError):
            pool.submit(pod("a"), NO_OBJECTS)


def test_a_missing_object_sends_nothing(make, plugin):
    with_secret = pod("a")
    with_secret["spec"]["containers"][0]["env"] = [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    ]
    with pytest.raises(MissingReferenceError):
        make().submit(with_secret, NO_OBJECTS)
    assert plugin.asked == []


def test_the_body_depends_on_the_api(make, plugin):
    make().submit(pod("a"), NO_OBJECTS)
    make(api="server").submit(pod("b"), NO_OBJECTS)
    assert [type(body).__name__ for body in plugin.bodies] == ["RetrievedPodData", "PodCreateRequests"]
    assert plugin.bodies[0].job_script is None


def test_the_job_script_is_built_on_request(make, plugin):
    pool = make(config=BuildConfig.model_validate({"runtime": {"kind": "none"}}))
    pool.submit(pod("a"), NO_OBJECTS)
    assert plugin.bodies[0].job_script.startswith("#!/bin/bash")
    with_host_path = pod("b")
    with_host_path["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/etc"}}]
    with pytest.raises(ScriptError):
        pool.submit(with_host_path, NO_OBJECTS)


def with_token():
    made = pod("a")
    made["spec"]["volumes"] = [
        {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    ]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x", "mountPath": "/var/run"}]
    return made


def test_the_automatic_token_is_sent_only_if_the_configuration_says_so(make):
    assert make().prepare(with_token())["spec"]["volumes"] == []
    assert make(serviceAccountTokens=True).prepare(with_token()) == with_token()


# --- cancellation -----------------------------------------------------------------------------------------------------
def test_a_running_job_is_deleted_with_its_grace_period(make, plugin):
    pool = make()
    pool.follows.add(pod("a"))
    plugin.jobs["a"] = running = state("a")
    pool.status(pod("a"))
    assert pool.cancel(pod_of(running), 7.9) is None
    assert plugin.asked == ["status", "status", "delete", "status"]
    assert plugin.bodies[-1]["metadata"]["deletionGracePeriodSeconds"] == 7
    assert plugin.bodies[-1]["spec"]["containers"], "the whole pod is sent, although the request had its identity only"
    assert pool.jobs() == {}


@pytest.mark.parametrize("forget", [False, True])
def test_a_pod_that_the_plugin_does_not_know_is_not_deleted(make, plugin, forget):
    assert make().cancel(pod("a"), 0, forget=forget) is None
    assert plugin.asked == ["status"]


def test_an_ended_job_stays_until_it_is_forgotten(make, plugin):
    pool = make()
    plugin.jobs["a"] = state("a", "ended", outcome="Succeeded")
    assert pool.cancel(pod("a"), 30).phase == "ended"
    assert plugin.asked == ["status"]
    assert pool.cancel(pod("a"), 0, forget=True) is None
    assert plugin.asked == ["status", "status", "delete"]
    assert pool.jobs() == {}


def test_a_plugin_that_keeps_refusing_to_delete_an_ended_job_does_not_hold_the_pod(make, plugin):
    pool = make(createAttempts=2)
    plugin.jobs["a"] = state("a", "ended", outcome="Failed")
    plugin.delete_fault = ServerError("HTTP 500", answered=True)
    with pytest.raises(ServerError):
        pool.cancel(pod("a"), 0, forget=True)
    assert pool.cancel(pod("a"), 0, forget=True) is None


def test_a_running_job_holds_the_pod_however_often_the_plugin_refuses(make, plugin):
    pool = make(createAttempts=1)
    plugin.jobs["a"] = state("a")
    plugin.delete_fault = ServerError("HTTP 500", answered=True)
    for _ in range(3):
        with pytest.raises(ServerError):
            pool.cancel(pod("a"), 0)


# --- the announcement -------------------------------------------------------------------------------------------------
def test_the_ping_replaces_values_of_the_configuration(make, plugin):
    pool = make(capacity={"cpu": 4, "memory": "8Gi"}, taints=["a=b:NoSchedule"], labels={"zone": "x"}, pingPeriod=20)
    assert pool.ready().reason == "PluginSilent"
    pool.ping()
    announcement = pool.announced()[0]
    assert announcement.capacity == {"cpu": "4", "memory": "8Gi"}
    assert announcement.taints == ["a=b:NoSchedule"]
    assert announcement.labels == {"zone": "x"}
    assert announcement.period == 20
    assert pool.ready().ok
    told = {"resources": {"cpu": "128", "accelerators": [{"resourceType": "nvidia.com/gpu", "available": "8"}]},
            "taints": []}  # fmt: skip
    plugin.pong = Ping(PingResponse.model_validate(told))
    pool.ping()
    announcement = pool.announced()[0]
    assert announcement.capacity == {"cpu": "128", "memory": "8Gi", "nvidia.com/gpu": "8"}
    assert announcement.taints == []


def test_a_degraded_plugin_accepts_pods_and_says_so(make, plugin):
    pool = make()
    plugin.pong = Ping(PingResponse(), "HTTP 500")
    pool.ping()
    assert pool.ready().ok
    assert pool.announced()[0].batch == "interLink plugin at http://plugin.test (its ping fails: HTTP 500)"
    plugin.pong = Ping(PingResponse())
    pool.ping()
    assert pool.announced()[0].batch == "interLink plugin at http://plugin.test"


def test_a_silent_plugin_accepts_no_pods(make, plugin):
    pool = make()
    pool.ping()
    plugin.pong = SiteDownError("connection refused")
    pool.ping()
    pool.ping()
    assert pool.ready().ok
    pool.ping()
    assert (pool.ready().reason, pool.ready().message) == ("PluginSilent", "connection refused")
