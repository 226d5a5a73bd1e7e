"""The actions for pods: the order of requests, and the state after failures."""

import base64
from dataclasses import replace

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.core.job_lifecycle import NEW, Lifecycle, State
from bridge.errors import (
    KubeForbiddenError,
    KubeInvalidError,
    KubeUnavailableError,
    LostLeadershipError,
    MissingReferenceError,
    SiteDownError,
    SiteRefusedError,
    SiteTooLargeError,
    SiteUnknownOutcomeError,
    UnexpectedError,
)
from bridge.protocol.model.jobs import ContainerState, Occurrence
from bridge.script.buildconfig import BuildConfig
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.pod_reports import MOST_ONCE
from controllers.virtual.pod_state import Cancellation, Entry
from controllers.virtual.reference_reader import ReferenceReader
from controllers.virtual.virtual_pod_act import PodActor
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers
from tests.fakes.pool import FakePool
from tests.fakes.recorders import RecordedEvents


class Kube(KubeAnswers):
    """An API server with one namespace, and with tokens of service accounts."""

    token = "t0ken"

    def create(self, path, body, params=None):
        super().create(path, body)
        return {"status": {"token": self.token, "expirationTimestamp": "2027-01-15T09:00:00Z"}}


class Cache:
    def __init__(self):
        self.pods = {}

    def apply(self, obj):
        if "metadata" in (obj or {}):
            self.pods[obj["metadata"].get("uid")] = obj

    def by_uid(self, uid):
        return self.pods.get(uid)


class World:
    def __init__(self, config=None):
        namespace = {"metadata": {"annotations": {names.POOL_SECRETS: "site"}}}
        self.kube = Kube({"/api/v1/namespaces/ns": namespace})
        self.events, self.pool = RecordedEvents(), FakePool("site")
        self.leads, self.entry, self.clock = True, Entry(), FakeClock(1_800_000_000.0)
        reader = ReferenceReader(self.kube, config or Config(), self.clock)
        self.actor = PodActor(self.kube, self.events, reader, self.clock, self.check_leadership, "10.0.0.1", 30)

    def check_leadership(self):
        if not self.leads:
            raise LostLeadershipError("not any more")

    def act(self, action):
        self.actor.act(action, self.pool, self.entry, Cache())

    def patches(self):
        return [body for what, _, body in self.kube.writes if what == "patch"]


@pytest.fixture
def world():
    return World()


def pod(**spec):
    main = {"name": "main", "image": "i", "command": ["true"], **spec.pop("main", {})}
    return builders.pod(node="site", metadata={"name": "p"}, restartPolicy="Never", containers=[main], **spec)


PATH = "/api/v1/namespaces/ns/pods/p"
RUNNING = builders.job_status(phase="running", job_id="7")


def test_a_submit_asks_for_what_the_pod_asks_for(world):
    world.act(virtual_pod_decide.Submit(pod(main={"resources": {"limits": {"cpu": "2"}}})))
    assert world.pool.submits["u1"].cpus == 2
    assert world.entry.answer.phase == "queued"
    assert world.kube.writes == [], "the pod is written by the decision that follows"


def test_an_unknown_outcome_is_remembered_until_the_request_is_surely_dead(world):
    world.pool.swallow = True
    with pytest.raises(SiteUnknownOutcomeError):
        world.act(virtual_pod_decide.Submit(pod()))
    assert world.entry.lifecycle == Lifecycle(State.UNKNOWN, until=world.clock.now + 35)
    assert world.entry.not_before > world.clock.now


@pytest.mark.parametrize(
    ("request_name", "action"),
    [
        ("status", virtual_pod_decide.Look(pod())),
        ("cancel", virtual_pod_decide.Cancel(pod(), 30)),
        ("withdraw", race_decide.Withdraw(pod())),
        ("grant", race_decide.Grant(pod(), "t")),
    ],
)
def test_an_answer_without_the_job_counts_by_the_time_of_its_request(world, monkeypatch, request_name, action):
    def answer_late(*_):
        world.clock.advance(10)

    monkeypatch.setattr(world.pool, request_name, answer_late)
    for until, is_absent in ((world.clock.now + 5, False), (world.clock.now + 5, True)):
        world.entry.lifecycle = Lifecycle(State.UNKNOWN, until=until)
        world.act(action)
        assert (world.entry.lifecycle.is_absent, world.clock.now > until) == (is_absent, True)


