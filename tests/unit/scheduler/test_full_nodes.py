"""Nodes that are full by what Slurm does not count: Slurm allocates them to each next job, and other nodes are idle.

Public reports of the kind: kubernetes/kubernetes#63190 (number of pods), #60726 and #4623 (host ports).
"""

import pytest

from bridge import names
from bridge.kube.prune import prune_pod
from bridge.workload import eligibility, resources
from scheduler import group_actions, group_decide
from scheduler.nodes.occupancy import Occupancy, prune
from tests import builders
from tests.unit.scheduler import decisions

OURS = "ours"
NODES = ("n1", "n2", "n3", "n4")


def pod(uid, node=None, *, scheduler=OURS, ports=(), host_network=False, **requests):
    asked = {name.replace("_", "-"): value for name, value in (requests or {"cpu": "1"}).items()}
    containers = [builders.container(requests=asked, ports=list(ports))]
    spec = {"schedulerName": scheduler, "containers": containers, "hostNetwork": host_network}
    return builders.pod(uid, node=node, held=True, phase="Running" if node else "Pending", **spec)


class PackingSlurm:
    """Pods, the scheduler's decisions, and a Slurm that allocates the first node that a job does not exclude."""

    def __init__(self, allocatable):
        self.offered = {"cpu": "128", "pods": "110", **allocatable}
        self.waiting, self.bound, self.jobs, self.submitted = {}, {}, {}, 0
        self.occupancy = Occupancy(OURS)

    def add(self, new):
        self.waiting[new["metadata"]["uid"]] = new

    def ends(self, uid):
        _, old = self.bound.pop(uid)
        self.occupancy.changed("delete", old, None)

    def placements(self):
        taken = self.occupancy.lasting(0)
        raw = [builders.node(name, allocatable=self.offered) for name in NODES]
        return decisions.placements(eligibility.views(raw, taken))

    def step(self):
        """Submit a job for each pod without one for which a node fits, and carry out one decision."""
        placements = self.placements()
        for uid, waiting in self.waiting.items():
            if uid not in self.jobs and (fitting := placements.of(waiting, "").eligible):
                self.submitted += 1
                waiting["metadata"]["labels"] = {names.JOB_ID_LABEL: str(self.submitted)}
                self.jobs[uid] = builders.observed(self.submitted, "RUNNING", uid, nodes=fitting[:1])
        waits = [waiting for uid, waiting in self.waiting.items() if uid in self.jobs]
        snapshot = builders.snapshot(*self.jobs.values())
        decision = group_decide.decide(decisions.view(waits, snapshot, placements, occupancy=self.occupancy))
        for occupant in decision.planned:
            self.occupancy.assume(occupant)
        for node, taken in decision.refused:
            self.occupancy.refuse(node, taken)
        for action in decision.actions:
            uid = action.pod["metadata"]["uid"]
            if isinstance(action, group_actions.CancelAndResubmit):
                assert action.soon
                del self.jobs[uid]
            elif isinstance(action, group_actions.Bind):
                bound = self.waiting.pop(uid)
                bound = {**bound, "spec": {**bound["spec"], "nodeName": action.node}, "status": {"phase": "Running"}}
                self.bound[uid] = action.node, bound
                self.occupancy.changed("update", action.pod, bound)
        return decision.actions

    def on_each_node(self):
        return sorted(sum(node == name for node, _ in self.bound.values()) for name in NODES)


