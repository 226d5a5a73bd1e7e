from __future__ import annotations

from typing import Any

import pytest

from bridge import clock, errors
from bridge.kube.access_review import allowed
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import JOBS, LEASES, NAMESPACES, NODES, PODS, SECRETS, Resource, resource_of
from bridge.workload import pods
from cluster.polling import eventually

pytestmark = pytest.mark.real

ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", True)
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", True)


def secret(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def test_object_from_beginning_to_end(client: KubeClient, namespace: str) -> None:
    path = SECRETS.path(namespace, "s")
    created = client.create(SECRETS.path(namespace), secret("s", a="1"))
    assert client.get(path)["metadata"]["uid"] == created["metadata"]["uid"]
    assert client.patch(path, {"metadata": {"labels": {"x": "1"}}})["metadata"]["labels"] == {"x": "1"}
    operations = [{"op": "remove", "path": "/metadata/labels/x"}]
    assert not client.patch(path, operations, kind="json")["metadata"].get("labels")
    strategic = {"metadata": {"labels": {"y": "1"}}}
    assert client.patch(path, strategic, kind="strategic")["metadata"]["labels"] == {"y": "1"}
    applied = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": {"z": "1"}}}
    applied = client.patch(path, applied, kind="apply", params={"fieldManager": "test", "force": True})
    assert applied["metadata"]["labels"] == {"y": "1", "z": "1"}
    applied["metadata"]["labels"] = {}
    assert not client.replace(path, applied)["metadata"].get("labels")
    with pytest.raises(errors.KubeConflictError):
        client.replace(path, applied)
    with pytest.raises(errors.KubeConflictError):
        client.delete(path, {"preconditions": {"uid": "other"}})
    client.delete(path, {"preconditions": {"uid": created["metadata"]["uid"]}})
    with pytest.raises(errors.KubeNotFoundError):
        client.get(path)


def test_errors_of_the_real_server(client: KubeClient, namespace: str, cluster: Any) -> None:
    client.create(SECRETS.path(namespace), secret("s"))
    with pytest.raises(errors.KubeConflictError) as exists:
        client.create(SECRETS.path(namespace), secret("s"))
    assert exists.value.kube_reason == "AlreadyExists"
    with pytest.raises(errors.KubeInvalidError, match=r"Invalid: .*No_Such_Name.*\(422\)"):
        client.create(NAMESPACES.path(), {"metadata": {"name": "No_Such_Name"}})
    with pytest.raises(errors.KubeInvalidError):
        client.create(SECRETS.path(namespace), {"apiVersion": "v1", "kind": "Secret", "data": 7})
    with pytest.raises(errors.KubeUnavailableError, match="not served, or refused by a proxy"):
        client.get("/apis/nobody.example/v1/things")
    nobody = KubeClient.load(str(cluster.user_kubeconfig("nobody")))
    with pytest.raises(errors.KubeForbiddenError, match="nobody"):
        nobody.get(PODS.path(namespace))


def test_an_empty_list_of_metadata_has_items(client: KubeClient, namespace: str) -> None:
    assert client.get(PODS.path(namespace), {"limit": 2}, metadata_only=True)["items"] == []
    assert client.get(PODS.path(namespace))["items"] == []


def test_metadata_only(client: KubeClient, namespace: str) -> None:
    client.create(SECRETS.path(namespace), secret("s", a="1"))
    one = client.get(SECRETS.path(namespace, "s"), metadata_only=True)
    assert (one["kind"], "data" in one, one["metadata"]["name"]) == ("PartialObjectMetadata", False, "s")
    many = client.get(SECRETS.path(namespace), metadata_only=True)
    assert many["kind"] == "PartialObjectMetadataList"
    assert all("data" not in item for item in many["items"])


def test_watch_of_everything_that_comes(client: KubeClient, namespace: str) -> None:
    version = client.get(SECRETS.path(namespace), {"limit": 1})["metadata"]["resourceVersion"]
    client.create(SECRETS.path(namespace), secret("s", a="1"))
    client.delete(SECRETS.path(namespace, "s"))
    params = {"resourceVersion": version, "timeoutSeconds": 1}
    events = list(client.watch(SECRETS.path(namespace), params, idle_timeout=10))
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]


def test_silent_watch_is_given_up(client: KubeClient, namespace: str) -> None:
    version = client.get(SECRETS.path(namespace), {"limit": 1})["metadata"]["resourceVersion"]
    with pytest.raises(errors.KubeUnavailableError) as caught:
        list(client.watch(SECRETS.path(namespace), {"resourceVersion": version}, idle_timeout=0.3))
    assert caught.value.kube_reason == "IdleTimeout"


@pytest.mark.parametrize("resource", [PODS, NODES, NAMESPACES, SECRETS, LEASES, JOBS])
def test_paths_are_those_of_the_server(client: KubeClient, resource: Resource) -> None:
    assert client.get(resource.path(), {"limit": 1})["kind"].endswith("List")


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("networking.k8s.io/v1", "NetworkPolicy")],
)
def test_owners_are_found(client: KubeClient, namespace: str, api_version: str, kind: str) -> None:
    with pytest.raises(errors.KubeNotFoundError):
        client.get(resource_of(api_version, kind).path(namespace, "none"))


