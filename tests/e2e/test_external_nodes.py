"""Kubernetes nodes without slurmd as external nodes of a real Slurm: registered, replaced, removed, also while busy."""

import re

import pytest

from bridge import names
from bridge.clock import SystemClock, rfc3339
from cluster.polling import eventually
from cluster.systems import kube
from cluster.systems.slurm import Size
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real

on_26_05 = pytest.mark.parametrize("world", ["26.05"], indirect=True)
NAME = "k8s-0"
SIZE = Size(cpus=8, memory=16_000, gpus=2)


TOPOLOGIES = """
- topology: default
  cluster_default: true
  flat: true
- topology: racks
  cluster_default: false
  tree:
    switches:
      - {switch: leaf-1, nodes: node-0}
      - {switch: leaf-2, nodes: node-1}
      - {switch: spine, children: "leaf-[1-2]"}
"""


@pytest.fixture
def node(clean, request):
    """The world with a labelled node that has no slurmd; the node is gone afterwards, also in Slurm.

    The parameter has further annotations of the node.
    """
    found = kube.node_object(NAME, SIZE)
    found["metadata"]["labels"][names.EXTERNAL_NODE_LABEL] = "true"
    found["metadata"]["annotations"] |= {names.EXTERNAL_NODE_PARTITIONS: "external", **getattr(request, "param", {})}
    clean.api.ensure("/api/v1/nodes", found)
    yield clean
    clean.clear()
    clean.api.request("DELETE", f"/api/v1/nodes/{NAME}")
    eventually(lambda: not slurm(clean), f"{NAME} not in Slurm", 30)


@pytest.fixture
def racks(clean):
    """A second topology in Slurm, a tree. The default one, of all other nodes, is flat, as without the file."""
    file = clean.cluster.state / "slurm" / "etc" / "topology.yaml"

    def restart():
        clean.cluster.stop_daemon("slurmctld")
        clean.cluster.start_daemon("slurmctld")

    file.write_text(TOPOLOGIES)
    try:
        restart()
        yield
    finally:
        file.unlink()
        restart()


def slurm(world):
    """Return the fields of the node in Slurm; empty if Slurm does not know it."""
    text = world.cluster.run_slurm("scontrol", "show", "node", NAME, check=False)
    found = dict(re.findall(r"(\w+)=(\S*)", text)) if "NodeName=" in text else {}
    reason = re.search(r"Reason=(.*?) \[", text)
    return {**found, "Reason": reason[1] if reason else ""} if found else {}


def patch(world, body, sub="", name=NAME):
    return world.api.merge(f"/api/v1/nodes/{name}{sub}", body)


def registered(world, cpus=8):
    def look():
        found = slurm(world)
        return found if found.get("CPUTot") == str(cpus) and "DRAIN" not in found["State"] else None

    return eventually(look, f"{NAME} registered with {cpus} CPUs", 30)


def drained(world, words):
    found = eventually(lambda: "DRAIN" in slurm(world).get("State", "") and slurm(world), f"{NAME} drained", 30)
    assert words in found["Reason"]
    assert found["Reason"].startswith("slurm-bridge:")
    return found


def resize(world, cpus):
    patch(world, {"status": {"allocatable": {"cpu": str(cpus)}, "capacity": {"cpu": str(cpus)}}}, "/status")


def crash(world):
    """Kill podbridge and start it again."""
    world.cluster.kill("podbridge")
    restart(world)


def restart(world):
    """Start podbridge after a kill. The leases of the killed process end at once, to save 15 s."""
    for part in ("scheduler", "controllers"):
        path = f"/apis/coordination.k8s.io/v1/namespaces/podbridge/leases/podbridge-{part}"
        world.api.merge(path, {"spec": {"holderIdentity": ""}})
    world.cluster.start_podbridge()


