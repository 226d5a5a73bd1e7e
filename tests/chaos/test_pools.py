"""All daemons are killed or stopped at random while pods run on two sites: no pod is lost, run twice or left behind.

The hub, the submitters and nats-server are killed by SIGKILL, the site's slurmctld is ended by SIGTERM, and each of
them is stopped (SIGSTOP) for some seconds. A short run has 80 pods, a long run (``./hack/test.sh --long sites``) 600.
"""

from __future__ import annotations

import random
import signal
import time

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from tests.chaos import marks

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
PODS, KILLS = 80, 10
LONG_PODS, LONG_KILLS = 600, 300
SITES = ("slurm-site", "local-site")
VICTIMS = ("podbridge", "nats-server", "slurm-site-submitter", "local-site-submitter", "slurm-site-slurmctld")
LONGEST_PAUSE = 4.0


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-pools", slurm=None, pools=list(SITES), nodes=1) as cluster:
        yield PoolWorld.started(cluster)


def create(world, number):
    name = f"c{number}"
    world.create_pod(marks.spec(name, number % 20), SITES[number % 2], name)


def hurt(world, chance):
    """Kill a daemon, or stop it for some seconds, and start or continue it; return what was done."""
    victim = chance.choice(VICTIMS)
    site = next((site for site in SITES if victim == f"{site}-submitter"), None)
    if chance.random() < 0.4:
        world.cluster.kill(victim, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, LONGEST_PAUSE))
        world.cluster.kill(victim, signal.SIGCONT)
        return f"{victim} stopped"
    if victim.endswith("slurmctld"):
        # after SIGKILL it has lost the changes of its last five seconds, and kills jobs that it does not know
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


def test_pods_survive_everything(world, long, report, capsys):
    total, kills = (LONG_PODS, LONG_KILLS) if long else (PODS, KILLS)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    marks.prepare(world)
    for number, batch in enumerate(marks.batches(total, kills), 1):
        for name in batch:
            create(world, name)
        done = hurt(world, chance)
        if long:
            with capsys.disabled():
                print(f"{number}/{kills} {done}, {batch.stop} pods created", flush=True)
        time.sleep(chance.uniform(0.2, 2))
    marks.check_each_ran_once(world, total, report, f"chaos on pools, seed {seed}: {kills} kills and stops")
