"""One cluster for each version of Slurm, with podbridge on it."""

from pathlib import Path

import pytest

from cluster import Cluster
from cluster.world import World

VERSIONS = ("26.05", "24.11", "22.05")

URGENT = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "PartitionName=urgent Nodes=node-[0-3] PriorityTier=10 MaxTime=INFINITE State=UP",
)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Tests of one cluster go to one process (``pytest -n 3 --dist loadgroup``), so that the cluster starts once."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            params = item.callspec.params.values() if hasattr(item, "callspec") else ()
            version = next((version for version in VERSIONS if version in params), "")
            item.add_marker(pytest.mark.xdist_group(version or item.path.parent.name + item.path.stem))


def _world(state_folder, version, **options):
    return Cluster(state_folder / f"e2e-{version}", slurm=version, nodes=4, audit=True, slurm_conf=URGENT, **options)


@pytest.fixture(scope="session", params=VERSIONS)
def world(request, state_folder):
    """A cluster with podbridge, for each version of Slurm."""
    with _world(state_folder, request.param) as cluster:
        cluster.start_podbridge()
        yield World(cluster)


@pytest.fixture
def clean(world):
    """The world without pods, before and after."""
    world.clear()
    yield world
    world.clear()
