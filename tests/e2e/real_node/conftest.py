"""One node with a real kubelet, real containers and a real slurmd, and podbridge."""

import ipaddress
import subprocess
from pathlib import Path

import pytest

from cluster import Cluster
from cluster.polling import eventually
from cluster.world import NAMESPACE, World

BUSY_NODE_TIMEOUT = 8
URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-0 PriorityTier=10 MaxTime=INFINITE State=UP",
)


def left_behind(node):
    """Return remains of the node on this machine: mounts, cgroups, routes."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [path for path in mounts if path.startswith(str(node.folder))]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{node.cgroup}")]
    routes = subprocess.run(["ip", "-o", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    pods = {str(address) for address in ipaddress.ip_network(node.addresses)}
    return found + [route for route in routes if route.split()[0] in pods]


@pytest.fixture(scope="package")
def real_node(state_folder):
    """A cluster with one node of this machine's size; assert that nothing of it is left afterwards."""
    with Cluster(state_folder / "real-node", nodes=1, real_node=True, dra=True, slurm_conf=URGENT) as cluster:
        cluster.start_podbridge(config_overrides={"busyNodeTimeout": BUSY_NODE_TIMEOUT})
        world = World(cluster)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        probe = world.manifest()
        eventually(lambda: world.api("POST", path, probe)["spec"]["schedulerName"] != "default-scheduler", "admission")
        node = cluster.real_node
        yield world
    assert left_behind(node) == []


@pytest.fixture
def clean(real_node):
    """The cluster without pods, before and after."""
    real_node.clear()
    yield real_node
    real_node.clear()
