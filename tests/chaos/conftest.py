"""A cluster for the tests that kill and stop things; only admission runs at first."""

import pytest

from cluster import Cluster
from cluster.world import World


@pytest.fixture(scope="session", params=["26.05", "24.11", "22.05"])
def bare_world(request, state_folder):
    """Slurm and Kubernetes with podbridge's admission alone, for each version of Slurm."""
    with Cluster(state_folder / f"chaos-{request.param}", slurm=request.param, nodes=4, audit=True) as cluster:
        # the process that kills itself is scheduler and controllers in one, with the account of `podbridge run`
        trusted = {"admission": {"trustedUsers": ["system:serviceaccount:podbridge:podbridge"]}}
        cluster.start_podbridge(("admission",), config_overrides=trusted)
        yield World(cluster)
