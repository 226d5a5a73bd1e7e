"""podbridge in pods of its own image on a real node, installed by the chart."""

import pytest

from cluster import Cluster
from cluster.polling import eventually
from cluster.systems import helm
from cluster.world import NAMESPACE, World


@pytest.fixture(scope="package")
def installed(state_folder, long):
    """A cluster with a real node and the release of the chart: (world, release, image, seconds of the installation)."""
    with Cluster(state_folder / "helm", nodes=1, real_node=True, helm=True) as cluster:
        built = helm.prepare(cluster)
        # each replica takes seconds of both CPUs to start
        replicas = 2 if long else 1
        settings = {part: {"replicas": replicas} for part in helm.PARTS}
        release = helm.Release(cluster, settings={**settings, "dashboard": {"enabled": True}})
        seconds = release.install()
        yield World(cluster), release, built, seconds


def admitted(world):
    """Wait until the API server calls the webhook, which it does a moment after the registration."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
    probe = world.manifest("probe", script="true")
    eventually(lambda: world.api("POST", path, probe)["spec"]["schedulerName"] != "default-scheduler", "admission")


@pytest.fixture
def clean(installed):
    """The same without pods in the managed namespace, before and after."""
    world, release, built, _ = installed
    if not release.revision():
        release.install()
    admitted(world)
    world.clear()
    yield world, release, built
    world.clear()
