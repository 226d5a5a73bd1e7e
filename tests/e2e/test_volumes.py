"""Pods get nodes that their volumes allow. kube-controller-manager binds claims; the test plays a provisioner."""

import threading
from contextlib import contextmanager

import pytest

from cluster.polling import eventually
from cluster.world import NAMESPACE
from tests.e2e.test_commands import podbridge

pytestmark = pytest.mark.real

CLAIMS = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
EXCLUDES = pytest.mark.not_on("22.05", reason="its API cannot exclude the nodes that a volume does not allow")
LOCAL, DELAYED, AT_ONCE = "test-local", "test-delayed", "test-at-once"
HOSTNAME = "kubernetes.io/hostname"
SELECTED = "volume.kubernetes.io/selected-node"


@pytest.fixture(scope="module")
def classes(world):
    """Local volumes, and two classes whose provisioner is the test."""
    for name, provisioner, mode, more in (
        (LOCAL, "kubernetes.io/no-provisioner", "WaitForFirstConsumer", {}),
        (DELAYED, "example.com/test", "WaitForFirstConsumer", {"allowedTopologies": [topology("node-2", "node-3")]}),
        (AT_ONCE, "example.com/test", "Immediate", {}),
    ):
        body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **more}
        world.api("POST", CLASSES, body)
    yield
    for name in (LOCAL, DELAYED, AT_ONCE):
        world.api("DELETE", f"{CLASSES}/{name}")


@pytest.fixture
def storage(clean, classes):
    """The world with storage classes; no claims and volumes before and after."""
    yield clean
    clean.clear()
    for path in (CLAIMS, VOLUMES):
        for found in clean.api("GET", path)["items"]:
            clean.api.request("DELETE", f"{path}/{found['metadata']['name']}")
    eventually(lambda: not clean.api("GET", CLAIMS)["items"], "no claims")
    eventually(lambda: not clean.api("GET", VOLUMES)["items"], "no volumes")


def topology(*hosts):
    return {"matchLabelExpressions": [{"key": HOSTNAME, "values": list(hosts)}]}


