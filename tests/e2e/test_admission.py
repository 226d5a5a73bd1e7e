"""The webhook between a real API server and real clients."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml

from admission import certificate_store
from admission.admission_app import Admission, unregister
from admission.node_sizes import NodeSizes
from admission.webhook_registration import WebhookRegistration
from bridge import names
from bridge.config.hub import Config
from bridge.core.threads import Supervisor
from bridge.errors import (
    BridgeError,
    CertificateError,
    KubeError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
)
from bridge.kube.cache import Cache
from bridge.kube.discovery import is_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import MUTATING_WEBHOOKS, NODES, PODS, SECRETS, VALIDATING_WEBHOOKS, Resource
from cluster.polling import eventually
from cluster.ports import free_block
from tests.fakes.pod_groups import DEFINITION, NAME

pytestmark = pytest.mark.real

MANAGED, OTHER = f"adm-managed-{os.getpid()}", f"adm-other-{os.getpid()}"
SCHEDULER = "adm-scheduler"
JOB = names.JOB_ANNOTATION_PREFIX
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", True)
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", True)
BATCH_JOBS = Resource("batch", "v1", "jobs", True)

POLICIES = [
    {"namespaceSelector": {"matchLabels": {"adm/open": "yes"}}, "allowed": {"account": ["*"]}},
    {"namespaces": [MANAGED], "allowed": {"account": ["physics", "biology"]}, "default": {"qos": "normal"}},
    {"namespaces": [OTHER], "mayNameScheduler": True},
]

Json = dict[str, Any]


def pod(name: str = "", **changes: Any) -> Json:
    """Return a small pod with ``changes`` to metadata (annotations, labels, finalizers...) and spec."""
    metadata: Json = {"name": name} if name else {"generateName": "p-"}
    spec: Json = {
        "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1", "memory": "64Mi"}}}],
        "terminationGracePeriodSeconds": 0,
    }
    for key, value in changes.items():
        (metadata if key in ("annotations", "labels", "finalizers", "ownerReferences") else spec)[key] = value
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def annotated(key: str, value: str) -> Json:
    return pod(annotations={JOB + key: value})


def plain_session(folder: Path, kubeconfig: Path) -> requests.Session:
    """Return a session with the certificates of a kubeconfig."""
    content = yaml.safe_load(kubeconfig.read_text())
    user, server = content["users"][0]["user"], content["clusters"][0]["cluster"]
    parts = {
        "cert": user["client-certificate-data"],
        "key": user["client-key-data"],
        "ca": server["certificate-authority-data"],
    }
    for name, data in parts.items():
        (folder / name).write_bytes(base64.b64decode(data))
    session = requests.Session()
    session.trust_env = False
    session.cert = (str(folder / "cert"), str(folder / "key"))
    session.verify = str(folder / "ca")
    return session


def _serves(admin: Any, resource: Resource) -> bool:
    """Return whether a resource is served; at first the API server answers 404 without an object."""
    try:
        return is_served(admin, resource)
    except KubeUnavailableError:
        return False


@pytest.fixture(scope="module")
def hub(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    for namespace in (MANAGED, OTHER):
        cluster.add_namespace(namespace)
    port = free_block(1)
    config = Config.model_validate(
        {
            "schedulerName": SCHEDULER,
            "managedNamespaces": [MANAGED],
            "slurmRestApi": "http://127.0.0.1:1",
            "partition": "main",
            "namespacePolicies": POLICIES,
            "nodes": {"taint": False},
            "admission": {"host": "127.0.0.1", "port": port, "url": f"https://127.0.0.1:{port}"},
        }
    )
    client = KubeClient.load(str(cluster.part_kubeconfig("admission")))
    supervisor = Supervisor()
    nodes = Cache(client, NODES, name="nodes", prune=prune_node)
    supervisor.spawn("nodes", lambda: nodes.run(supervisor.stopping))
    sizes = NodeSizes(nodes.items, scheduler=SCHEDULER, tainted=False)
    admission = Admission(config, client, supervisor, sizes)
    admission.start()
    admin = KubeClient.load(str(cluster.kubeconfig))
    user = KubeClient.load(str(cluster.user_kubeconfig("alice", ["students"])))
    session = plain_session(tmp_path_factory.mktemp("alice"), cluster.user_kubeconfig("alice", ["students"]))
    for namespace in (MANAGED, OTHER):
        give(admin, namespace, "pods", [""], ["pods", "pods/resize", "pods/binding"], ["*"], "alice")
    eventually(lambda: mutated(admin))
    eventually(lambda: created(lambda: user.create(PODS.path(OTHER), pod(), {"dryRun": "All"})))
    yield SimpleNamespace(
        cluster=cluster,
        session=session,
        config=config,
        client=client,
        scheduler=KubeClient.load(str(cluster.part_kubeconfig("scheduler"))),
        admin=admin,
        user=user,
        admission=admission,
        supervisor=supervisor,
    )
    unregister(config, admin)
    cluster.apply_manifests()
    supervisor.stop()
    client.close()
    assert supervisor.join(10) == []
    assert supervisor.failure is None
    for namespace in (MANAGED, OTHER):
        admin.delete(f"/api/v1/namespaces/{namespace}")


def give(admin: KubeClient, namespace: str, name: str, groups: list[str], what: list[str], verbs: list[str], who: str):
    """Give a user a role of one rule."""
    kind = "ServiceAccount" if who.count(":") == 1 else "User"
    subject: Json = {"kind": kind, "name": who}
    if kind == "User":
        subject["apiGroup"] = "rbac.authorization.k8s.io"
    else:
        subject["namespace"], subject["name"] = who.split(":")
    rule = {"apiGroups": groups, "resources": what, "verbs": verbs}
    admin.create(ROLES.path(namespace), {"metadata": {"name": name}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    admin.create(BINDINGS.path(namespace), {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})


def take(admin: KubeClient, namespace: str, name: str) -> None:
    admin.delete(BINDINGS.path(namespace, name))
    admin.delete(ROLES.path(namespace, name))


def mutated(client: KubeClient) -> bool:
    """Return whether the API server calls the webhook; it learns of a new configuration after a moment."""
    made = client.create(PODS.path(MANAGED), pod(), {"dryRun": "All"})
    return bool(made["spec"]["schedulerName"] == SCHEDULER)


def created(create: Callable[[], Json]) -> bool:
    try:
        create()
    except KubeForbiddenError:
        return False
    return True


@pytest.fixture
def made(hub: SimpleNamespace) -> Iterator[Callable[..., Json]]:
    """Return a function that creates pods; delete them after the test."""
    created: list[tuple[str, str]] = []

    def make(body: Json, namespace: str = MANAGED, client: KubeClient | None = None) -> Json:
        result = (client or hub.user).create(PODS.path(namespace), body)
        created.append((namespace, result["metadata"]["name"]))
        return result

    yield make
    for namespace, name in created:
        try:
            hub.scheduler.patch(PODS.path(namespace, name), {"metadata": {"finalizers": None}})
            hub.admin.delete(PODS.path(namespace, name), {"gracePeriodSeconds": 0})
        except KubeNotFoundError:
            pass


def refused(hub: SimpleNamespace, body: Json, namespace: str = MANAGED) -> str:
    """Return the whole message of a refusal; podbridge's client shortens messages."""
    answer = hub.session.post(
        f"{hub.client.server}{PODS.path(namespace)}?dryRun=All",
        data=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=10,
    )
    status = answer.json()
    assert answer.status_code in (403, 422), status
    return str(status["message"])


