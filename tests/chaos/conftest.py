"""A cluster for the tests that kill and stop daemons; at first only podbridge's admission runs on it."""

import pytest

from cluster import Cluster
from cluster.world import World
from tests.parts import SLURMS


@pytest.fixture(scope="session", params=SLURMS)
def bare_world(request, state_folder):
    """Slurm and Kubernetes with podbridge's admission alone, for each version of Slurm."""
    options = {"nodes": 4, "audit": True, "gangs": True}
    with Cluster(state_folder / f"chaos-{request.param}", slurm=request.param, **options) as cluster:
        cluster.start_podbridge(("admission",))
        yield World(cluster)