def test_a_site_that_is_down_is_asked_again_later_and_said_once(world):
    world.pool.down()
    pauses = []
    for _ in range(8):
        with pytest.raises(SiteDownError):
            world.act(virtual_pod_decide.Submit(pod()))
        pauses.append(world.entry.not_before - world.clock.now)
    assert world.entry.lifecycle == NEW
    assert pauses[0] <= 1
    assert 20 < pauses[-1] <= 30
    assert len(world.events.told) == 1


@pytest.mark.parametrize("error", [SiteRefusedError("no", reason="NoSuchPartition"), SiteTooLargeError("9 MB")])
def test_what_can_never_work_fails_the_pod(world, error):
    world.pool.problem = error
    world.act(virtual_pod_decide.Submit(pod()))
    (body,) = world.patches()
    assert (body["status"]["phase"], body["status"]["reason"]) == ("Failed", error.reason)
    assert body["metadata"] == {"uid": "u1"}
    assert world.events.told[0][0] == "BridgeRejected"


def test_a_process_that_leads_no_more_asks_nothing(world):
    world.leads = False
    for action in (
        virtual_pod_decide.Submit(pod()),
        virtual_pod_decide.Cancel(pod(), 30),
        virtual_pod_decide.Orphan(RUNNING),
    ):
        with pytest.raises(LostLeadershipError):
            world.act(action)
    assert world.pool.asked == []


def test_status_and_job_go_in_one_write(world):
    world.act(virtual_pod_decide.Write(pod(), RUNNING, {"phase": "Running"}, {"phase": "Running"}, "site/7"))
    ((_, path, body),) = world.kube.writes
    assert path == f"{PATH}/status"
    assert body == {
        "metadata": {"uid": "u1", "annotations": {names.REMOTE_JOB: "site/7"}},
        "status": {"phase": "Running"},
    }
    assert [reason for reason, _ in world.events.told] == ["BridgeSubmitted", "BridgeStarted"]
    failed = {"phase": "Failed", "reason": "NodeFail", "message": "the node was lost"}
    world.act(virtual_pod_decide.Write(pod(), RUNNING, failed, failed, None))
    assert world.events.told[2:] == [("BridgeFailed", "NodeFail: the node was lost")]


def test_the_texts_of_a_site_fill_no_memory(world):
    for number in range(500):
        queued = replace(RUNNING, phase="queued", reason=f"Reason{number}")
        world.act(virtual_pod_decide.Write(pod(), queued, {"phase": "Pending"}, {"phase": "Pending"}, None))
    assert len(world.entry.reported_events) == len(world.events.told) == MOST_ONCE


def happened(reason, message, count=1, at=1_800_000_000.0, container="main"):
    each = Occurrence(reason=reason, message=message, count=count, at=at)
    return replace(RUNNING, containers=[ContainerState(name=container, state="running", occurrences=(each,))])


def test_what_happens_in_a_container_becomes_events_as_a_kubelet_writes_them(world):
    """kubernetes/kubernetes#6532: a probe's failure is an Event with its output."""
    failed, killed = "Liveness probe failed: no database", "Container main failed liveness probe, will be restarted"
    for job in (
        happened("Unhealthy", failed),
        happened("Unhealthy", failed),  # nothing new
        happened("Unhealthy", failed, 2),
        happened("Killing", killed),
        happened("rm -rf", "a job can write anything"),
        happened("Unhealthy", "of no container", container="other"),
    ):
        world.actor.reports.occurrences(pod(), job, world.entry)
    assert world.events.told == [("Unhealthy", failed), ("Unhealthy", failed), ("Killing", killed)]
    assert [about[1:] for about in world.events.about] == [
        ("spec.containers{main}", urgent) for urgent in (True, True, False)
    ]


def test_a_new_leader_does_not_tell_old_occurrences_again(world):
    now = world.clock.time()
    world.actor.reports.occurrences(pod(), happened("Unhealthy", "old", at=now - 400), world.entry)
    assert world.events.told == []
    world.actor.reports.occurrences(pod(), happened("Unhealthy", "old", 2, at=now), world.entry)
    assert world.events.told == [("Unhealthy", "old")]
    world.entry = Entry()
    world.actor.reports.occurrences(pod(), happened("Unhealthy", "young", at=now - 20), world.entry)
    assert world.events.told == [("Unhealthy", "old"), ("Unhealthy", "young")]


def test_a_removed_pod_is_written_and_then_deleted_for_good(world):
    world.act(virtual_pod_decide.Remove(pod(), {}, {"phase": "Failed"}))
    assert [what for what, _, _ in world.kube.writes] == ["patch", "delete"]
    assert world.kube.writes[1][2] == {"gracePeriodSeconds": 0, "preconditions": {"uid": "u1"}}


