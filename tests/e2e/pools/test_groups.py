"""The pods of a group at a site: one batch job, all start or none, and they find each other by Kubernetes' names."""

import json

import pytest

from bridge.names import FLAVOR_LIMITS
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.ports import free_block
from tests.e2e.pools.groups import JOBS, SIZE, delete, members, nothing_left, start
from tests.e2e.pools.test_commands import enter

pytestmark = pytest.mark.real

SITES = ("local-site", "slurm-site", "condor-site")
RING = """
import os, socket, sys, time
name, port = sys.argv[1], int(sys.argv[2])
rank, size = int(os.environ["PODBRIDGE_GROUP_RANK"]), int(os.environ["PODBRIDGE_GROUP_SIZE"])
server = socket.create_server(("", port + rank))
after = (rank + 1) % size
while True:
    try:
        out = socket.create_connection((f"{name}-{after}.{name}", port + after), 5)
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
out.sendall(f"hello from {rank}".encode())
out.close()
print(server.accept()[0].recv(100).decode(), flush=True)
"""


@pytest.mark.parametrize("site", SITES)
def test_the_members_of_a_job_are_one_job_at_the_site_and_find_each_other(pools_world, site):
    world, name = pools_world, f"ring-{site}"
    pods = start(world, name, site, f"python3 -c '{RING}' {name} {free_block(SIZE)}")
    ended = [world.ended(pod) for pod in pods]
    assert [world.logs(pod) for pod in ended] == [f"hello from {(rank - 1) % SIZE}\n" for rank in range(SIZE)]
    assert [pod["status"]["phase"] for pod in ended] == ["Succeeded"] * SIZE
    assert len({world.remote_job(pod) for pod in ended}) == 1
    eventually(lambda: world.api("GET", f"{JOBS}/{name}")["status"].get("succeeded") == SIZE, "the Job is complete")
    delete(world, name)
    nothing_left(world, site)


@pytest.mark.parametrize("site", SITES[:2])
def test_a_member_that_is_deleted_gets_a_successor_in_the_same_job(pools_world, site):
    world, name = pools_world, f"heir-{site}"
    pods = start(world, name, site, "echo $PODBRIDGE_GROUP_RANK; sleep 300")
    running = [world.running(pod, 60) for pod in pods]
    (job,) = {world.remote_job(pod) for pod in running}
    check_commands(world, running)
    world.delete(running[1], grace=1)
    world.gone(running[1])
    heir = world.running(eventually(lambda: len(found := members(world, name)) == SIZE and found[1], "an heir"), 60)
    assert heir["metadata"]["uid"] != running[1]["metadata"]["uid"]
    assert world.remote_job(heir) == job
    eventually(lambda: world.logs(heir, check=False) == "1\n", "the rank of the one before")
    assert [world.get(pod)["status"]["phase"] for pod in (running[0], running[2])] == ["Running"] * 2
    delete(world, name)
    nothing_left(world, site)


def check_commands(world, pods):
    """``kubectl exec`` enters the container of each pod of a group."""
    for rank, pod in enumerate(pods):
        assert enter(world, pod, "sh", "-c", "echo $PODBRIDGE_GROUP_RANK")[:2] == (0, f"{rank}\n".encode())


def test_commands_enter_the_pods_of_a_group_that_request_different_resources(pools_world):
    """Each component of the heterogeneous job is entered by its number; the containers are apptainer's."""
    world, name = pools_world, "mixed"
    annotations = {"bridge.vk.io/pools": "apptainer-site", "kueue.x-k8s.io/pod-group-total-count": "2"}
    pods = []
    for number in range(2):
        resources = {"requests": {"cpu": str(1 + number), "memory": "32Mi"}}
        container = {"name": "main", "image": "busybox", "command": ["sleep", "300"], "resources": resources}
        labels = {"kueue.x-k8s.io/pod-group-name": name, "kueue.x-k8s.io/pod-group-pod-index-label": str(number)}
        metadata = {"name": f"{name}-{number}", "labels": labels, "annotations": annotations}
        spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1}
        pods.append(world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec}))
    check_commands(world, [world.running(pod, 90) for pod in pods])
    world.clear()


