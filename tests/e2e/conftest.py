"""One cluster for each version of Slurm, with podbridge on it."""

import pytest

from cluster import Cluster
from cluster.world import World

URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-[0-3] PriorityTier=10 MaxTime=INFINITE State=UP",
)


def _world(state_folder, version, **options):
    return Cluster(state_folder / f"e2e-{version}", slurm=version, nodes=4, audit=True, slurm_conf=URGENT, **options)


@pytest.fixture(scope="session", params=["26.05", "24.11", "22.05"])
def world(request, state_folder):
    """A cluster with podbridge, for each version of Slurm."""
    with _world(state_folder, request.param) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


@pytest.fixture
def clean(world):
    """The world without pods, before and after."""
    world.clear()
    yield world
    world.clear()
