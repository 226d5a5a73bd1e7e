"""A cluster for the tests that kill and stop daemons; at first only podbridge's admission runs on it."""

import pytest

from cluster import Cluster
from cluster.world import World
from tests.conftest import SLURMS

CHAOS = "tests/chaos/"


def pytest_collection_modifyitems(config, items):
    """Keep one version of Slurm in a short run. A long one (``--long``) runs each test on all of its versions."""
    if config.getoption("--long"):
        return
    left_out = [item for item in items if item.nodeid.startswith(CHAOS) and _slurm(item) not in ("", SLURMS[0])]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _slurm(item):
    """Return the version of Slurm that a test runs on; empty if it has none of several."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("bare_world", "") if callspec else ""


def pytest_report_header(config):
    """Print what a short run leaves out."""
    if config.getoption("--long"):
        return None
    return f"chaos: a short run, on Slurm {SLURMS[0]} alone; --long adds {', '.join(SLURMS[1:])} and longer runs"


@pytest.fixture(scope="session", params=SLURMS)
def bare_world(request, state_folder):
    """Slurm and Kubernetes with podbridge's admission alone, for each version of Slurm."""
    with Cluster(state_folder / f"chaos-{request.param}", slurm=request.param, nodes=4, audit=True) as cluster:
        cluster.start_podbridge(("admission",))
        yield World(cluster)
