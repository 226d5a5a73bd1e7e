"""One cluster with interLink's programs, podbridge's plugin in front of a site's Slurm, and podbridge's hub."""

import pytest

from cluster import Cluster
from cluster.interlink_pods import OTHER_SITE, SITE, InterlinkWorld


@pytest.fixture(scope="package")
def interlink_world(state_folder):
    """A cluster whose plugin has clients on each route."""
    with Cluster(state_folder / "interlink", slurm=None, nodes=1, pools=[SITE, OTHER_SITE], interlink=True) as cluster:
        world = InterlinkWorld(cluster)
        world.start()
        yield world