def test_a_cancel_is_remembered_by_the_deletion_that_it_is_for(world):
    the_pod = pod()
    the_pod["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:30Z"
    world.act(virtual_pod_decide.Cancel(the_pod, 30))
    assert world.entry.cancellation == Cancellation("2027-01-15T08:00:30Z", world.clock.now)
    assert world.entry.lifecycle.is_absent, "the site holds nothing of it"


@pytest.mark.parametrize("uid", ["u1", "other", None])
def test_no_job_is_ended_for_want_of_a_pod_that_is_there(world, uid):
    world.act(virtual_pod_decide.Submit(pod()))
    world.pool.run("u1")
    if uid:
        world.kube.answers[PATH] = {"metadata": {"uid": uid}, "spec": {"nodeName": "site"}}
    world.act(virtual_pod_decide.Orphan(world.pool.site["u1"]))
    assert world.pool.count("cancel") == (uid != "u1")
    assert (world.entry.reread_at > world.clock.now) is (uid == "u1")


def test_no_job_is_ended_when_the_api_server_cannot_be_asked(world):
    def broken(path, params=None):
        raise KubeUnavailableError("down")

    world.kube.get = broken
    with pytest.raises(KubeUnavailableError):
        world.act(virtual_pod_decide.Orphan(RUNNING))
    assert world.pool.asked == []


def test_an_ended_job_without_a_pod_is_forgotten(world):
    world.act(virtual_pod_decide.Submit(pod()))
    world.pool.end("u1")
    world.act(virtual_pod_decide.Orphan(world.pool.site["u1"]))
    assert world.pool.site == {}


def test_an_unknown_job_is_cancelled_at_the_site_before_its_pod_fails(world):
    world.act(virtual_pod_decide.Fail(pod(), "JobLost", "gone", unknown=True))
    assert world.pool.count("forget") == 1
    world.act(virtual_pod_decide.Fail(pod(), "JobLost", "gone"))  # the site still has its record
    assert world.pool.count("forget") == 1


def test_what_is_missing_is_named_on_the_pod(world):
    volumes = [
        {"name": "a", "secret": {"secretName": "s"}},
        {"name": "b", "configMap": {"name": "c", "optional": True}},
    ]
    for _ in range(2):
        world.act(virtual_pod_decide.Submit(pod(volumes=volumes)))
    assert world.events.told == [("BridgeWaiting", "waiting for Secret s in namespace ns")]
    waiting = world.patches()[0]["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting == {"reason": "WaitingForReference", "message": "waiting for Secret s in namespace ns"}
    assert world.pool.asked == []


def test_secrets_and_tokens_go_only_where_their_namespace_lets_them(world):
    world.kube.answers["/api/v1/namespaces/ns/secrets/s"] = {"data": {}}
    volumes = [{"name": "a", "secret": {"secretName": "s"}}]
    tokens = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]
    pulls = [{"name": "s"}]
    for annotations in ({}, {names.POOL_SECRETS: "other"}, {names.POOL_SECRETS: "/"}):
        world.kube.answers["/api/v1/namespaces/ns"] = {"metadata": {"annotations": annotations}}
        world.clock.advance(60)
        for spec in ({"volumes": volumes}, {"volumes": tokens}, {"imagePullSecrets": pulls}):
            world.act(virtual_pod_decide.Submit(pod(**spec)))
            reason, message = world.events.told[-1]
            assert reason == "BridgeWaiting"
            assert "namespace ns does not let" in message
            assert names.POOL_SECRETS in message
    assert world.pool.asked == []
    assert all(what == "patch" for what, _, _ in world.kube.writes), "no token was asked for"
    world.kube.answers["/api/v1/namespaces/ns"] = {"metadata": {"annotations": {names.POOL_SECRETS: "*"}}}
    world.clock.advance(60)
    world.act(virtual_pod_decide.Submit(pod(volumes=volumes)))
    assert "u1" in world.pool.submits


AUTOMATIC = builders.api_access()
MOUNT = {"name": "kube-api-access-x7x7x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
CA = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("may_read", [True, False], ids=["read", "forbidden"])
def test_the_automatic_token_is_left_out_where_the_site_names_no_api_server(world, may_read):
    """The other files of its volume are there; a namespace that lets podbridge read no ConfigMap holds no pod up."""
    world.pool.config = BuildConfig.model_validate({"runtime": {"kind": "apptainer"}})
    the_pod = pod(volumes=[AUTOMATIC], main={"volumeMounts": [MOUNT]})
    if may_read:
        world.kube.answers["/api/v1/namespaces/ns/configmaps/kube-root-ca.crt"] = {"data": {"ca.crt": CA}}
    else:
        world.kube.default = KubeForbiddenError("no", status=403)
    world.act(virtual_pod_decide.Submit(the_pod))
    assert world.kube.writes == [], "no token was asked for"
    script = world.pool.submits["u1"].script
    files = ("ca.crt", "namespace", "token")
    assert [f"kube-api-access-x7x7x/{name}" in script for name in files] == [may_read, True, False]
    assert "KUBERNETES_SERVICE" not in script
    status = replace(RUNNING, phase="queued")
    world.act(virtual_pod_decide.Write(the_pod, status, {}, {}, "site/7"))
    ((reason, text),) = world.events.told
    assert reason == "BridgeSubmitted"
    assert text.startswith("pool site has it as job 7; without its service account token")


def test_a_runtime_that_cannot_mount_in_any_image_gets_no_automatic_volume(world):
    world.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}})
    world.act(virtual_pod_decide.Submit(pod(volumes=[AUTOMATIC], main={"volumeMounts": [MOUNT]})))
    assert "kube-api-access" not in world.pool.submits["u1"].script


