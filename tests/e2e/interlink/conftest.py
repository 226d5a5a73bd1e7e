"""One cluster with interLink's programs, podbridge's plugin in front of a site's Slurm, and podbridge's hub."""

import pytest

from cluster import Cluster
from cluster.interlink_pods import OTHER_SITE, SITE, InterlinkWorld
from tests.fakes.otlp_receiver import OtlpReceiver


@pytest.fixture(scope="package")
def receiver():
    """A receiver of the traces of hub and plugin."""
    running = OtlpReceiver()
    yield running
    running.close()


@pytest.fixture(scope="package")
def interlink_world(state_folder, receiver):
    """A cluster whose plugin has clients on each route."""
    with Cluster(state_folder / "interlink", slurm=None, nodes=1, pools=[SITE, OTHER_SITE], interlink=True) as cluster:
        world = InterlinkWorld(cluster, {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
        world.start()
        yield world
