"""A cluster for the tests that kill and stop things; only admission runs at first."""

import pytest

from cluster import Cluster
from cluster.world import World


@pytest.fixture(scope="session")
def bare_world(state_folder):
    """Slurm 26.05 and Kubernetes with podbridge's admission alone."""
    with Cluster(state_folder / "chaos", slurm="26.05", nodes=4, audit=True) as cluster:
        cluster.start_podbridge(("admission",))
        yield World(cluster)
