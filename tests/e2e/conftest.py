"""One cluster for each version of Slurm, with podbridge on it."""

import pytest
from xdist.scheduler import LoadScopeScheduling

from cluster import Cluster
from cluster.world import World

VERSIONS = ("26.05", "24.11", "22.05")
FAST_POLLS = {"slurm": {"pollIdle": 0.5}}
"""Tests wait for polls; the default period is 2 s."""

URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-[0-3] PriorityTier=10 MaxTime=INFINITE State=UP",
)


class ByCluster(LoadScopeScheduling):
    """Assigns all tests of one cluster to one process, so that the cluster starts once."""

    def _split_scope(self, nodeid):
        return next((version for version in VERSIONS if f"[{version}" in nodeid), nodeid.split("::")[0])


def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler of ``pytest -n 3``; xdist's groups do not work with pytest 9 and xdist 3.8."""
    return ByCluster(config, log)


@pytest.fixture(scope="session", params=VERSIONS)
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
