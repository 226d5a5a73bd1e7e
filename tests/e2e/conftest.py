"""One cluster for each version of Slurm, with podbridge on it."""

import pytest

from cluster import Cluster
from cluster.world import World
from tests.conftest import SLURMS

FAST_POLLS = {"slurm": {"pollIdle": 0.5}}
"""Tests wait for polls; the default period is 2 s."""

URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-[0-3] PriorityTier=10 MaxTime=INFINITE State=UP",
)


@pytest.fixture(scope="session", params=SLURMS)
def world(request, state_folder):
    """A cluster with podbridge, for each version of Slurm."""
    state = state_folder / f"e2e-{request.param}"
    options = {"nodes": 4, "audit": True, "slurm_conf": URGENT, "podbridge": FAST_POLLS}
    with Cluster(state, slurm=request.param, **options) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


@pytest.fixture
def clean(world):
    """The world without pods, before and after."""
    world.clear()
    yield world
    world.clear()
