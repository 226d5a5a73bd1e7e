"""Slurm's power saving: nodes whose slurmd, and whose kubelet, Slurm's own programs stop and start."""

import threading

import pytest

from cluster import Cluster, kube
from cluster.ports import free_block
from cluster.world import World, until

pytestmark = pytest.mark.real

PROGRAM = """#!/bin/sh
for node in $(scontrol show hostnames "$1"); do : > "/srv/power/{what}-$node"; done
"""
"""Runs as the user slurm, who may start no slurmd: the Machines below do."""


class Machines:
    """Switches nodes on and off as Slurm's programs ask: the slurmd, and the node in Kubernetes.

    ``cloud-0`` is deleted from Kubernetes when it goes, as a cloud's controller does; ``node-0`` is there but not
    ready. While ``kubelets`` is not set, a machine that comes up has no kubelet yet.
    """

    def __init__(self, cluster):
        self.cluster = cluster
        self.folder = cluster.state / "slurm" / "power"
        self.kubelets = threading.Event()
        self.kubelets.set()
        self.resumed, self.suspended = [], []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.cluster.processes.stop(["slurmd-cloud-0"], 5)

    def _run(self):
        waiting = set()
        while not self._stop.wait(0.1):
            for file in sorted(self.folder.iterdir()):
                what, _, node = file.name.partition("-")
                file.unlink()
                if what == "resume":
                    enter = str(self.cluster.state / "slurm" / "enter")
                    self.cluster.processes.start(f"slurmd-{node}", [enter, "slurmd", "-D", "-b", "-N", node])
                    waiting.add(node)
                    self.resumed.append(node)
                else:
                    waiting.discard(node)
                    self.cluster.processes.stop([f"slurmd-{node}"], 5)
                    self._kubelet_gone(node)
                    self.suspended.append(node)
            if self.kubelets.is_set():
                for node in waiting:
                    self._kubelet(node)
                waiting.clear()

    def _kubelet(self, node):
        api = self.cluster.api
        api.ensure("/api/v1/nodes", kube.node_object(node, self.cluster.options.size))
        self._patch(node, {"metadata": {"annotations": {kube.KWOK_ANNOTATION: "fake"}}})
        self._condition(node, "True")

    def _kubelet_gone(self, node):
        if node.startswith("cloud"):
            self.cluster.api("DELETE", f"/api/v1/nodes/{node}")
        else:
            self._patch(node, {"metadata": {"annotations": {kube.KWOK_ANNOTATION: None}}})
            self._condition(node, "Unknown")

    def _patch(self, node, patch, part=""):
        self.cluster.api("PATCH", f"/api/v1/nodes/{node}{part}", patch, "application/strategic-merge-patch+json")

    def _condition(self, node, ready):
        moment = "2026-01-01T00:00:00Z"
        condition = {"type": "Ready", "status": ready, "reason": "Test", "lastTransitionTime": moment}
        self._patch(node, {"status": {"conditions": [condition]}}, "/status")


@pytest.fixture(scope="module")
def saving(state_folder):
    """A cluster with a node that is there, and one of a cloud that is not; both are in the partition ``saving``."""
    with Cluster(state_folder / "power", slurm="26.05", nodes=1, gpus=0) as cluster:
        folder = cluster.state / "slurm"
        (folder / "power").mkdir()
        (folder / "power").chmod(0o777)
        for what in ("suspend", "resume"):
            program = folder / "etc" / what
            program.write_text(PROGRAM.format(what=what))
            program.chmod(0o755)
        size = cluster.options.size
        cluster.stop_daemon("slurmctld")
        with (folder / "etc" / "slurm.conf").open("a") as conf:
            conf.write(
                "SuspendProgram=/srv/etc/suspend\nResumeProgram=/srv/etc/resume\n"
                "SuspendTime=86400\nSuspendTimeout=1\nResumeTimeout=60\n"
                f"NodeName=cloud-0 NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_block(1)} CPUs={size.cpus} "
                f"RealMemory={size.memory} State=CLOUD\n"
                "PartitionName=saving Nodes=node-0,cloud-0 MaxTime=INFINITE State=UP\n"
            )
        cluster.start_daemon("slurmctld")
        cluster.start_podbridge()
        with Machines(cluster) as machines:
            yield World(cluster), machines


def state(world, node):
    return set(world.node(node)[0].split("+"))


@pytest.mark.parametrize(("node", "turns"), [("cloud-0", 2), ("node-0", 1)])
def test_a_pod_wakes_a_node_and_is_bound_when_its_kubelet_is_ready(saving, node, turns):
    world, machines = saving
    before = len(cordons(world, node))
    other = {"cloud-0": "node-0", "node-0": "cloud-0"}[node]
    world.slurm("scontrol", "update", f"nodename={other}", "state=drain", "reason=not in this test")
    for turn in range(1, turns + 1):
        if "POWERED_DOWN" not in state(world, node):
            world.slurm("scontrol", "update", f"nodename={node}", "state=power_down")
        until(f"{node} off", lambda: "POWERED_DOWN" in state(world, node), 30)
        until(f"the machine of {node} off", lambda: not world.cluster.pid(f"slurmd-{node}"), 30)
        machines.kubelets.clear()
        pod = world.create(cpu="100", job={"partition": "saving"})
        job = world.labelled(pod)
        until(f"{node} woken", lambda turn=turn: machines.resumed.count(node) == turn, 30)
        until(f"slurmd of {node} up", lambda: not {"POWERING_UP", "POWERED_DOWN"} & state(world, node), 30)
        world.seen(pod, "told why it waits", lambda p: reason(p) == "SlurmNodeStarting")
        found = world.get(pod)
        assert not found["spec"].get("nodeName")
        assert world.job_of(found) == job
        machines.kubelets.set()
        found = world.running(world.bound(pod))
        assert found["spec"]["nodeName"] == node
        assert world.job_of(found) == job
        world.delete(pod)
        world.gone(pod)
    world.slurm("scontrol", "update", f"nodename={other}", "state=resume")
    if other == "node-0":
        until("node-0 uncordoned", lambda: not world.kube_node(other)["spec"].get("unschedulable"), 30)
    assert machines.resumed.count(node) == turns
    assert len(cordons(world, node)) == before


def reason(pod):
    return next((c.get("reason") for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"), "")


def cordons(world, node):
    """Events of cordons and drains of a node."""
    items = world.api("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [e["reason"] for e in items if e["reason"].startswith("SlurmNode") and e["regarding"]["name"] == node]
