"""A cluster for the tests that kill and stop things; only admission runs at first."""

import pytest

from cluster import Cluster
from cluster.world import World


@pytest.fixture(scope="session", params=["26.05", "24.11", "22.05"])
def bare_world(request, state_folder):
    """Slurm and Kubernetes with podbridge's admission alone, for each version of Slurm."""
    with Cluster(state_folder / f"chaos-{request.param}", slurm=request.param, nodes=4, audit=True) as cluster:
        cluster.start_podbridge(("admission",))
        yield World(cluster)