def running_pod(world, **more):
    gpu = {"resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}}
    container = {"name": "main", "image": "none", **gpu}
    pod = world.running(world.create(job={"partition": "external"}, containers=[container], **more))
    assert pod["spec"]["nodeName"] == NAME
    return pod


def tainted(world):
    return any(taint["key"] == names.MANAGED_TAINT for taint in world.kube_node(NAME)["spec"].get("taints") or ())


def problem(world, name=NAME):
    return (world.kube_node(name)["metadata"].get("annotations") or {}).get(names.EXTERNAL_NODE_PROBLEM, "")


def node_events(world, reason, name=NAME):
    items = world.api("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [e["note"] for e in items if e["reason"] == reason and e["regarding"]["name"] == name]


@on_26_05
def test_a_pod_runs_on_a_node_without_slurmd_that_changes_and_goes_while_busy(node):
    found = registered(node)
    assert "EXTERNAL" in found["State"]
    assert (found["RealMemory"], found["Gres"], found["Partitions"]) == ("16000", "gpu:2", "external")
    assert tainted(node)
    pod = running_pod(node)
    job = node.job_of(pod)

    resize(node, 16)
    drained(node, "have changed")
    crash(node)
    node.polled(4)
    assert slurm(node)["CPUTot"] == "8"
    assert node.queue() == {job: "RUNNING"}
    assert node.get(pod)["status"]["phase"] == "Running"
    node.delete(pod, 0)
    registered(node, 16)
    assert tainted(node)

    resize(node, 4)
    eventually(lambda: slurm(node).get("CPUTot") == "4", f"{NAME} is smaller", 30)
    pod = running_pod(node)
    resize(node, 6)
    drained(node, "have changed")
    # the state after a kill between the deletion and the creation
    node.cluster.kill("podbridge")
    node.slurm("scancel", str(node.job_of(pod)))
    eventually(lambda: "IDLE" in slurm(node)["State"], f"{NAME} without a job", 30)
    node.slurm("scontrol", "delete", f"nodename={NAME}")
    restart(node)
    registered(node, 6)
    node.delete(pod, 0)

    pod = running_pod(node)
    patch(node, {"metadata": {"labels": {names.EXTERNAL_NODE_LABEL: None}}})
    drained(node, "has lost the label")
    crash(node)
    node.polled(4)
    assert node.get(pod)["status"]["phase"] == "Running"
    assert slurm(node)
    assert tainted(node)
    node.delete(pod, 0)
    eventually(lambda: not slurm(node), f"{NAME} deleted in Slurm", 30)
    eventually(lambda: not tainted(node), f"{NAME} without the taint", 30)
    assert node_events(node, "ExternalNodeDeleted")


@on_26_05
def test_a_pending_job_that_excludes_a_deleted_node_is_submitted_again(node):
    """From the deletion on, slurmctld refuses every update of such a job, also that of its comment."""
    registered(node)
    on_a_slurmd = {"nodeSelector": {"kubernetes.io/hostname": "node-0"}, "job": {"partition": "external,main"}}
    first = node.running(node.create(cpu="128", **on_a_slurmd))
    second = node.create(cpu="128", **on_a_slurmd)
    job = node.labelled(second)
    excluded = eventually(lambda: node.job(job).get("ExcNodeList"), "excluded nodes")
    assert NAME in excluded
    patch(node, {"metadata": {"labels": {names.EXTERNAL_NODE_LABEL: None}}})
    eventually(lambda: not slurm(node), f"{NAME} deleted in Slurm", 30)
    eventually(lambda: node.queue().get(job) is None, "the job is given back", 30)
    again = eventually(lambda: set(node.queue()) - {node.job_of(first)}, "another job", 30)
    assert NAME not in node.job(again.pop()).get("ExcNodeList", "")
    node.delete(first, 1)
    assert node.running(second)["spec"]["nodeName"] == "node-0"


@on_26_05
@pytest.mark.parametrize(
    "node", [{names.EXTERNAL_NODE_FEATURES: "ssd,fast", names.TOPOLOGY_SPEC: "racks:leaf-1"}], indirect=True
)
def test_a_node_has_the_features_and_the_topology_of_its_annotations(racks, node):
    found = registered(node)
    assert found["AvailableFeatures"].startswith("external,ssd,fast,podbridge-")
    assert found["Topology"] == "racks:leaf-1"
    pod = node.running(node.create(job={"partition": "external", "constraints": "ssd&fast"}))
    assert node.job(node.job_of(pod))["Features"] == "ssd&fast"

    patch(node, {"metadata": {"annotations": {names.TOPOLOGY_SPEC: "racks:leaf-2"}}})
    drained(node, "have changed")
    node.polled()
    assert node.get(pod)["status"]["phase"] == "Running"
    assert slurm(node)["Topology"] == "racks:leaf-1"
    node.delete(pod, 0)
    eventually(lambda: slurm(node).get("Topology") == "racks:leaf-2", f"{NAME} created again", 30)
    assert registered(node)["AvailableFeatures"].startswith("external,ssd,fast,podbridge-")


@on_26_05
def test_devices_of_resource_slices_are_gres_and_the_claim_of_a_pod_gets_those_that_slurm_chose(node):
    driver, dra = "gpu.example.com", "/apis/resource.k8s.io/v1"
    selector = {"cel": {"expression": f'device.driver == "{driver}"'}}
    patch(node, {"status": {part: {"nvidia.com/gpu": None} for part in ("allocatable", "capacity")}}, "/status")
    eventually(lambda: slurm(node).get("Gres") == "(null)", f"{NAME} without GPUs", 30)
    pool = {"name": NAME, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"card-{3 - n}", "attributes": {"index": {"int": n}}} for n in range(4)]
    made = (
        (f"{dra}/deviceclasses", {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}),
        (
            f"{dra}/resourceslices",
            {
                "metadata": {"name": f"{NAME}-{driver}"},
                "spec": {"driver": driver, "nodeName": NAME, "pool": pool, "devices": devices},
            },
        ),
    )
    claims = f"{dra}/namespaces/{NAMESPACE}/resourceclaims"
    for path, body in made:
        node.api("POST", path, body)
    try:
        eventually(lambda: slurm(node).get("Gres") == "gpu:4", f"{NAME} with its devices", 30)
        registered(node)
        used = set()
        for number in range(2):
            wanted = {"name": "r", "exactly": {"deviceClassName": driver, "count": 2}}
            body = {"metadata": {"name": f"c{number}"}, "spec": {"devices": {"requests": [wanted]}}}
            node.api("POST", claims, body)
            source = {"name": "d", "resourceClaimName": f"c{number}"}
            pod = node.running(node.create(job={"partition": "external"}, resourceClaims=[source]))
            text = node.slurm("scontrol", "show", "job", "-d", str(node.job_of(pod)))
            first, last = re.search(r"GRES=gpu:2\(IDX:(\d)-(\d)\)", text).groups()
            results = node.api("GET", f"{claims}/c{number}")["status"]["allocation"]["devices"]["results"]
            assert {one["device"] for one in results} == {f"card-{3 - int(n)}" for n in (first, last)}
            used |= {one["device"] for one in results}
        assert len(used) == 4
    finally:
        node.clear()
        for number in range(2):
            node.api.request("DELETE", f"{claims}/c{number}")
        for path, body in made:
            node.api("DELETE", f"{path}/{body['metadata']['name']}")


@on_26_05
def test_a_name_of_a_slurmd_node_is_refused_with_an_event(clean):
    before = clean.node("node-1")
    words = "Slurm has a node node-1 that podbridge did not create for this cluster"
    patch(clean, {"metadata": {"labels": {names.EXTERNAL_NODE_LABEL: ""}}}, name="node-1")
    try:
        eventually(lambda: problem(clean, "node-1") == words, "the problem on node-1")
        eventually(lambda: words in node_events(clean, "ExternalNodeRefused", "node-1"), "the Event on node-1")
        assert clean.node("node-1") == before
    finally:
        patch(clean, {"metadata": {"labels": {names.EXTERNAL_NODE_LABEL: None}}}, name="node-1")
    eventually(lambda: not problem(clean, "node-1"), "no problem on node-1")


@pytest.mark.parametrize("world", ["24.11", "22.05"], indirect=True)
def test_a_version_without_external_nodes_says_so(node):
    eventually(lambda: "has no external nodes" in problem(node), f"the problem on {NAME}")
    eventually(lambda: node_events(node, "ExternalNodeRefused"), f"the Event on {NAME}")
    assert not slurm(node)
    assert not tainted(node)


@pytest.mark.parametrize("world", ["26.05", "24.11"], indirect=True)
def test_a_node_with_slurmd_that_is_not_ready_is_drained_and_comes_back(clean):
    """The kubelet stops, slurmd does not; an administrator's drain is neither changed nor resumed."""
    path, strategic = "/api/v1/nodes/node-2", "application/strategic-merge-patch+json"
    kept = clean.kube_node("node-2")["metadata"]["annotations"][kube.KWOK_ANNOTATION]

    def ready(value):
        moment = rfc3339(SystemClock().time())
        condition = {"type": "Ready", "status": value, "reason": "Test", "lastTransitionTime": moment}
        clean.api("PATCH", f"{path}/status", {"status": {"conditions": [condition]}}, strategic)

    def reason():
        text = clean.slurm("scontrol", "show", "node", "node-2")
        found = re.search(r"Reason=(.*?) \[", text)
        return found[1] if found and "DRAIN" in text else ""

    patch(clean, {"metadata": {"annotations": {kube.KWOK_ANNOTATION: None}}}, name="node-2")
    try:
        ready("Unknown")
        words = "slurm-bridge: Kubernetes node node-2 is not Ready"
        eventually(lambda: reason() == words, "node-2 drained", 30)
        assert not clean.kube_node("node-2")["spec"].get("unschedulable")
        ready("True")
        eventually(lambda: not reason(), "node-2 resumed", 30)

        ready("Unknown")
        eventually(lambda: reason() == words, "node-2 drained", 30)
        clean.slurm("scontrol", "update", "nodename=node-2", "state=drain", "reason=disk")
        ready("True")
        eventually(lambda: clean.kube_node("node-2")["spec"].get("unschedulable"), "node-2 cordoned", 30)
        clean.polled(3)
        assert reason() == "disk"
    finally:
        ready("True")
        patch(clean, {"metadata": {"annotations": {kube.KWOK_ANNOTATION: kept}}}, name="node-2")
        clean.cluster.run_slurm("scontrol", "update", "nodename=node-2", "state=resume", check=False)
    eventually(lambda: not clean.kube_node("node-2")["spec"].get("unschedulable"), "node-2 uncordoned", 30)
