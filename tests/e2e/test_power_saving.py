"""Slurm's power saving: Slurm's programs stop and start the slurmd of nodes, and their kubelets follow."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from cluster import Cluster
from cluster.polling import eventually
from cluster.ports import free_block
from cluster.systems import kube
from cluster.systems.slurm import SLURM_UID
from cluster.world import World

pytestmark = pytest.mark.real

RESUME = f"""#!/bin/sh
# slurmctld runs it as the user slurm, who may mount in a user namespace, and be itself again in another one
export SLURM_CONF=/srv/etc/as-slurm.conf
for node in $(scontrol show hostnames "$1"); do
    rm -f "/srv/power/$node.pid"
    setsid unshare --user --map-root-user --mount sh -ec '
        echo $$ >"/srv/power/$0.pid"
        mount -t tmpfs slurmd /run/slurm
        exec unshare --user --map-user={SLURM_UID} --map-group={SLURM_UID} /usr/sbin/slurmd -D -b -N "$0"' "$node" \\
        </dev/null >>"/srv/power/$node.log" 2>&1 &
    # slurmctld kills what is left of this program's process group when it ends
    until [ -s "/srv/power/$node.pid" ]; do sleep 0.05; done
    echo "$node" >>/srv/power/resumed
done
"""
SUSPEND = """#!/bin/sh
for node in $(scontrol show hostnames "$1"); do
    kill "$(cat "/srv/power/$node.pid")"
done
"""


class Machines:
    """The nodes that Slurm's programs switch on and off, and their kubelets.

    ``cloud-0`` is deleted from Kubernetes when it is switched off, as by a cloud controller; ``node-0`` becomes not
    ready. While ``kubelets`` is not set, a machine that starts has no kubelet yet.
    """

    def __init__(self, cluster):
        self.cluster = cluster
        self.folder = cluster.state / "slurm" / "power"
        self.kubelets = threading.Event()
        self.kubelets.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def resumed(self, node):
        """Return how often Slurm's program has switched a node on."""
        file = self.folder / "resumed"
        return file.read_text().split().count(node) if file.exists() else 0

    def is_on(self, node):
        """Return whether the slurmd that the program started runs."""
        file = self.folder / f"{node}.pid"
        pid = file.read_text().strip() if file.exists() else ""
        if not pid:
            return False
        try:
            return b"slurmd" in Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            return False

    def _run(self):
        ready = {"node-0"}
        while not self._stop.wait(0.1):
            for node in ("node-0", "cloud-0"):
                on = self.is_on(node)
                if on and node not in ready and self.kubelets.is_set():
                    self._kubelet(node)
                    ready.add(node)
                elif not on and node in ready:
                    self._kubelet_gone(node)
                    ready.remove(node)

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
    """A cluster with a node that exists and a cloud node that does not; both are in the partition ``saving``."""
    with Cluster(state_folder / "power", slurm="26.05", nodes=1, gpus=0) as cluster:
        folder = cluster.state / "slurm"
        for name in ("power", "spool/cloud-0"):
            (folder / name).mkdir()
            os.chown(folder / name, SLURM_UID, SLURM_UID)
        for name, text in (("suspend", SUSPEND), ("resume", RESUME)):
            program = folder / "etc" / name
            program.write_text(text)
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
        text = (folder / "etc" / "slurm.conf").read_text()
        (folder / "etc" / "as-slurm.conf").write_text(text.replace("SlurmdUser=root", "SlurmdUser=slurm"))
        cluster.start_daemon("slurmctld")
        hand_over(cluster)
        cluster.start_podbridge()
        with Machines(cluster) as machines:
            yield World(cluster), machines


def hand_over(cluster):
    """Stop the slurmd that root started, and let Slurm's program start it, so that the other program can stop it."""
    cluster.stop_daemon("slurmd-node-0")
    folder = cluster.state / "slurm"
    (folder / "run" / "slurmd-node-0.pid").unlink(missing_ok=True)
    shutil.rmtree(folder / "spool" / "node-0")
    (folder / "spool" / "node-0").mkdir()
    os.chown(folder / "spool" / "node-0", SLURM_UID, SLURM_UID)
    as_slurm = ("setpriv", f"--reuid={SLURM_UID}", f"--regid={SLURM_UID}", "--clear-groups")
    cluster.run_slurm(*as_slurm, "/srv/etc/resume", "node-0")


def state(world, node):
    return set(world.node(node)[0].split("+"))


@pytest.mark.parametrize(("node", "turns"), [("cloud-0", 2), ("node-0", 1)])
def test_a_pod_wakes_a_node_and_is_bound_when_its_kubelet_is_ready(saving, node, turns):
    world, machines = saving
    before, resumed = len(cordons(world, node)), machines.resumed(node)
    other = {"cloud-0": "node-0", "node-0": "cloud-0"}[node]
    world.slurm("scontrol", "update", f"nodename={other}", "state=drain", "reason=not in this test")
    for turn in range(1, turns + 1):
        if "POWERED_DOWN" not in state(world, node):
            world.slurm("scontrol", "update", f"nodename={node}", "state=power_down")
        eventually(lambda: "POWERED_DOWN" in state(world, node), f"{node} off", 30)
        eventually(lambda: not machines.is_on(node), f"the slurmd of {node} ended", 30)
        machines.kubelets.clear()
        pod = world.create(cpu="100", job={"partition": "saving"})
        job = world.labelled(pod)
        eventually(lambda turn=turn: machines.resumed(node) == resumed + turn, f"{node} woken", 30)
        eventually(lambda: not {"POWERING_UP", "POWERED_DOWN"} & state(world, node), f"slurmd of {node} up", 30)
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
        eventually(lambda: not world.kube_node(other)["spec"].get("unschedulable"), "node-0 uncordoned", 30)
        eventually(lambda: "SlurmNodeResumed" in cordons(world, other), "the Event of it")
    assert machines.resumed(node) == resumed + turns
    assert len(cordons(world, node)) == before


def reason(pod):
    return next((c.get("reason") for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"), "")


def cordons(world, node):
    """Return the Events of cordons and drains of a node."""
    items = world.api("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return [e["reason"] for e in items if e["reason"].startswith("SlurmNode") and e["regarding"]["name"] == node]
