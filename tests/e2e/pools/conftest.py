"""One cluster with every kind of site, and podbridge on it; two versions of Slurm at the sites."""

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld

SITES = ("slurm-site", "local-site", "condor-site", "apptainer-site")


@pytest.fixture(scope="package")
def pools_world(state_folder):
    """A cluster with a colocated Slurm and all sites, their submitters, and podbridge."""
    # no pod ends because this machine is busy; volumes follow their objects within seconds
    settings = {"brake": {"hold": 300}, "pools": {"volumePeriod": 2}}
    options = {"slurm": "26.05", "nodes": 2, "pools": list(SITES), "audit": True, "podbridge": settings}
    with Cluster(state_folder / "pools", **options) as cluster:
        yield PoolWorld.started(cluster)


@pytest.fixture(scope="module", params=SITES)
def pool(request):
    """Each site, by the name of its pool."""
    return request.param
