"""One cluster for each version of Slurm, with podbridge on it."""

import pytest

from cluster import Cluster, places
from cluster.world import World
from tests.parts import SLURMS

FAST = {"slurm": {"pollIdle": 0.5}, "nodes": {"externalNotReady": 2, "notReady": 2, "externalDevices": 1}}
"""Tests wait for polls and for the drain of a silent node; the default periods are 2 s and 60 s."""

URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-[0-3] PriorityTier=10 MaxTime=INFINITE State=UP",
    "PartitionName=requeue Nodes=node-[0-3] PreemptMode=REQUEUE MaxTime=INFINITE State=UP",
    "PartitionName=short Nodes=node-[0-3] MaxTime=60 State=UP",
)

EXTERNAL = (
    "MaxNodeCount=16",
    "NodeSet=external Feature=external",
    "PartitionName=external Nodes=external MaxTime=INFINITE State=UP",
)
"""For external nodes, which Slurm 26.05 has: their number, and a partition of all that have the feature."""


KUBERNETES = {"22.05": "1.32", "24.11": "1.34"}
"""Version of Slurm -> version of Kubernetes beside it, where it is not the main one."""


@pytest.fixture(scope="session", params=SLURMS)
def world(request, state_folder):
    """A cluster with podbridge, for each version of Slurm."""
    state = state_folder / f"e2e-{request.param}"
    lines = (*URGENT, *EXTERNAL) if request.param == "26.05" else URGENT
    options = {"nodes": 4, "audit": True, "slurm_conf": lines, "podbridge": FAST}
    options["kubernetes"] = KUBERNETES.get(request.param, places.kubernetes())
    with Cluster(state, slurm=request.param, **options) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


@pytest.fixture
def clean(world):
    """The world without pods, before and after."""
    world.clear()
    yield world
    world.clear()