def test_permission_on_a_resource_that_does_not_exist(client: KubeClient, namespace: str) -> None:
    rule = {"apiGroups": ["bridge.vk.io"], "resources": ["slurmjobs/priority"], "verbs": ["use"]}
    client.create(ROLES.path(namespace), {"metadata": {"name": "r"}, "rules": [rule]})
    reference = {"apiGroup": ROLES.group, "kind": "Role", "name": "r"}
    subject = {"apiGroup": ROLES.group, "kind": "Group", "name": "team"}
    client.create(BINDINGS.path(namespace), {"metadata": {"name": "r"}, "roleRef": reference, "subjects": [subject]})
    asked = {"verb": "use", "group": "bridge.vk.io", "resource": "slurmjobs"}
    ann = {"username": "ann", "groups": ["team"], "uid": "1", "extra": {"k": ["v"]}}
    bob = {"username": "bob", "groups": ["other"]}
    eventually(lambda: allowed(client, ann, **asked, subresource="priority", namespace=namespace))
    assert not allowed(client, ann, **asked, subresource="user-id", namespace=namespace)
    assert not allowed(client, ann, **asked, subresource="priority", namespace="default")
    assert not allowed(client, bob, **asked, subresource="priority", namespace=namespace)


def test_bearer_token(client: KubeClient, cluster: Any, tmp_path: Any) -> None:
    import yaml

    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "wrong"}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(errors.KubeForbiddenError, match="401"):
        KubeClient.load(str(file)).get(PODS.path())


def create_pod(client: KubeClient, namespace: str) -> dict[str, Any]:
    spec = {"schedulerName": "none", "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "i"}]}
    return client.create(PODS.path(namespace), {"metadata": {"name": "p"}, "spec": spec})


def test_a_second_deletion_of_a_pod_shortens_its_grace_period_and_a_longer_one_changes_nothing(
    client: KubeClient, namespace: str
) -> None:
    """podbridge limits the grace period of a pod that is already deleted; its finalizer keeps the pod meanwhile."""
    pod = create_pod(client, namespace)
    path = PODS.path(namespace, "p")
    client.patch(path, pods.hold_patch(pod, 1, "slurm"), kind="strategic")
    client.create(f"{path}/binding", {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "no-kubelet"}})
    year = 31536000
    first = client.delete(path, {"gracePeriodSeconds": year})["metadata"]
    requested = clock.parse_rfc3339(first["deletionTimestamp"]) - year
    for grace in (300, year, None, 301):
        options = {"preconditions": {"uid": pods.uid(pod)}} | ({} if grace is None else {"gracePeriodSeconds": grace})
        client.delete(path, options)
        found = client.get(path)["metadata"]
        assert found["deletionGracePeriodSeconds"] == 300
        assert clock.parse_rfc3339(found["deletionTimestamp"]) == requested + 300
    client.delete(path, {"gracePeriodSeconds": 0})
    assert client.get(path)["metadata"]["deletionGracePeriodSeconds"] == 0
    client.patch(path, pods.unhold_patch(pod), kind="strategic")
    with pytest.raises(errors.KubeNotFoundError):
        client.get(path)


@pytest.mark.parametrize("sub", [None, "status"])
def test_a_patch_for_another_pod_of_the_same_name_is_a_conflict(
    client: KubeClient, namespace: str, sub: str | None
) -> None:
    pod = create_pod(client, namespace)
    former = {**pod, "metadata": {**pod["metadata"], "uid": "5e3c0000-1111-4222-8333-444455556666"}}
    patch = pods.condition_patch(former, "PodScheduled", "False", "Late", "", "2026-01-01T00:00:00Z")
    for body in (patch, pods.unhold_patch(former)):
        with pytest.raises(errors.KubeConflictError, match=r"metadata\.uid.*\(422\)"):
            client.patch(PODS.path(namespace, "p", sub), body, kind="strategic")
    assert client.get(PODS.path(namespace, "p")) == pod
    client.delete(PODS.path(namespace, "p"), {"gracePeriodSeconds": 0})


def test_a_conditional_patch_of_a_pod_that_another_process_has_written_is_refused(
    client: KubeClient, namespace: str
) -> None:
    before = create_pod(client, namespace)
    path = PODS.path(namespace, "p")
    held = client.patch(path, pods.conditional(pods.hold_patch(before, 1, "slurm"), before), kind="strategic")
    assert pods.job_id(held) == 1
    for patch in (pods.forget_job_patch(before), pods.unhold_patch(before), pods.hold_patch(before, 2, "slurm")):
        with pytest.raises(errors.KubeConflictError):
            client.patch(path, pods.conditional(patch, before), kind="strategic")
    condition = pods.condition_patch(before, "PodScheduled", "False", "Late", "", "2026-01-01T00:00:00Z")
    with pytest.raises(errors.KubeConflictError):
        client.patch(f"{path}/status", pods.conditional(condition, before), kind="strategic")
    assert client.get(path) == held
    client.patch(path, pods.conditional(pods.unhold_patch(held), held), kind="strategic")
    client.delete(path, {"gracePeriodSeconds": 0})
