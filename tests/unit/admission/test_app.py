import base64
import json
from collections.abc import Mapping
from typing import Any

import flask.testing
import pytest

from admission.admission_app import make_app
from admission.group_reader import GroupReader
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions
from admission.reviewer import Reviewer
from bridge import names
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.kube.resources import Resource
from bridge.telemetry import tracing
from tests.unit.admission.test_mutate import patched

OURS = names.DEFAULT_SCHEDULER_NAME
JOB_OWNER = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1", "controller": True}]


class World:
    """The answers of the API server."""

    def __init__(self) -> None:
        self.allowed = False
        self.error: Exception | None = None
        self.owner: dict[str, Any] | None = None
        self.group_owners: dict[str, dict[str, Any]] = {}
        self.annotations: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def ask(self, user: Mapping[str, Any], key: str, namespace: str) -> bool:
        if self.error:
            raise self.error
        return self.allowed

    def read(self, reference: Mapping[str, Any], namespace: str) -> Mapping[str, Any] | None:
        if self.error:
            raise self.error
        return self.owner

    def group_owner(self, resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        if self.error:
            raise self.error
        return self.group_owners.get(f"{resource.plural}.{resource.group}/{name}")

    def namespace(self, name: str) -> Namespace:
        if self.error:
            raise self.error
        return Namespace(self.labels, self.annotations)


@pytest.fixture
def world() -> World:
    return World()


def client(world: World, **settings: Any) -> flask.testing.FlaskClient:
    config = Config.model_validate(settings)
    reviewer = Reviewer(
        config,
        Permissions(world.ask),
        OwnerAnnotations(world.read),
        Namespaces(world.namespace),
        GroupReader(world.group_owner),
        trusted=frozenset({"podbridge"}),
    )
    return make_app(reviewer).test_client()


@pytest.fixture
def app(world: World) -> flask.testing.FlaskClient:
    return client(world)


def review(
    pod: dict[str, Any], operation: str = "CREATE", namespace: str = "slurm-bridge", **more: Any
) -> dict[str, Any]:
    request = {
        "uid": "u",
        "operation": operation,
        "namespace": namespace,
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "alice"},
        "object": pod,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def pod(metadata: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": metadata or {}, "spec": {"containers": [], "schedulerName": OURS, **spec}}


def ask(app: flask.testing.FlaskClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = app.post(path, json=body)
    assert answer.status_code == 200
    assert answer.json["response"]["uid"] == "u"
    return dict(answer.json["response"])


def patch_of(response: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(json.loads(base64.b64decode(response.get("patch", "W10="))))


def test_a_new_pod_is_patched(app: flask.testing.FlaskClient) -> None:
    patch = patch_of(ask(app, "/mutate", review(pod(schedulerName="default-scheduler"))))
    assert {"op": "add", "path": "/spec/schedulerName", "value": OURS} in patch


def test_an_update_changes_nothing_but_tolerations_for_pools(app: flask.testing.FlaskClient) -> None:
    body = review(pod(schedulerName="default-scheduler"), "UPDATE", oldObject=pod(schedulerName="default-scheduler"))
    assert ask(app, "/mutate", body) == {"uid": "u", "allowed": True}
    given = pod(tolerations=[{"key": names.POOL_TAINT, "operator": "Equal", "value": "a", "effect": "NoSchedule"}])
    (operation,) = patch_of(ask(app, "/mutate", review(given, "UPDATE", oldObject=pod())))
    assert operation["path"] == "/spec/tolerations"
    assert names.VIRTUAL_TAINT in {entry["key"] for entry in operation["value"]}
    for subresource in ("status", "resize"):
        body = review(given, "UPDATE", oldObject=pod(), subResource=subresource)
        assert ask(app, "/mutate", body) == {"uid": "u", "allowed": True}


def test_a_namespace_is_managed_by_list_or_by_the_word_of_the_selector(world: World) -> None:
    plain = pod(schedulerName="default-scheduler")
    by_list, by_label = client(world), client(world, managedNamespaceSelector={"matchLabels": {"slurm": "yes"}})
    assert "patch" in ask(by_list, "/mutate", review(plain))
    assert "patch" not in ask(by_list, "/mutate", review(plain, namespace="other"))
    assert "patch" not in ask(by_list, "/mutate/named", review(plain))
    assert "patch" in ask(by_label, "/mutate", review(plain, namespace="other"))
    assert "patch" not in ask(by_label, "/mutate/named", review(plain, namespace="other"))


@pytest.mark.parametrize("body", [b"", b"{}", b"x" * 1000])
@pytest.mark.parametrize("path", ["/mutate", "/validate", "/mutate/named", "/validate/named"])
def test_what_is_no_review_is_told(app: flask.testing.FlaskClient, path: str, body: bytes) -> None:
    answer = app.post(path, data=body)
    assert answer.status_code == 400
    assert "malformed review" in answer.text


@pytest.mark.parametrize(
    "odd",
    [
        pod({"annotations": [1]}),
        pod({"ownerReferences": 7}),
        pod(tolerations=[3]),
        pod(containers=[{"resources": {"requests": {"cpu": "x"}}}]),
        pod(affinity="near"),
    ],
)
def test_a_pod_of_the_wrong_shape_is_refused_without_an_answer(app: flask.testing.FlaskClient, odd: Any) -> None:
    answers = [app.post(path, json=review(odd)) for path in ("/mutate", "/validate")]
    assert any(answer.status_code == 400 for answer in answers)
    assert all(answer.status_code in (200, 400) for answer in answers)


def test_other_methods_and_paths(app: flask.testing.FlaskClient) -> None:
    assert app.get("/mutate").status_code == 405
    assert app.post("/other").status_code == 404


def test_a_permission_decides(app: flask.testing.FlaskClient, world: World) -> None:
    body = review(pod({"annotations": {names.USER_ID: "0"}}))
    status = ask(app, "/validate", body)["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    for word in (names.USER_ID, "'0'", "'alice'", "slurmjobs.bridge.vk.io/user-id", "'slurm-bridge'"):
        assert word in status["message"]


def test_with_the_permission_it_passes(app: flask.testing.FlaskClient, world: World) -> None:
    world.allowed = True
    assert ask(app, "/validate", review(pod({"annotations": {names.USER_ID: "0"}})))["allowed"]


def test_what_can_not_be_judged_is_refused_for_now(app: flask.testing.FlaskClient, world: World) -> None:
    world.error = KubeUnavailableError("no answer")
    status = ask(app, "/validate", review(pod({"annotations": {names.USER_ID: "0"}})))["status"]
    assert (status["code"], status["reason"]) == (503, "ServiceUnavailable")
    assert status["details"] == {"retryAfterSeconds": 2}
    assert "try again" in status["message"]
    status = ask(app, "/mutate", review(pod({"ownerReferences": JOB_OWNER})))["status"]
    assert status["code"] == 503
    assert ask(app, "/validate", review(pod()))["allowed"]


def test_what_can_never_be_judged_is_refused(app: flask.testing.FlaskClient, world: World) -> None:
    world.error = KubeForbiddenError("podbridge may not create subjectaccessreviews", status=403)
    status = ask(app, "/validate", review(pod({"annotations": {names.USER_ID: "0"}})))["status"]
    assert status["code"] == 500
    assert "details" not in status


def test_an_invalid_value_is_422_and_warnings_come_along(app: flask.testing.FlaskClient) -> None:
    spread = [{"whenUnsatisfiable": "ScheduleAnyway"}]
    body = review(pod({"annotations": {names.TIME_LIMIT: "x"}}, topologySpreadConstraints=spread))
    response = ask(app, "/validate", body)
    assert (response["status"]["code"], response["status"]["reason"]) == (422, "Invalid")
    assert "topologySpreadConstraints" in response["warnings"][0]


def test_resize(app: flask.testing.FlaskClient) -> None:
    held = pod({"labels": {names.JOB_ID_LABEL: "7"}})
    body = review(held, "UPDATE", oldObject=held, subResource="resize")
    assert "job 7" in ask(app, "/validate", body)["status"]["message"]
    assert ask(app, "/validate", review(pod(), "UPDATE", oldObject=pod(), subResource="resize"))["allowed"]


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
def test_other_operations_pass(app: flask.testing.FlaskClient, operation: str) -> None:
    for path in ("/mutate", "/validate"):
        assert ask(app, path, review({}, operation, oldObject=pod()))["allowed"]


def test_ephemeral_containers(app: flask.testing.FlaskClient) -> None:
    for where, allowed in ((names.REMOTE_JOB, False), (names.TIME_LIMIT, True)):
        given = pod({"annotations": {where: "site/7"}})
        body = review(given, "UPDATE", oldObject=given, subResource="ephemeralcontainers")
        assert ask(app, "/validate", body)["allowed"] is allowed


def test_other_subresources_pass(app: flask.testing.FlaskClient) -> None:
    held = pod({"labels": {names.JOB_ID_LABEL: "7"}})
    assert ask(app, "/validate", review(pod(), "UPDATE", oldObject=held, subResource="status"))["allowed"]


def test_an_owners_annotation_reaches_the_pod(app: flask.testing.FlaskClient, world: World) -> None:
    world.owner = {"uid": "1", "annotations": {names.USER_ID: "0"}}
    patch = patch_of(ask(app, "/mutate", review(pod({"ownerReferences": JOB_OWNER}))))
    assert {"op": "add", "path": "/metadata/annotations", "value": {names.USER_ID: "0"}} in patch


def test_the_namespace_opens_pools_to_its_pods(world: World, app: flask.testing.FlaskClient) -> None:
    world.annotations = {names.POOLS: "a"}
    patch = {each["path"]: each["value"] for each in patch_of(ask(app, "/mutate", review(pod())))}
    assert patch["/metadata/annotations"] == {names.POOLS: "a"}
    assert {t["key"] for t in patch["/spec/tolerations"]} >= {names.POOL_TAINT, names.VIRTUAL_TAINT}


@pytest.mark.parametrize(
    ("of_owner", "of_namespace", "value"), [("true", None, "true"), (None, "true", "true"), ("false", "true", "false")]
)
def test_the_array_annotation_of_owner_or_namespace_reaches_the_pod(
    world: World, app: flask.testing.FlaskClient, of_owner: str | None, of_namespace: str | None, value: str
) -> None:
    world.owner = {"uid": "1", "annotations": {} if of_owner is None else {names.ARRAY: of_owner}}
    world.annotations = {} if of_namespace is None else {names.ARRAY: of_namespace}
    patch = patch_of(ask(app, "/mutate", review(pod({"ownerReferences": JOB_OWNER}))))
    assert {"op": "add", "path": "/metadata/annotations", "value": {names.ARRAY: value}} in patch


def annotated(name: str, value: str) -> dict[str, Any]:
    return pod({"annotations": {name: value}})


def refusal(app: flask.testing.FlaskClient, body: dict[str, Any], path: str = "/validate") -> str:
    response = ask(app, path, body)
    return "" if response["allowed"] else str(response["status"]["message"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.PARTITION, "gpu"),
        (names.PARTITION, "main,gpu"),
        (names.ACCOUNT, "physics"),
        (names.QOS, "high"),
        (names.LICENSES, "matlab:2"),
        (names.RESERVATION, "course"),
        (names.WCKEY, "w"),
    ],
)
def test_without_a_policy_only_the_configured_partition_is_allowed(world: World, name: str, value: str) -> None:
    app = client(world, partition="main")
    message = refusal(app, review(annotated(name, value)))
    key = name.rpartition("/")[2]
    for word in (name, repr(value), "'slurm-bridge'", "namespacePolicies", f"slurmjobs.bridge.vk.io/{key}", "'alice'"):
        assert word in message
    assert not refusal(app, review(annotated(names.PARTITION, "main")))
    world.allowed = True
    assert not refusal(client(world, partition="main"), review(annotated(name, value)))


def test_a_policy_says_what_a_namespace_may_use(world: World) -> None:
    policy = {
        "namespaces": ["slurm-bridge"],
        "allowed": {"account": ["physics", "astro"], "qos": ["*"], "licenses": ["matlab"]},
        "default": {"account": "physics", "partition": "gpu"},
    }
    app = client(world, partition="main", namespacePolicies=[policy])
    patch = patch_of(ask(app, "/mutate", review(pod())))
    defaults = {names.ACCOUNT: "physics", names.PARTITION: "gpu"}
    assert {"op": "add", "path": "/metadata/annotations", "value": defaults} in patch
    fine = {**defaults, names.QOS: "any", names.LICENSES: "matlab:2"}
    assert not refusal(app, review(pod({"annotations": fine})))
    assert not refusal(app, review(pod({"annotations": {**fine, names.ACCOUNT: "astro"}})))
    for name, value in ((names.ACCOUNT, "bio"), (names.LICENSES, "matlab:1,ansys"), (names.PARTITION, "main")):
        assert repr(value) in refusal(app, review(pod({"annotations": {**fine, name: value}})))
    message = refusal(app, review(pod({"annotations": {**fine, names.ACCOUNT: "bio"}})))
    assert "allowed in namespace 'slurm-bridge': physics, astro" in message
    # another webhook or a later update may remove the annotation; Slurm must not choose the value then
    assert "must not be absent" in refusal(app, review(pod({"annotations": {names.PARTITION: "gpu"}})))
    changed = review(pod({"annotations": {names.PARTITION: "gpu"}}), "UPDATE", oldObject=pod({"annotations": fine}))
    assert names.ACCOUNT in refusal(app, changed)


def test_a_policy_is_chosen_by_the_labels_that_the_api_server_tells(world: World) -> None:
    policies = [
        {"namespaceSelector": {"matchLabels": {"team": "physics"}}, "allowed": {"account": ["physics"]}},
        {"namespaces": ["*"], "allowed": {"account": ["guests"]}},
    ]
    body = review(annotated(names.ACCOUNT, "physics"))
    assert refusal(client(world, namespacePolicies=policies), body)
    world.labels = {"team": "physics"}
    assert not refusal(client(world, namespacePolicies=policies), body)
    assert refusal(client(world, namespacePolicies=policies), review(annotated(names.ACCOUNT, "guests")))


def test_a_namespace_that_is_not_managed_may_not_name_the_scheduler(world: World) -> None:
    body = review(pod(), namespace="other")
    message = refusal(client(world), body, "/validate/named")
    for word in ("spec.schedulerName", repr(OURS), "'other'", "slurmjobs.bridge.vk.io/scheduler", "namespacePolicies"):
        assert word in message
    opened = {"namespaces": ["other"], "mayNameScheduler": True}
    assert not refusal(client(world, namespacePolicies=[opened]), body, "/validate/named")
    assert refusal(client(world, namespacePolicies=[opened]), review(pod(), namespace="third"), "/validate/named")
    world.allowed = True
    assert not refusal(client(world), body, "/validate/named")


def test_a_pod_for_pools_alone_asks_slurm_for_nothing(world: World) -> None:
    toleration = {"key": names.POOL_TAINT, "value": "a"}
    body = pod({"annotations": {names.POOLS: "a", names.ACCOUNT: "physics"}}, tolerations=[toleration])
    assert not refusal(client(world), review(body))
    body["metadata"]["annotations"][names.POOLS] = "a,local"
    assert names.ACCOUNT in refusal(client(world), review(body))


def test_a_pod_whose_secrets_may_go_to_no_pool_that_it_asks_for_is_warned_of(world: World) -> None:
    tolerations = [{"key": names.POOL_TAINT, "value": "a"}]
    volumes = [{"name": "v", "secret": {"secretName": "kept"}}]
    body = review(pod({"annotations": {names.POOLS: "a"}}, tolerations=tolerations, volumes=volumes))
    for consent in ({}, {names.POOL_SECRETS: "b"}, {names.POOL_SECRETS: "?"}):
        world.annotations = consent
        answer = ask(client(world), "/validate", body)
        assert answer["allowed"]
        (warning,) = answer["warnings"]
        for word in (names.POOL_SECRETS, "namespace slurm-bridge", "Secret kept", "pool a"):
            assert word in warning
    world.annotations = {names.POOL_SECRETS: "a"}
    assert "warnings" not in ask(client(world), "/validate", body)
    world.annotations = {}
    either = review(pod({"annotations": {names.POOLS: "a,local"}}, tolerations=tolerations, volumes=volumes))
    assert not [w for w in ask(client(world), "/validate", either).get("warnings", ()) if names.POOL_SECRETS in w]
    without = review(pod({"annotations": {names.POOLS: "a"}}, tolerations=tolerations))
    assert "warnings" not in ask(client(world), "/validate", without)


def test_a_waiting_pod_gets_no_pool_that_its_namespace_does_not_open(world: World) -> None:
    world.annotations = {names.POOLS: "a"}
    more = pod(tolerations=[{"key": names.POOL_TAINT, "value": "b"}])
    assert "'b' is not allowed" in refusal(client(world), review(more, "UPDATE", oldObject=pod()))
    world.annotations = {names.POOLS: "b"}
    assert not refusal(client(world), review(more, "UPDATE", oldObject=pod()))


def test_a_namespace_that_is_not_managed_opens_no_pools(world: World) -> None:
    def given(name: str, text: str | None) -> dict[str, Any]:
        annotations = {} if text is None else {names.POOLS: text}
        body = review({"metadata": {"name": name, "annotations": annotations}}, namespace=name)
        body["request"]["resource"]["resource"] = "namespaces"
        return body

    path = "/validate/namespaces"
    message = refusal(client(world), given("other", "a"), path)
    for word in (names.POOLS, "'a'", "'other'", "slurm-bridge", "namespacePolicies"):
        assert word in message
    assert not refusal(client(world), given("other", None), path)
    opened = [{"namespaces": ["other"], "mayNameScheduler": True}]
    assert not refusal(client(world, namespacePolicies=opened), given("other", "a"), path)
    assert client(world).post(path, json=review(pod())).status_code == 400
    assert client(world).post("/validate", json=given("other", "a")).status_code == 400


def test_a_pod_that_selects_nodes_of_the_default_scheduler_stays_there_and_says_so(world: World) -> None:
    world.annotations = {names.POOLS: "*"}
    app = client(world, defaultSchedulerNodes={"place": "local"})
    local = pod(schedulerName="default-scheduler", nodeSelector={"place": "local", "disk": "ssd"})
    (operation,) = patch_of(ask(app, "/mutate", review(local)))
    assert operation["path"] == "/metadata/annotations"
    assert "place=local" in operation["value"][names.DEFAULT_SCHEDULER_REASON]
    local["metadata"]["annotations"] = operation["value"]
    assert "patch" not in ask(app, "/mutate", review(local)), "no further change"
    (warning,) = ask(app, "/validate", review(local))["warnings"]
    assert warning.startswith("the pod stays with the default scheduler: its node selector has place=local")
    assert "warnings" not in ask(app, "/validate", review(local, namespace="other"))
    other = pod(schedulerName="default-scheduler", nodeSelector={"place": "elsewhere"})
    assert "/spec/schedulerName" in {item["path"] for item in patch_of(ask(app, "/mutate", review(other)))}
    named = pod(schedulerName=OURS, nodeSelector={"place": "local"})
    assert names.DEFAULT_SCHEDULER_REASON not in str(patch_of(ask(app, "/mutate", review(named))))


def test_a_partition_of_the_node_selector_is_checked_as_the_annotation_is(world: World) -> None:
    selector = {names.PARTITION_LABEL_PREFIX + "gpu": "true"}
    selecting = pod(nodeSelector=selector)
    message = refusal(client(world, partition="main"), review(selecting))
    for word in ("spec.nodeSelector[partition.bridge.vk.io/gpu]", "'gpu'", "main", "slurmjobs.bridge.vk.io/partition"):
        assert word in message
    policy = [{"namespaces": ["*"], "allowed": {"partition": ["main", "gpu"]}}]
    assert not refusal(client(world, partition="main", namespacePolicies=policy), review(selecting))
    message = refusal(client(world, partition="main", partitions=["main"]), review(selecting))
    assert "is not a partition of this scheduler" in message
    gated = review(selecting)
    gated["request"] |= {"operation": "UPDATE", "oldObject": pod()}
    assert "spec.nodeSelector" in refusal(client(world, partition="main"), gated)
    gated["request"]["oldObject"] = selecting
    assert not refusal(client(world, partition="main"), gated)


def test_without_slurm_a_pod_that_asks_for_no_pool_waits_and_says_so_or_stays_where_it_was(world: World) -> None:
    plain = pod(schedulerName="default-scheduler")
    settings: dict[str, Any] = {"nats": {"servers": ["nats://127.0.0.1:4222"]}}
    waits = client(world, slurmRestApi="", pools=settings)
    assert "patch" in ask(waits, "/mutate", review(plain))
    (warning,) = ask(waits, "/validate", review(pod()))["warnings"]
    assert "requests no pool" in warning
    leaves = client(world, slurmRestApi="", pools={**settings, "otherPods": "default-scheduler"})
    (operation,) = patch_of(ask(leaves, "/mutate", review(plain)))
    assert "it requests no pool" in operation["value"][names.DEFAULT_SCHEDULER_REASON]
    world.annotations = {names.POOLS: "a"}
    leaves = client(world, slurmRestApi="", pools={**settings, "otherPods": "default-scheduler"})
    assert "patch" in ask(leaves, "/mutate", review(plain))
    with_slurm = client(world, pools={**settings, "otherPods": "default-scheduler"})
    assert "patch" in ask(with_slurm, "/mutate", review(plain))


class TestTraces:
    """The trace context that a new pod gets."""

    @staticmethod
    def annotation(app: flask.testing.FlaskClient, pod: dict[str, Any], **more: Any) -> str:
        """Return the trace context that the patch sets; empty if it sets none."""
        response = app.post("/mutate", json=review(pod, **more)).get_json()["response"]
        for operation in patch_of(response):
            if operation["path"] == "/metadata/annotations":
                return str(operation["value"].get(names.TRACEPARENT, ""))
            if operation["path"].endswith("~1traceparent"):
                return str(operation["value"])
        return ""

    @staticmethod
    def pod(traceparent: str | None = None) -> dict[str, Any]:
        annotations = {} if traceparent is None else {names.TRACEPARENT: traceparent}
        return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": []}}

    @pytest.mark.parametrize("own", [None, "malformed"])
    def test_a_new_pod_begins_a_trace(
        self, app: flask.testing.FlaskClient, sent: list[tracing.Span], own: str | None
    ) -> None:
        text = self.annotation(app, self.pod(own))
        (span,) = sent
        assert text == span.context.text
        assert (span.name, span.parent, span.attributes["k8s.pod.name"]) == (tracing.ADMISSION, None, "p")
        assert self.annotation(app, self.pod(text)) == "", "a second review keeps the context"
        assert sent == [span]

    def test_a_pod_with_a_valid_context_keeps_it(
        self, app: flask.testing.FlaskClient, sent: list[tracing.Span]
    ) -> None:
        assert self.annotation(app, self.pod(f"00-{'a' * 32}-{'b' * 16}-01")) == ""
        assert sent == []

    @pytest.mark.parametrize("more", [{"dryRun": True}, {"namespace": "other"}])
    def test_a_pod_that_podbridge_does_not_run_has_no_trace(
        self, app: flask.testing.FlaskClient, sent: list[tracing.Span], more: dict[str, Any]
    ) -> None:
        assert self.annotation(app, self.pod(), **more) == ""
        assert sent == []

    def test_without_a_tracer_no_pod_gets_a_context(self, app: flask.testing.FlaskClient) -> None:
        assert self.annotation(app, self.pod()) == ""
        assert self.annotation(app, self.pod("malformed")) == ""


CLAIMS = [{"name": "gpus", "resourceClaimTemplateName": "t"}]
LIMITS = {"gres": {"gpu": 4}, "cpuPerTask": 8}
LIMITED = [{"namespaces": ["*"], "max": {**LIMITS, "maxNodes": 2, "timelimit": 60}}]


def limits_of(made: dict[str, Any], response: Mapping[str, Any]) -> str | None:
    return patched(made, patch_of(response))["metadata"]["annotations"].get(names.JOB_LIMITS)


def test_the_limits_that_the_scheduler_checks_are_on_the_pod(world: World) -> None:
    app = client(world, namespace_policies=LIMITED)
    plain, claiming = pod({"annotations": {}}), pod({"annotations": {}}, resourceClaims=CLAIMS)
    assert limits_of(plain, ask(app, "/mutate", review(plain))) is None
    assert json.loads(limits_of(claiming, ask(app, "/mutate", review(claiming))) or "") == LIMITS
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    member = pod({"labels": labels, "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"}})
    found = json.loads(limits_of(member, ask(app, "/mutate", review(member))) or "")
    assert found == {"minNodes": 2, "maxNodes": 2}


def test_limits_that_the_user_may_exceed_are_not_on_the_pod(world: World) -> None:
    world.allowed = True
    made = pod({"annotations": {names.JOB_LIMITS: '{"gres": {}}'}}, resourceClaims=CLAIMS)
    assert limits_of(made, ask(client(world, namespace_policies=LIMITED), "/mutate", review(made))) is None
    assert limits_of(made, ask(client(world), "/mutate", review(made))) is None


@pytest.mark.parametrize("own", ["{}", json.dumps({"gres": {"gpu": 99}}), json.dumps(LIMITS)])
def test_a_user_does_not_write_the_limits(world: World, own: str) -> None:
    app = client(world, namespace_policies=LIMITED)
    made = pod({"annotations": {names.JOB_LIMITS: own}}, resourceClaims=CLAIMS)
    assert json.loads(limits_of(made, ask(app, "/mutate", review(made))) or "") == LIMITS
    for old, new in ((own, None), (own, "{}"), (None, own)):
        before, after = (pod({"annotations": {} if text is None else {names.JOB_LIMITS: text}}) for text in (old, new))
        if before != after:
            response = ask(app, "/validate", review(after, "UPDATE", oldObject=before))
            assert not response["allowed"] and names.JOB_LIMITS in response["status"]["message"]


@pytest.mark.parametrize(
    ("policy", "has_permission", "annotation", "recorded"),
    [
        ({"expose": False}, True, names.EXPOSE, "true"),
        ({"expose": False}, False, names.EXPOSE, None),
        ({"expose": False}, True, "other", None),
        ({}, True, names.EXPOSE, None),
    ],
)
def test_a_permission_to_expose_is_recorded(
    world: World, policy: dict[str, Any], has_permission: bool, annotation: str, recorded: str | None
) -> None:
    world.allowed = has_permission
    made = pod({"annotations": {annotation: "80", names.EXPOSE_PERMITTED: "forged"}})
    app = client(world, namespace_policies=[{"namespaces": ["*"], **policy}])
    after = patched(made, patch_of(ask(app, "/mutate", review(made))))["metadata"]["annotations"]
    assert after.get(names.EXPOSE_PERMITTED) == recorded


def test_a_permission_that_cannot_be_checked_admits_no_pod(world: World) -> None:
    app = client(world, namespace_policies=LIMITED)
    world.error = KubeUnavailableError("no answer")
    response = ask(app, "/mutate", review(pod(resourceClaims=CLAIMS)))
    assert not response["allowed"] and response["status"]["code"] == 503
