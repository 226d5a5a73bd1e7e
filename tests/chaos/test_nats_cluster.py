"""Three NATS servers, killed and cut off while pods run on two sites: no pod is lost, run twice or left behind.

Each server has a network namespace of its own, so that a partition drops packets.
"""

import time

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from tests.chaos import marks

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.long_only]

SITES = ("slurm-site", "local-site")
PODS = 200
CUT = 35.0
"""Seconds; a connection to a silent server is closed after 30 s."""
LONGEST = 40
"""Seconds for which a pod runs: some run longer than the cut, most end during it."""


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-nats", slurm=None, pools=list(SITES), nodes=1, nats_servers=3) as cluster:
        yield PoolWorld.started(cluster)


def create(world, first, last):
    for number in range(first, last):
        name = f"n{number}"
        world.create_pod(marks.spec(name, number % LONGEST), SITES[number % 2], name)


def replicas_in_sync(world):
    """Return whether the hub's bucket has all three replicas, and each is current."""
    for daemon in world.cluster.nats.daemons:
        info = world.cluster.nats.monitor("jsz?streams=1", daemon)
        for account in info.get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                cluster = stream["cluster"]
                if cluster.get("leader") == daemon.rpartition("-")[2]:
                    others = cluster.get("replicas") or ()
                    return len(others) == 2 and all(other.get("current") for other in others)
    return False


def test_servers_are_killed_and_cut_off(world, report):
    marks.prepare(world)
    nats = world.cluster.nats
    eventually(lambda: replicas_in_sync(world), "the bucket has three replicas", 30)
    servers = list(nats.daemons)
    step = PODS // (2 * len(servers))
    created = 0
    for server in servers:
        create(world, created, created + step)
        world.cluster.kill(server)
        for pool in SITES:
            world.ready(pool, 30)
        create(world, created + step, created + 2 * step)
        created += 2 * step
        world.cluster.start_daemon(server)
        host = server.rpartition("-")[2]
        nats.hosts.cut(host)
        time.sleep(CUT)
        for pool in SITES:
            world.ready(pool, 60)
        nats.hosts.mend(host)
        eventually(lambda: replicas_in_sync(world), "the bucket has three replicas", 60)
    create(world, created, PODS)
    marks.check_each_ran_once(world, PODS, report, f"{len(servers)} of three NATS servers killed and cut off")
