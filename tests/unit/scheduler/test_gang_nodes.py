"""Members that request the same, but allow different nodes: they start together, in components of one job.

Reported in ray-project/kuberay#5002 (the head on a CPU node, the workers on others, all of one size) and
kubernetes-sigs/jobset#1250 (a driver and its workers).
"""

import pytest

from bridge import names
from bridge.workload import links, pods
from tests.fakes.memory_world import NODES
from tests.unit.scheduler.test_ended_jobs import World
from tests.unit.scheduler.test_gang_apart import end, jobs, make, settle

KINDS = {name: "cpu" if number < 2 else "gpu" for number, name in enumerate(NODES)}


def selector(kind):
    return {"nodeSelector": {"node-type": kind}}


def affinity(kind):
    terms = [{"matchExpressions": [{"key": "node-type", "operator": "In", "values": [kind]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


def toleration(kind):
    return {"tolerations": [{"key": "node-type", "operator": "Equal", "value": kind, "effect": "NoSchedule"}]}


CONSTRAINTS = {"nodeSelector": selector, "affinity": affinity, "toleration": toleration}


@pytest.fixture(params=CONSTRAINTS)
def constraint(request):
    return request.param


@pytest.fixture
def world(constraint):
    world = World()
    for name, kind in KINDS.items():
        node = world.hub.kube.get(f"/api/v1/nodes/{name}")
        node["metadata"]["labels"]["node-type"] = kind
        if constraint == "toleration":
            node["spec"]["taints"].append({"key": "node-type", "value": kind, "effect": "NoSchedule"})
        world.hub.kube.put(f"/api/v1/nodes/{name}", node)
    return world


def member(world, name, constraint, kind, **more):
    make(world, name, **more)
    path = f"/api/v1/namespaces/ns/pods/{name}"
    pod = world.hub.kube.get(path)
    managed = pods.managed_toleration(world.hub.config.scheduler_name)
    spec = CONSTRAINTS[constraint](kind)
    pod["spec"] |= spec | {"tolerations": [*spec.get("tolerations", []), managed]}
    world.hub.kube.put(path, pod)


def kinds(world):
    return {pod["metadata"]["name"]: KINDS[pod["spec"]["nodeName"]] for pod in world.running()}


def test_members_of_one_size_start_on_the_nodes_that_each_of_them_selects(world, constraint):
    member(world, "head", constraint, "cpu")
    member(world, "worker-0", constraint, "gpu")
    member(world, "worker-1", constraint, "gpu")
    settle(world)
    assert kinds(world) == {"head": "cpu", "worker-0": "gpu", "worker-1": "gpu"}
    (job,) = world.hub.slurm.live()
    assert sorted(len(part.nodes) for part in job.all) == [1, 2]
    # the successor of a worker takes its place, and one more worker gets a job of its own
    end(world, "worker-1")
    member(world, "worker-2", constraint, "gpu")
    settle(world)
    assert jobs(world)["worker-2"] == job.job_id
    member(world, "worker-3", constraint, "gpu")
    settle(world)
    assert jobs(world)["worker-3"] != job.job_id
    assert kinds(world) == {"head": "cpu", "worker-0": "gpu", "worker-2": "gpu", "worker-3": "gpu"}


def test_a_cordon_is_told_to_the_component_that_it_concerns(world, constraint):
    for name, kind in (("head", "cpu"), ("worker-0", "gpu"), ("worker-1", "gpu")):
        member(world, name, constraint, kind)
    world.look(8)
    (job,) = world.hub.slurm.live()
    (head,) = [part for part in job.all if part.request.min_nodes == 1]
    (workers,) = [part for part in job.all if part.request.min_nodes == 2]
    assert set(head.excluded) == {name for name, kind in KINDS.items() if kind == "gpu"}
    world.hub.cordon("n0")
    world.look(8)
    assert "n0" in head.excluded
    assert set(workers.excluded) == {name for name, kind in KINDS.items() if kind == "cpu"}


def test_members_with_enough_common_nodes_share_an_ordinary_job(world):
    """A heterogeneous job would need the backfill scheduler, and nodes of its own for each component."""
    for name in ("head", "worker-0", "worker-1"):
        make(world, name)
        path = f"/api/v1/namespaces/ns/pods/{name}"
        pod = world.hub.kube.get(path)
        pod["spec"] |= affinity("gpu") if name == "head" else selector("gpu")
        pod["spec"]["tolerations"] = toleration("gpu")["tolerations"]
        world.hub.kube.put(path, pod)
    settle(world)
    (job,) = world.hub.slurm.live()
    assert job.components == []
    assert set(kinds(world).values()) == {"gpu"}


def test_too_few_nodes_are_named(world, constraint):
    for number in range(3):
        member(world, f"head-{number}", constraint, "cpu", size=4, minimum=4)
    member(world, "worker", constraint, "gpu", size=4, minimum=4)
    settle(world, 6)
    assert not world.hub.slurm.live()
    said = {pods.condition(pod, names.POD_SCHEDULED).get("message", "") for pod in world.hub.kube.pods()}
    assert any("the group needs 3 nodes, but only 2 fit" in text for text in said), said


def test_the_shapes_of_comments_are_compared_in_their_own_form():
    pod = {"metadata": {"annotations": {}}, "spec": {"containers": [], **selector("cpu")}}
    assert links.shape_for([links.shape(pod)])(pod) == links.shape(pod)
    assert links.shape_for([links.placed_shape(pod), ""])(pod) == links.placed_shape(pod)
    assert links.placed_shape(pod).startswith(links.shape(pod) + ".")
