"""config/policies.yaml on a real API server without podbridge: each bypass is refused, each exception allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import names
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.errors import KubeError, KubeForbiddenError, KubeInvalidError
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import (
    CONFIGMAPS,
    MUTATING_WEBHOOKS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from cluster.polling import eventually
from controllers.guarded_nodes import GuardedNodes
from scheduler.volumes.pod_volumes import SELECTED_NODE

pytestmark = pytest.mark.real

OTHER, EXEMPT = "policies-other", "policies-exempt"
MANAGED, FREE, VIRTUAL = "guard-managed", "guard-free", "guard-virtual"
TAINT = {"key": names.MANAGED_TAINT, "value": names.DEFAULT_SCHEDULER_NAME, "effect": "NoExecute"}
LIST = CONFIGMAPS.path(names.SYSTEM_NAMESPACE, names.guarded_nodes(names.COMPONENT))
DAEMON_SETS = Resource("apps", "v1", "daemonsets", True)
Json = dict[str, Any]


def pod(**more: Any) -> Json:
    metadata = {"generateName": "p-", "annotations": more.pop("annotations", {})}
    spec = {"containers": [{"name": "c", "image": "first"}], "tolerations": [{"operator": "Exists"}], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def node(name: str, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def guard_once(kubernetes: Any) -> None:
    """Let the controllers write the list of guarded nodes, with their own account, and end."""
    client = KubeClient.load(str(kubernetes.part_kubeconfig("controllers")))
    supervisor = Supervisor()
    config = Config.model_validate({"pools": {"nats": {"servers": ["wss://nats.example.org"]}}})
    nodes = Cache(client, NODES, name="nodes", prune=prune_node)
    loop = GuardedNodes(KubeDependencies(config, client, nodes, EventRecorder(client), SystemClock()), None)
    loop.start(supervisor)
    supervisor.spawn("nodes", lambda: nodes.run(supervisor.stopping))
    admin = KubeClient.load(str(kubernetes.kubeconfig))
    wanted = {MANAGED: "slurm", VIRTUAL: "pool"}
    try:
        eventually(lambda: (admin.get(LIST).get("data") or {}).items() >= wanted.items(), "guarded nodes")
        assert FREE not in admin.get(LIST)["data"]
        admin.patch(NODES.path(name=FREE), {"spec": {"taints": [TAINT]}}, kind="merge")
        eventually(lambda: FREE in admin.get(LIST)["data"], "one more")
        admin.patch(NODES.path(name=FREE), {"spec": {"taints": None}}, kind="merge")
        eventually(lambda: FREE not in admin.get(LIST)["data"], "one less")
    finally:
        supervisor.stop()
        client.close()
        assert supervisor.join(10) == []


@pytest.fixture(scope="module")
def world(kubernetes: Any) -> Iterator[SimpleNamespace]:
    admin = KubeClient.load(str(kubernetes.kubeconfig))

    def user(name: str, *groups: str) -> KubeClient:
        return KubeClient.load(str(kubernetes.user_kubeconfig(name, groups)))

    for namespace in (OTHER, EXEMPT):
        kubernetes.add_namespace(namespace)
    for namespace in ("kube-system", names.SYSTEM_NAMESPACE):
        kubernetes.api.ensure(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    admin.patch(f"/api/v1/namespaces/{EXEMPT}", {"metadata": {"labels": {"bridge.vk.io/guarded-nodes": "exempt"}}})
    for body in (node(MANAGED), node(FREE), node(VIRTUAL, **{names.POOL_LABEL: VIRTUAL})):
        admin.create(NODES.path(), body)
    admin.patch(NODES.path(name=MANAGED), {"spec": {"taints": [TAINT]}}, kind="merge")
    guard_once(kubernetes)
    made = SimpleNamespace(
        cluster=kubernetes,
        admin=admin,
        kube_scheduler=user("system:kube-scheduler"),
        kubelet=user(f"system:node:{MANAGED}", "system:nodes"),
        another_kubelet=user(f"system:node:{FREE}", "system:nodes"),
        **{part: KubeClient.load(str(kubernetes.part_kubeconfig(part))) for part in ("admission", "scheduler", "run")},
        controllers=KubeClient.load(str(kubernetes.part_kubeconfig("controllers"))),
    )
    eventually(
        lambda: refused(lambda: admin.create(PODS.path(OTHER), pod(nodeName=MANAGED))), "the policies are in force"
    )
    yield made
    for namespace in (OTHER, EXEMPT):
        for found in admin.get(PODS.path(namespace))["items"]:
            admin.delete(PODS.path(namespace, found["metadata"]["name"]), {"gracePeriodSeconds": 0})
        kubernetes.api("DELETE", f"/api/v1/namespaces/{namespace}")
    for namespace in ("kube-system", names.SYSTEM_NAMESPACE):
        for found in admin.get(PODS.path(namespace))["items"]:
            admin.delete(PODS.path(namespace, found["metadata"]["name"]), {"gracePeriodSeconds": 0})
    admin.patch(LIST, {"data": {MANAGED: None, VIRTUAL: None}}, kind="merge")
    for name in (MANAGED, FREE, VIRTUAL):
        admin.delete(NODES.path(name=name))


def refused(call: Callable[[], Any]) -> str:
    """Send a request; return the message of the policy that refused it, or an empty string."""
    try:
        call()
    except (KubeForbiddenError, KubeInvalidError) as error:
        assert "ValidatingAdmissionPolicy" in str(error), error
        return str(error)
    return ""


def bind(client: KubeClient, body: Json, target: str, legacy: bool = False) -> None:
    """Bind a pod as a scheduler does, by one of the two paths."""
    metadata = {key: body["metadata"][key] for key in ("name", "namespace", "uid")}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": target}}
    namespace, name = metadata["namespace"], metadata["name"]
    path = f"/api/v1/namespaces/{namespace}/bindings" if legacy else PODS.path(namespace, name, "binding")
    client.create(path, binding)


@pytest.mark.parametrize("target", [MANAGED, VIRTUAL])
def test_a_pod_created_with_a_guarded_node_name_is_refused(world: Any, target: str) -> None:
    said = refused(lambda: world.admin.create(PODS.path(OTHER), pod(nodeName=target)))
    assert f"node {target} is guarded" in said
    mirror = pod(nodeName=target, annotations={"kubernetes.io/config.mirror": "hash"})
    assert refused(lambda: world.admin.create(PODS.path(OTHER), mirror))


@pytest.mark.parametrize("legacy", [False, True], ids=["pods/binding", "bindings"])
@pytest.mark.parametrize("target", [MANAGED, VIRTUAL])
@pytest.mark.parametrize("who", ["admin", "kube_scheduler"])
def test_another_scheduler_can_not_bind_to_a_guarded_node(world: Any, who: str, target: str, legacy: bool) -> None:
    if who == "kube_scheduler" and legacy:
        for words in (
            "clusterrole old-binding --verb=create --resource=bindings",
            "clusterrolebinding old-binding --clusterrole=old-binding --user=system:kube-scheduler",
        ):
            world.cluster.kubectl("create", *words.split(), check=False)
    body = world.admin.create(PODS.path(OTHER), pod(schedulerName="theirs"))

    def attempt() -> str:
        try:
            return refused(lambda: bind(getattr(world, who), body, target, legacy))
        except AssertionError:  # RBAC has not heard of the new role yet
            return ""

    assert f"node {target} is guarded" in eventually(attempt, "refused by the policy")
    assert not world.admin.get(PODS.path(OTHER, body["metadata"]["name"]))["spec"].get("nodeName")


@pytest.mark.parametrize("legacy", [False, True], ids=["pods/binding", "bindings"])
def test_the_controllers_grant_pools_but_no_node_of_slurm(world: Any, legacy: bool) -> None:
    body = world.admin.create(PODS.path(OTHER), pod(schedulerName="podbridge-test"))
    if not legacy:  # RBAC has no permission for the other path
        assert f"node {MANAGED} is guarded" in refused(lambda: bind(world.controllers, body, MANAGED))
        bind(world.controllers, body, VIRTUAL)
        assert world.admin.get(PODS.path(OTHER, body["metadata"]["name"]))["spec"]["nodeName"] == VIRTUAL
    else:
        with pytest.raises(KubeForbiddenError):
            bind(world.controllers, body, VIRTUAL, legacy)


def test_pods_of_a_daemon_set_that_tolerates_everything_stay_away(world: Any) -> None:
    template = {"metadata": {"labels": {"app": "logs"}}, "spec": pod()["spec"]}
    body = {"metadata": {"name": "logs"}, "spec": {"selector": {"matchLabels": {"app": "logs"}}, "template": template}}
    world.admin.create(DAEMON_SETS.path(OTHER), body)
    selector = {"labelSelector": "app=logs"}
    found = eventually(lambda: len(f := world.admin.get(PODS.path(OTHER), selector)["items"]) >= 3 and f, "its pods")
    for each in found:
        terms = each["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        target = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0]
        said = refused(lambda e=each, t=target: bind(world.kube_scheduler, e, t))
        assert bool(said) == (target != FREE), (target, said)
    world.admin.delete(DAEMON_SETS.path(OTHER, "logs"), {"propagationPolicy": "Background"})


@pytest.mark.parametrize("who", ["scheduler", "run"])
@pytest.mark.parametrize("target", [MANAGED, VIRTUAL])
def test_podbridges_scheduler_binds(world: Any, who: str, target: str) -> None:
    body = world.admin.create(PODS.path(OTHER), pod(schedulerName="slurm-bridge-scheduler"))
    bind(getattr(world, who), body, target)
    assert world.admin.get(PODS.path(OTHER, body["metadata"]["name"]))["spec"]["nodeName"] == target


@pytest.mark.parametrize("namespace", [EXEMPT, "kube-system", names.SYSTEM_NAMESPACE])
def test_exempt_namespaces_reach_guarded_nodes(world: Any, namespace: str) -> None:
    world.admin.create(PODS.path(namespace), pod(nodeName=MANAGED))
    bind(world.kube_scheduler, world.admin.create(PODS.path(namespace), pod()), MANAGED)


def test_a_kubelet_mirrors_its_own_static_pods_and_nobody_elses(world: Any) -> None:
    body = pod(nodeName=MANAGED, annotations={"kubernetes.io/config.mirror": "hash"})
    assert refused(lambda: world.another_kubelet.create(PODS.path(OTHER), body))
    assert refused(lambda: world.kubelet.create(PODS.path(OTHER), pod(nodeName=MANAGED)))
    world.kubelet.create(PODS.path(OTHER), body)


def test_other_pods_are_untouched_while_podbridge_is_down(world: Any) -> None:
    world.admin.create(PODS.path(OTHER), pod(nodeName=FREE))
    world.admin.create(PODS.path(OTHER), pod())
    bind(world.kube_scheduler, world.admin.create(PODS.path(OTHER), pod()), FREE)
    bind(world.admin, world.admin.create(PODS.path(OTHER), pod()), FREE, legacy=True)


def test_without_the_list_nothing_is_guarded_and_nobody_is_refused(world: Any) -> None:
    before = world.admin.get(LIST)
    world.admin.delete(LIST)
    eventually(lambda: not refused(lambda: world.admin.create(PODS.path(OTHER), pod(nodeName=MANAGED))), "open")
    world.admin.create(
        CONFIGMAPS.path(names.SYSTEM_NAMESPACE),
        {
            "metadata": {"name": names.guarded_nodes(names.COMPONENT), "labels": before["metadata"]["labels"]},
            "data": before["data"],
        },
    )
    eventually(lambda: refused(lambda: world.admin.create(PODS.path(OTHER), pod(nodeName=MANAGED))), "guarded")
    world.cluster.apply_manifests()
    assert world.admin.get(LIST)["data"] == before["data"], "to apply the manifests again must not empty the list"


@pytest.mark.parametrize(
    "label",
    [names.SLURM_NODENAME_LABEL, names.POOL_LABEL, names.EXTERNAL_NODE_LABEL, names.PARTITION_LABEL_PREFIX + "gpu"],
)
def test_a_kubelet_can_not_name_itself(world: Any, label: str) -> None:
    name = "guard-new"
    kubelet = KubeClient.load(str(world.cluster.user_kubeconfig(f"system:node:{name}", ["system:nodes"])))
    assert label in refused(lambda: kubelet.create(NODES.path(), node(name, **{label: "other"})))
    kubelet.create(NODES.path(), node(name, mine="yes"))
    path = NODES.path(name=name)
    try:
        for sub in (None, "status"):
            patch = {"metadata": {"labels": {label: "other"}}}
            assert label in refused(lambda s=sub, p=patch: kubelet.patch(NODES.path(name=name, sub=s), p))
        world.admin.patch(path, {"metadata": {"labels": {label: "mine"}}})
        assert label in refused(lambda: kubelet.patch(path, {"metadata": {"labels": {label: None}}}))
        kubelet.patch(path, {"metadata": {"labels": {"mine": "no"}}})
        kubelet.patch(NODES.path(name=name, sub="status"), {"status": {"capacity": {"cpu": "4"}}})
    finally:
        world.admin.delete(path)


@pytest.mark.parametrize(
    "annotation", [names.EXTERNAL_NODE_PARTITIONS, names.EXTERNAL_NODE_FEATURES, names.TOPOLOGY_SPEC]
)
def test_a_kubelet_can_not_choose_its_place_in_slurm(world: Any, annotation: str) -> None:
    name = "guard-new"
    kubelet = KubeClient.load(str(world.cluster.user_kubeconfig(f"system:node:{name}", ["system:nodes"])))
    kubelet.create(NODES.path(), node(name))
    path = NODES.path(name=name)
    try:
        patch = {"metadata": {"annotations": {annotation: "main", "mine": "yes"}}}
        assert annotation in refused(lambda: kubelet.patch(path, patch))
        world.admin.patch(path, patch)
        assert annotation in refused(lambda: kubelet.patch(path, {"metadata": {"annotations": {annotation: None}}}))
        kubelet.patch(path, {"metadata": {"annotations": {"mine": "no"}}})
    finally:
        world.admin.delete(path)


def test_podbridge_changes_no_image(world: Any) -> None:
    body = world.admin.create(PODS.path("kube-system"), pod())
    path = PODS.path("kube-system", body["metadata"]["name"])
    for client in (world.scheduler, world.controllers, world.run):
        patch = {"spec": {"containers": [{"name": "c", "image": "evil"}]}}
        assert "no image" in refused(lambda c=client, p=patch: c.patch(path, p, kind="strategic"))
        client.patch(path, {"metadata": {"labels": {"mine": "yes"}}})
    world.admin.patch(path, {"spec": {"containers": [{"name": "c", "image": "second"}]}}, kind="strategic")


def test_podbridge_claims_free_volumes_and_changes_no_other_field(world: Any) -> None:
    claims, volume = PERSISTENT_VOLUME_CLAIMS.path(OTHER), PERSISTENT_VOLUMES.path(name="policies-volume")
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    size = {"storage": "1Gi"}
    claim = world.admin.create(claims, {"metadata": {"name": "c"}, "spec": {**spec, "resources": {"requests": size}}})
    source = {"hostPath": {"path": "/mnt"}, "capacity": size, "storageClassName": "other"}
    world.admin.create(PERSISTENT_VOLUMES.path(), {"metadata": {"name": "policies-volume"}, "spec": {**spec, **source}})
    ref = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    try:
        for field in ({"persistentVolumeReclaimPolicy": "Delete"}, {"capacity": {"storage": "9Gi"}}):
            assert "only claimRef" in refused(lambda f=field: world.scheduler.patch(volume, {"spec": f}))
        change = {"spec": {"volumeName": "policies-volume"}}
        assert "only annotations" in refused(lambda: world.scheduler.patch(f"{claims}/c", change))
        world.scheduler.patch(f"{claims}/c", {"metadata": {"annotations": {SELECTED_NODE: FREE}}})
        world.scheduler.patch(volume, {"spec": {"claimRef": ref}})
        change = {"spec": {"claimRef": {**ref, "name": "other", "uid": "other"}}}
        assert "only of a free one" in refused(lambda: world.run.patch(volume, change))
    finally:
        world.admin.delete(f"{claims}/c")
        world.admin.delete(volume)


def test_podbridge_leaves_real_nodes_their_status_and_labels(world: Any) -> None:
    partition = names.PARTITION_LABEL_PREFIX + "gpu"
    for client in (world.controllers, world.run):
        path = NODES.path(name=MANAGED)
        status = NODES.path(name=MANAGED, sub="status")
        assert refused(lambda c=client, p=path: c.delete(p))
        assert refused(lambda c=client, s=status: c.patch(s, {"status": {"capacity": {"cpu": "1"}}}))
        assert refused(lambda c=client, p=path: c.patch(p, {"metadata": {"labels": {names.POOL_LABEL: "x"}}}))
        world.admin.patch(path, {"metadata": {"labels": {"mine": "admin"}}})
        for labels in ({partition: "true", "mine": "yes"}, {"mine": None}):
            assert refused(lambda c=client, p=path, more=labels: c.patch(p, {"metadata": {"labels": more}}))
        for value in ("true", None):
            client.patch(path, {"metadata": {"labels": {partition: value}}})
        assert refused(lambda c=client: c.create(NODES.path(), node("guard-real")))
        client.patch(path, {"metadata": {"annotations": {"mine": "yes"}}, "spec": {"unschedulable": None}})
        client.create(NODES.path(), node("guard-pool", **{names.POOL_LABEL: "guard-pool"}))
        client.patch(NODES.path(name="guard-pool", sub="status"), {"status": {"capacity": {"cpu": "1"}}})
        client.delete(NODES.path(name="guard-pool"))


JOBS_OF_BATCH = {"apiGroups": ["batch"], "resources": ["jobs", "cronjobs"]}


def test_podbridge_registers_for_pods_and_only_warns_about_what_makes_them(world: Any) -> None:
    paths = {
        MUTATING_WEBHOOKS: MUTATING_WEBHOOKS.path(name="podbridge-mutate"),
        VALIDATING_WEBHOOKS: VALIDATING_WEBHOOKS.path(name="podbridge-validate"),
    }

    def register(kind: Resource = MUTATING_WEBHOOKS, policy: str = "Ignore", **rule: Any) -> None:
        live = world.admission.get(paths[kind])
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], **rule}
        webhook = {
            "name": "policies.mutate.bridge.vk.io",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "nowhere"}},
            "sideEffects": "None",
            "failurePolicy": policy,
            "admissionReviewVersions": ["v1"],
        }
        world.admission.replace(paths[kind], {**live, "webhooks": [webhook]})

    def is_refused(kind: Resource = MUTATING_WEBHOOKS, **rule: Any) -> bool:
        return "podbridge registers for the creation" in refused(lambda: register(kind, **rule))

    try:
        for resources in (["secrets"], ["pods", "secrets"], ["*"], ["pods/exec"], ["namespaces"]):
            assert is_refused(resources=resources)
        register(resources=["pods"])
        register(VALIDATING_WEBHOOKS, **JOBS_OF_BATCH)
        assert is_refused(**JOBS_OF_BATCH), "a mutating webhook could change every Job"
        assert is_refused(VALIDATING_WEBHOOKS, policy="Fail", **JOBS_OF_BATCH)
        assert is_refused(VALIDATING_WEBHOOKS, **JOBS_OF_BATCH, operations=["CREATE", "UPDATE"])
        assert is_refused(VALIDATING_WEBHOOKS, apiGroups=["apps"], resources=["deployments"])
        assert is_refused(VALIDATING_WEBHOOKS, apiGroups=["batch"], resources=["*"])
    finally:
        for path in paths.values():
            live = world.admin.get(path)
            world.admin.replace(path, {**live, "webhooks": []})


def test_an_error_is_not_taken_for_a_refusal(world: Any) -> None:
    with pytest.raises((AssertionError, KubeError)):
        refused(lambda: world.kube_scheduler.create(PODS.path(OTHER), pod()))