def test_a_token_for_the_api_server_that_the_user_asked_for_is_refused_there(world):
    token = {"serviceAccountToken": {"path": "token"}}
    world.act(virtual_pod_decide.Submit(pod(volumes=[{"name": "t", "projected": {"sources": [token]}}])))
    assert world.kube.writes[-1][2]["status"]["reason"] == "NotPossibleAtSite"
    reason, message = world.events.told[-1]
    assert reason == "BridgeRejected"
    assert "spec.volumes[0].projected.sources[0].serviceAccountToken.audience" in message


def test_the_token_goes_with_address_and_authorities_where_the_site_has_them(world):
    server = {"url": "https://k8s.example:6443", "ca": CA}
    world.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}, "api_server": server})
    path = "/api/v1/namespaces/ns/configmaps/kube-root-ca.crt"
    world.kube.answers[path] = {"data": {"ca.crt": "the cluster's own"}}
    world.act(virtual_pod_decide.Submit(pod(volumes=[AUTOMATIC], main={"volumeMounts": [MOUNT]})))
    script = world.pool.submits["u1"].script
    assert base64.b64encode(CA.encode()).decode() in script.replace("\n", "")
    assert base64.b64encode(b"the cluster's own").decode() not in script.replace("\n", "")
    assert base64.b64encode(b"t0ken").decode() in script


