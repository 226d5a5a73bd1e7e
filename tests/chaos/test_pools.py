"""Everything killed and stopped at random while 200 pods run on two sites: none lost, run twice or left behind.

The hub, the submitters and nats-server are killed by SIGKILL; the site's slurmctld is ended by SIGTERM, and all of
them are stopped for a while.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from tests.chaos import marks

pytestmark = pytest.mark.real
PODS = 200
SITES = ("slurm-site", "local-site")
VICTIMS = ("podbridge", "nats-server", "slurm-site-submitter", "local-site-submitter", "slurm-site-slurmctld")
LONGEST_PAUSE = 4.0


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-pools", slurm=None, pools=list(SITES), nodes=1) as cluster:
        cluster.start_submitters()
        cluster.start_podbridge()
        world = PoolWorld(cluster)
        for pool in SITES:
            world.ready(pool)
        yield world


def create(world, number):
    name = f"c{number}"
    return world.create_pod(marks.spec(name, number % 20), SITES[number % 2], name)


def hurt(world, chance):
    """Kill a daemon, or stop it for a while, and bring it back."""
    victim = chance.choice(VICTIMS)
    site = next((site for site in SITES if victim == f"{site}-submitter"), None)
    if chance.random() < 0.4:
        world.cluster.kill(victim, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, LONGEST_PAUSE))
        world.cluster.kill(victim, signal.SIGCONT)
        return f"{victim} stopped"
    if victim.endswith("slurmctld"):
        # killed by force, it forgets what it was told in its last five seconds, and kills jobs that it can't remember
        world.cluster.stop_daemon(victim)
    else:
        world.cluster.kill(victim)
    time.sleep(chance.uniform(0, LONGEST_PAUSE / 2))
    if victim == "podbridge":
        world.cluster.start_podbridge()
    elif site:
        world.cluster.start_submitter(site)
    else:
        world.cluster.start_daemon(victim)
    return f"{victim} killed"


def test_two_hundred_pods_survive_everything(world, capsys):
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    marks.prepare(world)
    pods = [create(world, number) for number in range(PODS // 2)]
    hurts = []
    end = time.monotonic() + 60
    while time.monotonic() < end:
        hurts.append(hurt(world, chance))
        if len(pods) < PODS:
            pods += [create(world, number) for number in range(len(pods), min(PODS, len(pods) + 20))]
        time.sleep(chance.uniform(0.5, 3))
    pods += [create(world, number) for number in range(len(pods), PODS)]
    marks.check_each_ran_once(world, PODS, capsys, f"chaos on pools, seed {seed}: {len(hurts)} kills and stops")