def volume(world, name, node, storage_class=LOCAL, size="10Gi", claim=None, mode="ReadWriteOnce"):
    expression = {"key": HOSTNAME, "operator": "In", "values": [node]}
    spec = {
        "capacity": {"storage": size},
        "accessModes": [mode],
        "storageClassName": storage_class,
        "local": {"path": f"/mnt/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    if claim:
        metadata = claim["metadata"]
        spec["claimRef"] = {key: metadata[key] for key in ("name", "namespace", "uid")}
    return world.api("POST", VOLUMES, {"metadata": {"name": name}, "spec": spec})


def claim(world, name, storage_class=LOCAL, size="5Gi", mode="ReadWriteOnce", **spec):
    asked = {"accessModes": [mode], "resources": {"requests": {"storage": size}}, "storageClassName": storage_class}
    return world.api("POST", CLAIMS, {"metadata": {"name": name}, "spec": asked | spec})


def bound(world, name):
    found = world.api("GET", f"{CLAIMS}/{name}")
    return found if found["status"]["phase"] == "Bound" else None


def mounts(*names):
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]


def told(world, pod, reason):
    condition = world.condition(pod, "PodScheduled")
    return condition.get("reason") == reason and condition["message"]


@EXCLUDES
def test_a_bound_volume_decides_the_node(storage):
    world = storage
    for number in (3, 1):
        volume(world, f"data-{number}", f"node-{number}", AT_ONCE)
        claim(world, f"data-{number}", AT_ONCE, volumeName=f"data-{number}")
        eventually(lambda n=number: bound(world, f"data-{n}"), "bound by kube-controller-manager")
        pod = world.bound(world.create(volumes=mounts(f"data-{number}")))
        assert pod["spec"]["nodeName"] == f"node-{number}"
    both = world.create(volumes=mounts("data-1", "data-3"))
    message = eventually(lambda: told(world, both, "Unschedulable"), "no node has both")
    story = podbridge(world, "explain", "pod", both["metadata"]["name"], "-n", NAMESPACE).stdout
    assert "claim data-1: Bound, volume data-1" in story
    assert "node-0, node-1, node-2, node-3: never fits: node affinity of a PersistentVolume does not match" in story
    assert "4 node affinity of a PersistentVolume does not match" in message


@EXCLUDES
def test_a_claim_that_does_not_exist_or_is_not_bound_is_waited_for(storage):
    world = storage
    pod = world.create(volumes=mounts("later"))
    assert "later does not exist" in eventually(lambda: told(world, pod, "VolumeNotReady"), "no claim")
    created = claim(world, "later", AT_ONCE)
    world.polled()
    assert not world.queue(), "no job is submitted for a pod that cannot start"
    volume(world, "found", "node-2", AT_ONCE, claim=created)
    assert world.bound(pod)["spec"]["nodeName"] == "node-2"


@EXCLUDES
def test_a_local_volume_is_claimed_on_the_node_of_the_job(storage):
    world = storage
    for number, size in ((0, "1Gi"), (1, "20Gi"), (2, "10Gi"), (3, "10Gi")):
        volume(world, f"disk-{number}", f"node-{number}", size=size)
    eventually(lambda: all(v["status"]["phase"] == "Available" for v in world.api("GET", VOLUMES)["items"]), "free")
    pods = []
    for number in range(3):
        claim(world, f"scratch-{number}")
        pods.append(world.create(volumes=mounts(f"scratch-{number}")))
    nodes = {}
    for number, pod in enumerate(pods):
        node = world.bound(pod, 40)["spec"]["nodeName"]
        nodes[node] = bound(world, f"scratch-{number}")["spec"]["volumeName"]
    assert nodes == {f"node-{n}": f"disk-{n}" for n in (1, 2, 3)}, "disk-0 is too small"
    claim(world, "scratch-4")
    pod = world.create(volumes=mounts("scratch-4"))
    message = eventually(lambda: told(world, pod, "Unschedulable"), "no disk left")
    assert f"4 no free PersistentVolume of StorageClass {LOCAL} fits" in message


@EXCLUDES
def test_a_provisioner_gets_the_node_of_the_job_and_the_pod_starts_when_its_claim_is_bound(storage):
    world = storage
    claim(world, "made", DELAYED)
    ephemeral = {"volumeClaimTemplate": {"spec": claim_spec(DELAYED)}}
    pod = world.create(volumes=[*mounts("made"), {"name": "own", "ephemeral": ephemeral}])
    names = ("made", f"{pod['metadata']['name']}-own")
    selected = {}

    def provision(name):
        def node():
            status, found = world.api.request("GET", f"{CLAIMS}/{name}")
            return status == 200 and (found["metadata"].get("annotations") or {}).get(SELECTED) and found

        found = eventually(node, f"a node for {name}")
        selected[name] = found["metadata"]["annotations"][SELECTED]
        assert not world.get(pod)["spec"].get("nodeName"), "bound before its volume exists"
        eventually(lambda: told(world, pod, "VolumeBinding"), "the condition")
        volume(world, f"pv-{name}", selected[name], DELAYED, claim=found)

    threads = [threading.Thread(target=provision, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    found = world.bound(pod, 40)
    for thread in threads:
        thread.join()
    assert selected == dict.fromkeys(names, found["spec"]["nodeName"])
    assert found["spec"]["nodeName"] in ("node-2", "node-3"), "allowedTopologies"
    assert all(bound(world, name) for name in names)


def claim_spec(storage_class):
    return {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": storage_class,
    }


@contextmanager
def unprovisioned(world):
    """A volume of a class whose provisioner does not run: the bind of its pod waits."""
    name = "test-unprovisioned"
    spec = {"provisioner": "example.com/none", "volumeBindingMode": "WaitForFirstConsumer"}
    world.api("POST", CLASSES, {"metadata": {"name": name}, **spec})
    try:
        yield {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(name)}}}
    finally:
        world.api("DELETE", f"{CLASSES}/{name}")


@EXCLUDES
def test_a_claim_for_one_pod_is_used_by_one_pod_at_a_time(storage):
    world = storage
    volume(world, "single", "node-0", AT_ONCE, mode="ReadWriteOncePod")
    claim(world, "single", AT_ONCE, mode="ReadWriteOncePod", volumeName="single")
    eventually(lambda: bound(world, "single"), "bound")
    pods = [world.create(volumes=mounts("single")) for _ in range(2)]
    first = eventually(lambda: next((p for p in map(world.get, pods) if p["spec"].get("nodeName")), None), "one bound")
    (other,) = (pod for pod in pods if pod["metadata"]["uid"] != first["metadata"]["uid"])
    message = eventually(lambda: told(world, other, "VolumeInUse"), "the other waits")
    assert f"{NAMESPACE}/{first['metadata']['name']} uses it" in message
    world.delete(first, grace=1)
    assert world.bound(other, 40)["spec"]["nodeName"] == "node-0"


def test_members_of_a_group_get_their_local_volumes_together(storage):
    world = storage
    for number in range(4):
        volume(world, f"part-{number}", f"node-{number}")
    eventually(lambda: all(v["status"]["phase"] == "Available" for v in world.api("GET", VOLUMES)["items"]), "free")
    ephemeral = {"volumeClaimTemplate": {"spec": claim_spec(LOCAL)}}
    gang = world.create_gang("local", 3, volumes=[{"name": "own", "ephemeral": ephemeral}])
    eventually(lambda: len([p for p in world.members(gang) if p["spec"].get("nodeName")]) == 3, "all bound", 40)
    used = {bound(world, f"{p['metadata']['name']}-own")["spec"]["volumeName"]: p for p in world.members(gang)}
    assert {name: f"part-{pod['spec']['nodeName'][-1]}" for name, pod in used.items()} == {n: n for n in used}
    world.delete_gang(gang)
