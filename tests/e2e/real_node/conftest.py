"""One node whose kubelet, containers and slurmd are real, with podbridge."""

import pytest

from cluster import Cluster
from cluster.world import NAMESPACE, World, until

BUSY_NODE_TIMEOUT = 8
URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-0 PriorityTier=10 MaxTime=INFINITE State=UP",
)


@pytest.fixture(scope="session")
def real_node(state_folder):
    """The cluster: one node, of this machine's size."""
    with Cluster(state_folder / "real-node", nodes=1, real_node=True, slurm_conf=URGENT) as cluster:
        cluster.start_podbridge(config_overrides={"busyNodeTimeout": BUSY_NODE_TIMEOUT})
        world = World(cluster)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        probe = world.manifest()
        until("admission", lambda: world.api("POST", path, probe)["spec"]["schedulerName"] != "default-scheduler")
        yield world


@pytest.fixture
def clean(real_node):
    """The cluster without pods, before and after."""
    real_node.clear()
    yield real_node
    real_node.clear()