# --- mutation ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("namespace", "named", "scheduler", "ours"),
    [
        (MANAGED, {}, SCHEDULER, True),
        (MANAGED, {"schedulerName": "theirs"}, "theirs", False),
        (OTHER, {}, "default-scheduler", False),
        (OTHER, {"schedulerName": SCHEDULER}, SCHEDULER, True),
    ],
    ids=["managed", "managed, another scheduler", "elsewhere", "elsewhere, names ours"],
)
def test_pods_of_podbridge_are_changed_and_checked(
    hub: SimpleNamespace, namespace: str, named: Json, scheduler: str, ours: bool
) -> None:
    spec = hub.user.create(PODS.path(namespace), pod(**named), {"dryRun": "All"})["spec"]
    assert spec["schedulerName"] == scheduler
    toleration = {"key": names.MANAGED_TAINT, "operator": "Equal", "value": SCHEDULER, "effect": "NoExecute"}
    assert [t for t in spec["tolerations"] if t["key"] == names.MANAGED_TAINT] == [toleration] * ours
    invalid = pod(annotations={JOB + "timelimit": "soon"}, **named)
    if ours:
        message = refused(hub, invalid, namespace)
        assert "denied the request" in message and JOB + "timelimit" in message
    else:
        hub.user.create(PODS.path(namespace), invalid, {"dryRun": "All"})


