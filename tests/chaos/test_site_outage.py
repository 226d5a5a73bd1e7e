"""Sites that are out of reach for longer than all time-outs: afterwards each pod has the outcome of its job.

The sites reach nats-server through a proxy that can drop all traffic silently.
"""

import time

import pytest

from cluster import Cluster
from cluster.pods import FINISHED, PoolWorld
from cluster.polling import eventually
from tests.chaos import outages
from tests.chaos.outages import SITES
from tests.fakes.blackhole_proxy import BlackholeProxy

pytestmark = [pytest.mark.real, pytest.mark.timeout(400), pytest.mark.long_only]

CUT = 100.0
"""Seconds without NATS: longer than each time-out (the longest is that of a submission, 60 s)."""


@pytest.fixture
def blackhole_proxy():
    made = []

    def make(target):
        made.append(BlackholeProxy(target))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-outages", slurm=None, pools=list(SITES), nodes=1) as cluster:
        yield PoolWorld(cluster)


def test_sites_out_of_reach_for_longer_than_any_time_out(world, blackhole_proxy, report):
    proxy = blackhole_proxy(int(world.cluster.nats.websocket_url.rpartition(":")[2]))
    outages.start(world, {"nats": {"servers": [f"wss://127.0.0.1:{proxy.port}"]}})
    meanwhile, through, deleted = outages.create(world, "meanwhile", 20), outages.create(world, "through", CUT + 15), []
    for _ in range(3):
        deleted += outages.create(world, "deleted", 300)
        meanwhile += outages.create(world, "meanwhile", 25)
    for pod, _ in (*meanwhile, *through, *deleted):
        world.running(pod)
    proxy.cut()
    cut_at = time.time()
    for pod, _ in deleted:
        world.delete(pod)
    created = outages.create(world, "created", 2) + outages.create(world, "created", 5)
    for pool in SITES:
        eventually(lambda p=pool: world.readiness(p).get("status") == "False", "not ready", CUT)
    time.sleep(max(0.0, cut_at + CUT - time.time()))
    assert all(world.get(pod) is not None for pod, _ in deleted), "removed while the site was unreachable"
    proxy.mend()
    mended_at = time.time()
    for pod, _ in meanwhile:
        eventually(lambda p=pod: world.get(p)["status"]["phase"] in FINISHED, "ended", outages.SETTLED)
        assert cut_at < outages.finished_at(world, pod) < mended_at - CUT / 2, (
            "the time of its end is not that of the site"
        )
    outages.check(world, meanwhile + through + created, deleted, report, f"sites cut off for {CUT:.0f} s")