def test_a_group_waits_for_its_members_and_says_so(pools_world):
    """One member may not be scheduled yet: nothing starts, and the others say what they wait for."""
    world, name = pools_world, "gated"
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo ran"]}
    label = {"kueue.x-k8s.io/pod-group-name": name}
    annotations = {"bridge.vk.io/pools": "local-site", "kueue.x-k8s.io/pod-group-total-count": "2"}

    def create(number):
        metadata = {"name": f"{name}-{number}", "labels": label, "annotations": annotations}
        spec = {"restartPolicy": "Never", "containers": [container]}
        return world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})

    first = create(0)
    eventually(lambda: world.condition(first, "PodScheduled").get("reason") == "GangIncomplete", "waits")
    assert not world.get(first)["spec"].get("nodeName")
    second = create(1)
    pods = [world.ended(pod) for pod in (first, second)]
    assert len({world.remote_job(pod) for pod in pods}) == 1
    world.clear()


@pytest.fixture
def limit(pools_world):
    """Return a function that limits the CPUs of a group at the site; a pod may have as many."""
    world, site = pools_world, "local-site"

    def configure(overrides):
        world.cluster.stop_submitter(site)
        world.cluster.start_submitter(site, overrides)
        world.ready(site)

    yield lambda cpus: configure({"flavors": [{"name": "f", "max_group_resources": {"cpu": cpus}}]})
    configure({})


def test_a_group_that_is_larger_than_a_flavor_allows_waits_with_the_limit(pools_world, limit):
    """No pod is bound until the site allows more."""
    world, site, name = pools_world, "local-site", "limited"
    limit("2")
    told = (
        "spec.containers: no flavor of this site covers what the pod asks for: "
        "f: at most cpu 2 for the pods of a group together"
    )
    eventually(lambda: FLAVOR_LIMITS in world.api("GET", f"/api/v1/nodes/{site}")["metadata"]["annotations"], "limits")
    pods = start(world, name, site, "echo ran")
    message = f"no pool takes the {SIZE} pods of the group: {site} ({told})"
    for pod in pods:
        eventually(lambda pod=pod: world.condition(pod, "PodScheduled").get("message") == message, "waits")
    (place,) = world.explained("pod", pods[0]["metadata"]["name"], NAMESPACE)["places"]
    assert (place["place"], place["eligible"], place["reason"]) == (site, False, told)
    limit("3")
    assert len({world.remote_job(world.ended(pod)) for pod in pods}) == 1
    delete(world, name)
    nothing_left(world, site)


def test_two_groups_that_need_more_than_half_of_a_site_run_one_after_the_other(pools_world):
    """Their pods are created alternately; neither keeps a part of the site while it waits for the rest."""
    world = pools_world
    shapes = {"local-site": ("6", "3"), "slurm-site": ("25", "2")}  # CPUs of each pod, pods on a node
    pods = {(site, side): [] for site in shapes for side in ("left", "right")}
    for number in range(SIZE):
        for (site, side), group in pods.items():
            cpus, per_node = shapes[site]
            name, requests = f"{side}-{site}", {"requests": {"cpu": cpus, "memory": "32Mi"}}
            container = {"name": "main", "image": "busybox", "command": ["sleep", "2"], "resources": requests}
            metadata = {"name": f"{name}-{number}", "labels": {"kueue.x-k8s.io/pod-group-name": name}}
            metadata["annotations"] = {
                "bridge.vk.io/pools": site,
                "bridge.vk.io/members-per-node": per_node,
                "kueue.x-k8s.io/pod-group-total-count": str(SIZE),
            }
            body = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}
            group.append(world.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body))
    times = {site: [] for site in shapes}
    for (site, _), group in pods.items():
        ends = [world.ended(pod) for pod in group]
        assert {pod["status"]["phase"] for pod in ends} == {"Succeeded"}
        assert len({world.remote_job(pod) for pod in ends}) == 1
        states = [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in ends]
        times[site].append((min(state["startedAt"] for state in states), max(state["finishedAt"] for state in states)))
    for first, second in map(sorted, times.values()):
        assert first[1] <= second[0], "no time in common"
    world.clear()


def test_the_end_of_the_job_ends_every_member(pools_world):
    world, site, name = pools_world, "slurm-site", "cancelled"
    pods = [world.running(pod, 60) for pod in start(world, name, site, "sleep 300", backoffLimit=0)]
    job = world.remote_job(pods[0]).partition("/")[2]
    listed = json.loads(world.cluster.site_slurm(site, "squeue", "--json", "-j", job))["jobs"]
    assert [entry["tasks"]["number"] for entry in listed] == [SIZE]
    world.cluster.site_slurm(site, "scancel", job)
    ends = [world.ended(pod) for pod in pods]
    assert {(pod["status"]["phase"], pod["status"]["reason"]) for pod in ends} == {("Failed", "Cancelled")}
    delete(world, name)
    nothing_left(world, site)