PORT = {"containerPort": 80, "hostPort": 8080}
NETWORK = {"ports": [{"containerPort": 29500}], "host_network": True}
KINDS = {
    "pods": ({"pods": "3"}, {"cpu": "1"}),
    "ephemeral storage": ({"ephemeral-storage": "30Gi"}, {"ephemeral_storage": "10Gi"}),
    "huge pages": ({"hugepages-2Mi": "6Mi"}, {"hugepages_2Mi": "2Mi"}),
    "Allocatable below the size in Slurm": ({"cpu": "3500m"}, {"cpu": "1"}),
    "memory": ({"memory": "31Gi"}, {"memory": "10Gi"}),
    "a resource by another scheduler": ({"vendor.com/thing": "3"}, {"vendor.com/thing": "1"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_node_does_not_attract_every_pod(kind):
    offered, requests = KINDS[kind]
    slurm = PackingSlurm(offered)
    for number in range(12):
        slurm.add(pod(f"p{number:02}", **requests))
    for _ in NODES:
        slurm.step()
    assert slurm.on_each_node() == [3, 3, 3, 3]
    assert slurm.submitted == 12 + 9 + 6 + 3
    # no job for a pod that no node can take, and one as soon as a pod has ended
    slurm.add(pod("late", **requests))
    slurm.step()
    if "late" in slurm.jobs:  # the last node has not refused a pod yet: the job waits there
        slurm.ends("p00")
        slurm.jobs["late"] = builders.observed(99, "RUNNING", "late", nodes=["n1"])
        slurm.waiting["late"]["metadata"]["labels"] = {names.JOB_ID_LABEL: "99"}
        slurm.step()
    assert "late" in slurm.bound


@pytest.mark.parametrize("ports", [{"ports": [PORT]}, NETWORK], ids=["hostPort", "hostNetwork"])
def test_pods_with_the_same_host_port_run_on_different_nodes(ports):
    slurm = PackingSlurm({})
    for number in range(4):
        slurm.add(pod(f"p{number}", **ports))
    slurm.add(pod("other", ports=[{"containerPort": 80, "hostPort": 80}]))
    for _ in NODES:
        slurm.step()
    assert slurm.on_each_node() == [1, 1, 1, 2]
    slurm.add(pod("late", **ports))
    slurm.step()
    (told,) = slurm.step() if "late" in slurm.jobs else [None]
    assert told.reason == "NodeBusy" and "in use" in told.message
    slurm.ends("p3")
    slurm.step()
    assert "late" in slurm.bound


def test_a_port_of_a_pod_of_another_scheduler_excludes_its_node():
    slurm = PackingSlurm({})
    agent = pod("agent", "n1", scheduler="default-scheduler", ports=[{"containerPort": 9100, "hostPort": 9100}])
    slurm.occupancy.changed("add", None, prune(prune_pod(agent)))
    new = pod("new", ports=[{"containerPort": 9100}], host_network=True)
    assert slurm.placements().of(new, "").refused == {"n1": "host port 9100/TCP is in use"}
    assert slurm.placements().of(pod("plain"), "").refused == {}


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ({}, {}, True),
        ({}, {"protocol": "UDP"}, False),
        ({"protocol": "TCP"}, {}, True),
        ({}, {"hostPort": 8081}, False),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, False),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1"}, True),
        ({"hostIP": "10.0.0.1"}, {}, True),
        ({"hostIP": "0.0.0.0"}, {"hostIP": "10.0.0.1"}, True),  # noqa: S104
    ],
)
def test_host_ports_collide_as_in_kubernetes(one, other, collide):
    first, second = (resources.host_ports(pod("p", ports=[{**PORT, **more}])["spec"]) for more in (one, other))
    for mine, theirs in ((first, second), (second, first)):
        assert bool(resources.port_conflicts(mine, theirs)) is collide


def test_which_ports_of_a_pod_are_host_ports():
    spec = pod("p", ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}])["spec"]
    spec["initContainers"] = [
        {"name": "sidecar", "restartPolicy": "Always", "ports": [{"containerPort": 1, "hostPort": 8082}]},
        {"name": "init", "ports": [{"containerPort": 1, "hostPort": 8083}]},
    ]
    whole = {"metadata": {"name": "p", "namespace": "ns", "uid": "p"}, "spec": spec}
    wanted = ["host port 8081/TCP", "host port 8082/TCP"]
    assert list(resources.host_ports(spec)) == list(resources.host_ports(prune_pod(whole)["spec"])) == wanted
    assert list(resources.host_ports(prune(prune_pod(whole))["spec"])) == wanted
    assert "host port 80/TCP" in resources.host_ports({**spec, "hostNetwork": True})


def test_what_a_node_has_refused_is_forgotten_when_a_pod_leaves_it_and_not_before():
    there = Occupancy(OURS)
    first, second = pod("a", "n1"), pod("b", "n1")
    for one in (first, second):
        there.changed("add", None, one)
    refused = {"pods": there.used("n1")["pods"]}
    there.refuse("n1", refused)
    assert there.lasting(0) == {"n1": refused}
    ending = {**first, "metadata": {**first["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}
    there.changed("update", first, ending)
    there.changed("add", None, pod("c", "n1"))
    assert there.lasting(0) == {"n1": refused}, "a deleted pod takes its room until it has ended"
    there.changed("delete", ending, None)
    assert there.lasting(0) == {}
    there.refuse("gone", refused)
    assert there.lasting(0) == {}, "no memory of nodes without pods"


@pytest.mark.parametrize("end", ["failed bind", "resize"])
def test_a_pod_that_takes_less_makes_room(end):
    there = Occupancy(OURS)
    before = pod("a", "n1", cpu="4")
    there.changed("add", None, before)
    there.assume(there.occupant(pod("b"), "n1"))
    there.refuse("n1", there.used("n1"))
    assert there.lasting(0)
    if end == "resize":
        there.changed("update", before, pod("a", "n1", cpu="1"))
    else:
        there.correct({"b"}, lambda _: False)
    assert there.lasting(0) == {}