def test_tokens_are_renewed_at_four_fifths_of_their_life(world):
    token = {"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}}
    the_pod = pod(serviceAccountName="sa", volumes=[{"name": "t", "projected": {"sources": [token]}}])
    world.act(virtual_pod_decide.Submit(the_pod))
    (_, path, body) = world.kube.writes[0]
    assert path == "/api/v1/namespaces/ns/serviceaccounts/sa/token"
    assert body["spec"]["boundObjectRef"] == {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u1"}
    assert world.entry.refresh_at == world.clock.now + 0.8 * 3600
    world.act(virtual_pod_decide.Refresh(the_pod))
    assert world.pool.refreshed == {}, "it is not due"
    world.clock.advance(0.8 * 3600)
    world.kube.token = "t1"
    world.act(virtual_pod_decide.Refresh(the_pod))
    assert [(file.path, file.data) for file in world.pool.refreshed["u1"]] == [("t/token", b"t1")]
    world.pool.down()
    world.kube.token = "t2"
    world.clock.advance(world.entry.refresh_at - world.clock.now)
    with pytest.raises(SiteDownError):
        world.act(virtual_pod_decide.Refresh(the_pod))
    assert world.entry.refresh_at == world.clock.now + 60


def test_no_token_goes_to_a_pool_that_the_namespace_does_not_let_have_it_any_more(world):
    token = {"serviceAccountToken": {"path": "token", "audience": "vault"}}
    the_pod = pod(serviceAccountName="sa", volumes=[{"name": "t", "projected": {"sources": [token]}}])
    world.act(virtual_pod_decide.Submit(the_pod))
    requests = len(world.kube.writes)
    world.kube.answers["/api/v1/namespaces/ns"] = {"metadata": {"annotations": {names.POOL_SECRETS: "other"}}}
    world.clock.advance(0.8 * 3600)
    with pytest.raises(MissingReferenceError, match="does not let"):
        world.act(virtual_pod_decide.Refresh(the_pod))
    assert (len(world.kube.writes), world.pool.refreshed) == (requests, {})
    assert world.events.told[-1][0] == "BridgeWaiting"


def test_a_defect_for_one_pod_is_an_error_of_this_pod(world, monkeypatch, isolates):
    monkeypatch.setattr(world.pool, "prepare", lambda _: {}["a secret"])
    with pytest.raises(UnexpectedError, match=r"KeyError at .*test_virtual_act.py:\d+") as caught:
        world.act(virtual_pod_decide.Submit(pod()))
    assert "secret" not in str(caught.value)
    assert world.entry.not_before > world.clock.now
    assert world.events.told[-1][0] == "BridgeWaiting"
    assert world.entry.lifecycle == NEW


def test_a_defect_after_a_request_was_sent_leaves_its_outcome_unknown(world, monkeypatch, isolates):
    monkeypatch.setattr(world.pool, "submit", lambda *_: {}["answer"])
    with pytest.raises(UnexpectedError):
        world.act(virtual_pod_decide.Submit(pod()))
    assert world.entry.lifecycle == Lifecycle(State.UNKNOWN, until=world.clock.now + 35)


def test_a_status_that_the_api_server_refuses_is_noted(world):
    world.kube.error = KubeInvalidError("status: no", status=422)
    with pytest.raises(KubeInvalidError):
        world.act(virtual_pod_decide.Write(pod(), RUNNING, {"phase": "Running"}, {"phase": "Running"}, None))
    assert (world.entry.refused, world.entry.refused_until) == (RUNNING, world.clock.now + 60)


# --- a pool that cannot list its jobs ---------------------------------------------------------------------------------
def test_the_intent_is_on_the_pod_before_the_request_is_sent(world):
    world.pool.is_listing = False
    world.pool.problem = SiteUnknownOutcomeError("no answer")
    with pytest.raises(SiteUnknownOutcomeError):
        world.act(virtual_pod_decide.Submit(pod()))
    metadata = world.patches()[0]["metadata"]
    assert metadata == {"uid": "u1", "annotations": {names.JOB_INTENT: "site"}, "finalizers": [names.POOL_FINALIZER]}
    assert world.entry.lifecycle == Lifecycle(State.UNKNOWN, until=world.clock.now + 30 + 5)


def test_nothing_is_sent_if_the_intent_cannot_be_written(world):
    world.pool.is_listing = False
    world.kube.error = KubeInvalidError("no new finalizers can be added if the object is being deleted", status=422)
    world.act(virtual_pod_decide.Submit(pod()))
    assert world.pool.asked == []


def test_an_intent_is_written_once(world):
    world.pool.is_listing = False
    the_pod = pod()
    the_pod["metadata"]["annotations"] = {names.JOB_INTENT: "site"}
    world.act(virtual_pod_decide.Submit(the_pod))
    assert world.pool.count("submit") == 1
    assert not any("finalizers" in body["metadata"] for body in world.patches())


@pytest.mark.parametrize(
    ("problem", "intents"),
    [(SiteDownError("no peer"), ["site/true", "site"]), (SiteUnknownOutcomeError("no answer"), ["site/true"])],
)
def test_a_statement_of_the_user_counts_again_if_nothing_was_sent(world, problem, intents):
    world.pool.is_listing, world.pool.problem = False, problem
    world.pool.statement = "example.org/no-job"
    stated = pod()
    stated["metadata"]["annotations"] = {"example.org/no-job": "true"}
    with pytest.raises(type(problem)):
        world.act(virtual_pod_decide.Submit(stated))
    assert [body["metadata"]["annotations"][names.JOB_INTENT] for body in world.patches()] == intents


def test_a_pool_that_is_not_usable_any_more_is_tried_again(world):
    def prepare(_):
        raise SiteDownError("the BuildConfig is new")

    world.pool.prepare = prepare
    with pytest.raises(SiteDownError):
        world.act(virtual_pod_decide.Submit(pod()))


def test_a_removed_pod_loses_the_finalizer_before_it_is_deleted(world):
    the_pod = pod()
    the_pod["metadata"]["finalizers"] = [names.POOL_FINALIZER]
    world.act(virtual_pod_decide.Forget(the_pod))
    assert world.pool.asked == [("forget", "u1")]
    assert world.entry.forgotten
    world.act(virtual_pod_decide.Remove(the_pod, {}, {}))
    assert [what for what, _, _ in world.kube.writes] == ["patch", "delete"]
    assert world.patches()[0]["metadata"]["$deleteFromPrimitiveList/finalizers"] == [names.POOL_FINALIZER]