def test_a_toleration_added_to_a_gated_pod_lets_it_on_to_the_pools_virtual_node(
    hub: SimpleNamespace, made: Callable[..., Json]
) -> None:
    """Like Kueue, remove the gate of a pod and add the tolerations of its flavor in one update."""
    found = made(pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert all(entry["key"] != names.VIRTUAL_TAINT for entry in found["spec"]["tolerations"])
    found["spec"]["schedulingGates"] = []
    added = {"key": names.POOL_TAINT, "operator": "Equal", "value": "site-a", "effect": "NoSchedule"}
    found["spec"]["tolerations"].append(added)
    path = PODS.path(MANAGED, found["metadata"]["name"])
    after = {entry["key"]: entry for entry in hub.user.replace(path, found)["spec"]["tolerations"]}
    assert after[names.POOL_TAINT] == added
    assert (after[names.VIRTUAL_TAINT]["value"], after[names.VIRTUAL_TAINT]["effect"]) == ("true", "NoSchedule")
    assert "tolerationSeconds" not in after["node.kubernetes.io/not-ready"]
    version = hub.admin.get(path)["metadata"]["resourceVersion"]
    again = hub.user.replace(path, hub.admin.get(path))
    assert again["metadata"]["resourceVersion"] == version, "nothing is changed a second time"


def job_of(name: str, count: int, annotations: Json | None = None, labels: Json | None = None) -> Json:
    """Return an indexed Job; ``labels`` are those of its pods."""
    template = {"metadata": {"labels": labels or {}}, "spec": {**pod()["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "template": template}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def pods_of(hub: SimpleNamespace, job: str, count: int) -> list[Json]:
    """Wait for the pods of a Job, and delete it; return their annotations."""
    found: list[Json] = []

    def appeared() -> bool:
        found[:] = hub.admin.get(PODS.path(MANAGED), {"labelSelector": f"job-name={job}"})["items"]
        return len(found) == count

    eventually(appeared)
    hub.admin.delete(BATCH_JOBS.path(MANAGED, job), {"propagationPolicy": "Background"})
    return [entry["metadata"]["annotations"] for entry in found]


def groups_of(hub: SimpleNamespace, job: str, count: int) -> list[Json]:
    """Wait for the pods of a Job, and delete it; return their groups, by slot."""
    texts = [annotations.get(names.GROUP, "{}") for annotations in pods_of(hub, job, count)]
    return sorted(map(json.loads, texts), key=lambda group: group.get("slot", 0))


def told(hub: SimpleNamespace, name: str, *words: str) -> None:
    """Wait for an Event about an object with all of these words."""
    path = f"/api/v1/namespaces/{MANAGED}/events"

    def found() -> bool:
        events = hub.admin.get(path, {"fieldSelector": f"involvedObject.name={name}"})["items"]
        return any(all(word in event["message"] for word in words) for event in events)

    eventually(found)


def test_a_job_hands_its_annotations_to_its_pods(hub: SimpleNamespace) -> None:
    job = job_of("with-annotations", 1, {JOB + "timelimit": "30", JOB + "account": "physics"})
    job["spec"]["template"]["metadata"]["annotations"] = {JOB + "account": "biology"}
    hub.admin.create(BATCH_JOBS.path(MANAGED), job)
    (annotations,) = pods_of(hub, "with-annotations", 1)
    assert (annotations[JOB + "timelimit"], annotations[JOB + "account"]) == ("30", "biology")


def test_the_pods_of_a_job_that_is_a_gang_have_one_group(hub: SimpleNamespace) -> None:
    made = hub.admin.create(BATCH_JOBS.path(MANAGED), job_of("gang", 3, {names.GANG: "true"}))
    group = {"kind": "job", "name": "gang", "uid": made["metadata"]["uid"], "size": 3, "minimum": 3}
    assert groups_of(hub, "gang", 3) == [{**group, "slot": slot} for slot in range(3)]
    hub.admin.create(BATCH_JOBS.path(MANAGED), job_of("no-gang", 2))
    assert groups_of(hub, "no-gang", 2) == [{}, {}]


@pytest.fixture(scope="module")
def pod_groups(hub: SimpleNamespace) -> Iterator[Resource]:
    """Install the resource of scheduler-plugins' PodGroups."""
    served = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", True)
    definitions = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", False)
    hub.admin.create(definitions.path(), DEFINITION)
    eventually(lambda: _serves(hub.admin, served))
    yield served
    hub.admin.delete(definitions.path(name=NAME))


def test_pods_wait_for_their_pod_group_and_get_its_minimum(hub: SimpleNamespace, pod_groups: Resource) -> None:
    hub.admin.create(BATCH_JOBS.path(MANAGED), job_of("early", 3, labels={"scheduling.x-k8s.io/pod-group": "g"}))
    told(hub, "early", "PodGroup 'g' (scheduling.x-k8s.io) does not exist")
    body = {"apiVersion": pod_groups.api_version, "kind": "PodGroup", "metadata": {"name": "g"}}
    body["spec"] = {"minMember": 2}
    made = hub.admin.create(pod_groups.path(MANAGED), body)
    group = {"kind": "podgroup", "name": "g", "uid": made["metadata"]["uid"], "size": 3, "minimum": 2}
    assert groups_of(hub, "early", 3) == [group] * 3


def test_an_owner_in_an_api_that_is_not_served_does_not_exist(hub: SimpleNamespace, made: Callable[..., Json]) -> None:
    """The API server answers such a request with plain text, like a proxy."""
    assert "JobSet 's' (jobset.x-k8s.io) does not exist" in refused(
        hub, pod(labels={"jobset.sigs.k8s.io/jobset-name": "s"})
    )
    for api_version in ("none.example.com/v1", "batch/v2", "v1"):
        owner = {"apiVersion": api_version, "kind": "Nothing", "name": "x", "uid": "1-2-3", "controller": True}
        assert made(pod(ownerReferences=[owner]))["spec"]["schedulerName"] == SCHEDULER


def test_a_permission_can_not_be_borrowed_through_a_job(hub: SimpleNamespace) -> None:
    hub.admin.create(BATCH_JOBS.path(MANAGED), job_of("as-root", 1, {JOB + "user-id": "0"}))
    told(hub, "as-root", "slurmjobs.bridge.vk.io/user-id", "job-controller")
    assert not hub.admin.get(PODS.path(MANAGED), {"labelSelector": "job-name=as-root"})["items"]
    hub.admin.delete(BATCH_JOBS.path(MANAGED, "as-root"), {"propagationPolicy": "Background"})


def test_the_pods_of_a_daemon_set_are_left_alone(hub: SimpleNamespace) -> None:
    daemon = Resource("apps", "v1", "daemonsets", True)
    labels = {"app": "logs"}
    template = {"metadata": {"labels": labels}, "spec": {**pod()["spec"], "tolerations": [{"operator": "Exists"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    hub.admin.create(daemon.path(MANAGED), {"metadata": {"name": "logs"}, "spec": spec})
    found: list[Json] = []

    def appeared() -> bool:
        found[:] = hub.admin.get(PODS.path(MANAGED), {"labelSelector": "app=logs"})["items"]
        return bool(found)

    eventually(appeared)
    assert {p["spec"]["schedulerName"] for p in found} == {"default-scheduler"}
    hub.admin.delete(daemon.path(MANAGED, "logs"), {"propagationPolicy": "Background"})


# --- policies ---------------------------------------------------------------------------------------------------------


def test_labels_choose_the_policy_as_they_are_now(hub: SimpleNamespace, made: Callable[..., Json]) -> None:
    body = annotated("account", "chemistry")
    assert "'chemistry' is not allowed" in refused(hub, body)
    path = f"/api/v1/namespaces/{MANAGED}"
    hub.admin.patch(path, {"metadata": {"labels": {"adm/open": "yes"}}})
    eventually(lambda: created(lambda: made(body)))
    hub.admin.patch(path, {"metadata": {"labels": {"adm/open": None}}})
    eventually(lambda: not created(lambda: made(body)))


def test_who_may_name_the_scheduler_is_in_the_policy(hub: SimpleNamespace, made: Callable[..., Json]) -> None:
    third = f"adm-third-{os.getpid()}"
    hub.cluster.add_namespace(third)
    give(hub.admin, third, "pods", [""], ["pods"], ["*"], "alice")
    eventually(lambda: created(lambda: hub.user.create(PODS.path(third), pod(), {"dryRun": "All"})))
    message = refused(hub, pod(schedulerName=SCHEDULER), third)
    for word in ("spec.schedulerName", SCHEDULER, third, "not managed", "slurmjobs.bridge.vk.io/scheduler"):
        assert word in message
    assert made(pod(schedulerName=SCHEDULER), OTHER)["spec"]["schedulerName"] == SCHEDULER
    hub.admin.delete(f"/api/v1/namespaces/{third}")


def test_a_namespace_that_is_not_managed_opens_no_pools(hub: SimpleNamespace) -> None:
    third = f"adm-fourth-{os.getpid()}"
    path = f"/api/v1/namespaces/{third}"
    hub.cluster.add_namespace(third)
    given = {"metadata": {"annotations": {names.POOLS: "a"}}}
    with pytest.raises(KubeForbiddenError, match="is not managed by podbridge"):
        hub.admin.patch(path, given)
    hub.admin.patch(path, {"metadata": {"annotations": {"other": "a"}, "labels": {"a": "b"}}})
    with pytest.raises(KubeForbiddenError, match="is not managed by podbridge"):
        hub.admin.create("/api/v1/namespaces", {"metadata": {"name": third + "-new", **given["metadata"]}})
    for managed in (MANAGED, OTHER):  # of the second, a policy says that its pods may name the scheduler
        hub.admin.patch(f"/api/v1/namespaces/{managed}", given)
        hub.admin.patch(f"/api/v1/namespaces/{managed}", {"metadata": {"annotations": {names.POOLS: None}}})
    hub.admin.delete(path)


def test_kubectl_shows_the_message_and_the_warning(hub: SimpleNamespace) -> None:
    kubeconfig = hub.cluster.user_kubeconfig("alice", ["students"])

    def kubectl(body: Json) -> subprocess.CompletedProcess[str]:
        command = [hub.cluster.state / "bin" / "kubectl", f"--kubeconfig={kubeconfig}", "-n", MANAGED]
        return subprocess.run(
            [*command, "create", "--dry-run=server", "-f", "-"], input=json.dumps(body), capture_output=True, text=True
        )

    huge = pod(containers=[{"name": "c", "image": "none", "resources": {"requests": {"cpu": "5000"}}}])
    denied = kubectl(annotated("time-limit", "10"))
    assert denied.returncode != 0
    assert f"did you mean {JOB}timelimit?" in denied.stderr
    eventually(lambda: "Warning: no node can run this pod" in kubectl(huge).stderr)
    warned = kubectl(huge)
    assert "cpu 5000" in warned.stderr
    assert warned.returncode == 0


# --- permissions ------------------------------------------------------------------------------------------------------
def test_a_role_permits_a_key(hub: SimpleNamespace) -> None:
    permitted = lambda: created(lambda: hub.user.create(PODS.path(MANAGED), body, {"dryRun": "All"}))  # noqa: E731
    body = annotated("user-id", "12")
    give(hub.admin, MANAGED, "use-user-id", ["bridge.vk.io"], ["slurmjobs/user-id"], ["use"], "alice")
    eventually(permitted)
    take(hub.admin, MANAGED, "use-user-id")
    eventually(lambda: not permitted())  # a positive answer is cached for 10 s


# --- what podbridge alone writes --------------------------------------------------------------------------------------
@pytest.fixture
def held(hub: SimpleNamespace, made: Callable[..., Json]) -> str:
    """Return a pod with job 42 on node-0."""
    name = made(pod())["metadata"]["name"]
    metadata = {
        "labels": {names.JOB_ID_LABEL: "42"},
        "annotations": {names.NODE_ANNOTATION: "node-0"},
        "finalizers": [names.FINALIZER],
    }
    hub.scheduler.patch(PODS.path(MANAGED, name), {"metadata": metadata})
    return str(name)


def test_an_exported_pod_can_be_created_again(hub: SimpleNamespace, held: str, made: Callable[..., Json]) -> None:
    exported = hub.admin.get(PODS.path(MANAGED, held))
    metadata = {key: exported["metadata"][key] for key in ("labels", "annotations", "finalizers")}
    again = made({"metadata": {"name": "again", **metadata}, "spec": {**exported["spec"], "nodeName": "node-0"}})
    assert names.JOB_ID_LABEL not in again["metadata"].get("labels", {})
    assert names.NODE_ANNOTATION not in again["metadata"].get("annotations", {})
    assert again["metadata"]["finalizers"] == [names.FINALIZER]
    assert "affinity" not in again["spec"]


TAMPERING: list[tuple[Json, str]] = [
    ({"labels": {names.JOB_ID_LABEL: "43"}}, names.JOB_ID_LABEL),
    ({"labels": {names.JOB_ID_LABEL: None}}, names.JOB_ID_LABEL),
    ({"annotations": {names.NODE_ANNOTATION: "node-1"}}, names.NODE_ANNOTATION),
    ({"annotations": {names.NODE_ANNOTATION: None}}, names.NODE_ANNOTATION),
    ({"finalizers": None}, names.FINALIZER),
]


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded"])
def test_a_user_can_not_tamper_at_any_phase(hub: SimpleNamespace, held: str, phase: str) -> None:
    hub.admin.patch(PODS.path(MANAGED, held, "status"), {"status": {"phase": phase}})
    for change, word in TAMPERING:
        with pytest.raises(KubeForbiddenError) as caught:
            hub.user.patch(PODS.path(MANAGED, held), {"metadata": change})
        assert word in str(caught.value)
    hub.user.patch(PODS.path(MANAGED, held), {"metadata": {"labels": {"mine": "yes"}, "annotations": {"mine": "yes"}}})


def test_an_impersonated_user_can_not_tamper_either(hub: SimpleNamespace, held: str) -> None:
    result = hub.cluster.kubectl(
        *("--as=alice", "-n", MANAGED, "label", "--overwrite", "pod", held, f"{names.JOB_ID_LABEL}=43"), check=False
    )
    live = hub.admin.get(PODS.path(MANAGED, held))
    assert live["metadata"]["labels"][names.JOB_ID_LABEL] == "42", result


def test_an_administrator_can_take_the_finalizer_off(hub: SimpleNamespace, held: str) -> None:
    hub.admin.patch(PODS.path(MANAGED, held), {"metadata": {"finalizers": None}})
    with pytest.raises(KubeForbiddenError):
        hub.admin.patch(PODS.path(MANAGED, held), {"metadata": {"labels": {names.JOB_ID_LABEL: "43"}}})


def test_the_job_is_not_changed_behind_slurms_back(hub: SimpleNamespace, held: str) -> None:
    with pytest.raises(KubeInvalidError, match="Slurm job 42"):
        hub.user.patch(PODS.path(MANAGED, held), {"metadata": {"annotations": {JOB + "timelimit": "10"}}})
    container = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
    with pytest.raises(KubeInvalidError, match="Slurm job 42"):
        hub.user.patch(PODS.path(MANAGED, held, "resize"), {"spec": {"containers": [container]}}, kind="strategic")


# --- registration and certificates ------------------------------------------------------------------------------------
def configurations(hub: SimpleNamespace) -> list[Json]:
    return [
        hub.admin.get(MUTATING_WEBHOOKS.path(name="podbridge-mutate")),
        hub.admin.get(VALIDATING_WEBHOOKS.path(name="podbridge-validate")),
    ]


def test_a_changed_configuration_is_mended(hub: SimpleNamespace) -> None:
    broken = copy.deepcopy(configurations(hub)[0])
    broken["webhooks"][0]["failurePolicy"] = "Ignore"
    hub.admin.replace(MUTATING_WEBHOOKS.path(name="podbridge-mutate"), broken)
    hub.admission._registration.ensure(hub.admission._certificates.ca_bundle, create=False)
    assert configurations(hub)[0]["webhooks"][0]["failurePolicy"] == "Fail"


EXPRESSIONS = [
    {"key": "tier", "operator": "NotIn", "values": ["web", "db"]},
    {"key": "off", "operator": "DoesNotExist"},
]


@pytest.mark.parametrize(
    "managed",
    [
        {"managedNamespaces": []},
        {"managedNamespaceSelector": {"matchLabels": {"adm": "yes"}, "matchExpressions": EXPRESSIONS}},
    ],
)
def test_every_way_to_choose_namespaces_is_stored_as_written(hub: SimpleNamespace, managed: Json) -> None:
    settings = {"url": "https://127.0.0.1:1", "webhookName": "adm-shape", "timeoutSeconds": 1}
    config = Config.model_validate({**managed, "schedulerName": "nobody", "admission": settings})
    registration = WebhookRegistration(hub.admin, config, ["someone"])
    path = VALIDATING_WEBHOOKS.path(name="adm-shape-validate")
    try:
        assert registration.ensure(hub.admission._certificates.ca_bundle, create=True) == []
        before = hub.admin.get(path)["metadata"]["resourceVersion"]
        registration.ensure(hub.admission._certificates.ca_bundle, create=True)
        assert hub.admin.get(path)["metadata"]["resourceVersion"] == before
    finally:
        registration.remove()


def test_namespaces_by_label(hub: SimpleNamespace) -> None:
    """The API server evaluates the selector at the moment of the label's change."""
    port = free_block(1)
    config = Config.model_validate(
        {
            "schedulerName": "adm-label",
            "managedNamespaceSelector": {"matchLabels": {"adm": "yes"}},
            "namespacePolicies": [{"namespaces": [OTHER], "mayNameScheduler": True}],
            "admission": {
                "host": "127.0.0.1",
                "port": port,
                "url": f"https://127.0.0.1:{port}",
                "secretName": "adm-label-tls",
                "webhookName": "adm-label",
            },
        }
    )
    supervisor = Supervisor()
    admission = Admission(config, hub.admin, supervisor, nodes=tuple)
    admission.start()

    def scheduler(**spec: Any) -> str:
        made = hub.user.create(PODS.path(OTHER), pod(**spec), {"dryRun": "All"})
        return str(made["spec"]["schedulerName"])

    def tolerated() -> bool:
        made = hub.user.create(PODS.path(OTHER), pod(schedulerName="adm-label"), {"dryRun": "All"})
        return any(t.get("value") == "adm-label" for t in made["spec"]["tolerations"])

    try:
        eventually(tolerated)
        assert scheduler() == "default-scheduler"
        hub.admin.patch(f"/api/v1/namespaces/{OTHER}", {"metadata": {"labels": {"adm": "yes"}}})
        eventually(lambda: scheduler() == "adm-label")
        assert scheduler(schedulerName="theirs") == "theirs"
        hub.admin.patch(f"/api/v1/namespaces/{OTHER}", {"metadata": {"labels": {"adm": None}}})
        eventually(lambda: scheduler() == "default-scheduler")
    finally:
        unregister(config, hub.admin)
        supervisor.stop()
        assert supervisor.join(10) == []


def test_the_certificate_rotates_under_load(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    # one handshake for each review: on a kept connection the API server would not see the new certificate
    monkeypatch.setattr(hub.admission.server._server, "keep_alive_conn_limit", 0)
    stop = threading.Event()
    failures: list[KubeError] = []
    done: list[None] = []

    def load() -> None:
        while not stop.is_set():
            try:
                hub.user.create(PODS.path(MANAGED), pod(), {"dryRun": "All"})
                done.append(None)
            except KubeError as error:
                failures.append(error)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    before = hub.admission._certificates.pair
    try:
        for _ in range(2):
            serving = hub.admission._certificates.pair
            monkeypatch.setattr(certificate_store, "needs_renewal", lambda pair, *_, due=serving: pair == due)
            hub.admission._rotator.step(hub.supervisor.stopping)
            before_it = len(done)
            eventually(lambda n=before_it: len(done) > n + 50 or failures, "50 more answers")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    after = hub.admission._certificates.pair
    assert failures == []
    assert len(done) > 100
    assert after.cert != before.cert
    assert after.ca.count(b"BEGIN CERTIFICATE") == 3
    secret = hub.admin.get(SECRETS.path("podbridge", "podbridge-webhook-tls"))
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt"}


def test_a_lost_secret_is_filled_again_once_an_administrator_has_created_it(hub: SimpleNamespace) -> None:
    path = SECRETS.path("podbridge", "podbridge-webhook-tls")
    hub.admin.delete(path)
    with pytest.raises(CertificateError, match="is not allowed to create it"):
        hub.admission._rotator.step(hub.supervisor.stopping)
    assert mutated(hub.user)
    hub.cluster.apply_manifests()
    hub.admission._rotator.step(hub.supervisor.stopping)
    assert hub.admin.get(path)["data"]
    assert mutated(hub.user)


def test_unregister_removes_and_start_registers(hub: SimpleNamespace) -> None:
    assert unregister(hub.config, hub.admin) == ["podbridge-mutate", "podbridge-validate"]
    assert unregister(hub.config, hub.admin) == []
    eventually(lambda: not mutated(hub.user))
    hub.admission._rotator.step(hub.supervisor.stopping)
    with pytest.raises(KubeNotFoundError):
        configurations(hub)
    with pytest.raises(BridgeError, match="is not allowed to create it"):
        hub.admission._registration.ensure(hub.admission._certificates.ca_bundle, create=True)
    hub.cluster.apply_manifests()
    hub.admission._registration.ensure(hub.admission._certificates.ca_bundle, create=True)
    eventually(lambda: mutated(hub.user))
    hub.cluster.apply_manifests()
    assert configurations(hub)[0]["webhooks"], "to apply the manifests again must not take the registration away"
