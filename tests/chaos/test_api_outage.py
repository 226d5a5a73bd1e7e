"""A hub without its API server: afterwards each pod has the outcome that its job had at the site.

A long run (``./hack/test.sh --long outages``) has a longer outage.
"""

import signal
import time

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from tests.chaos import outages
from tests.chaos.outages import SITES

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

AWAY, LONG_AWAY = 12.0, 40.0
"""Seconds without an API server: longer than the lease of a leader."""
SHORT_LEASE = {"leaderElection": {"leaseDuration": 4, "renewDeadline": 3, "retryPeriod": 0.5}}


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-api", slurm=None, pools=list(SITES), nodes=1) as cluster:
        yield PoolWorld(cluster)


def test_a_hub_without_its_api_server(world, long, report):
    away, hub = (LONG_AWAY, None) if long else (AWAY, SHORT_LEASE)
    outages.start(world, hub=hub)
    meanwhile, through = outages.create(world, "meanwhile", 0.4 * away), outages.create(world, "through", 1.5 * away)
    for _ in range(3):
        meanwhile += outages.create(world, "meanwhile", 0.5 * away)
    for pod, _ in (*meanwhile, *through):
        world.running(pod)
    world.cluster.kill("kube-apiserver", signal.SIGSTOP)
    stopped_at = time.time()
    time.sleep(away)
    eventually(lambda: world.cluster.pid("podbridge") is None, "the hub without its lease has ended", 30)
    world.cluster.kill("kube-apiserver", signal.SIGCONT)
    world.cluster.start_podbridge(config_overrides=hub)  # as Kubernetes does
    for pool in SITES:
        world.ready(pool, 60)
    created = outages.create(world, "created", 2)
    outages.check(world, meanwhile + through + created, [], report, f"no API server for {away:.0f} s")
    assert time.time() - stopped_at < away + outages.SETTLED + 60
