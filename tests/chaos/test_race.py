"""Pods race at two sites while hub, submitters and nats-server are killed or stopped: each runs once, nothing is left.

Sites are cordoned meanwhile, so places are withdrawn and given again. A pod whose job was killed together with its node
may fail (docs/developers/late-binding.md); no fault here kills a job, so none may.
"""

import random
import signal
import time
from contextlib import contextmanager

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from tests.chaos import marks

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
PODS, KILLS = 24, 6
LONG_PODS, LONG_KILLS = 150, 75
SITES = ("slurm-site", "local-site")
VICTIMS = ("podbridge", "nats-server", "slurm-site-submitter", "local-site-submitter")
LONGEST_PAUSE = 7.0
"""Seconds; longer than the wait of a script, so that places are given back."""
SETTINGS = {"pools": {"race": {"enabled": True, "places": 2, "wait": 5}}}
ALLOWED = {"limits": {"allow_race": True}}


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "chaos-race", slurm=None, pools=list(SITES), nodes=1) as cluster:
        for site in SITES:
            cluster.start_submitter(site, overrides=ALLOWED)
        cluster.start_podbridge(config_overrides=SETTINGS)
        found = PoolWorld(cluster)
        for site in SITES:
            found.ready(site)
        yield found


def hurt(world, chance):
    """Stop a daemon for some seconds (a partition), or kill and start it."""
    victim = chance.choice(VICTIMS)
    if chance.random() < 0.5:
        world.cluster.kill(victim, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, LONGEST_PAUSE))
        world.cluster.kill(victim, signal.SIGCONT)
        return
    world.cluster.kill(victim)
    time.sleep(chance.uniform(0, LONGEST_PAUSE / 2))
    site = next((site for site in SITES if victim == f"{site}-submitter"), None)
    if victim == "podbridge":
        world.cluster.start_podbridge(config_overrides=SETTINGS)
    elif site:
        world.cluster.start_submitter(site, overrides=ALLOWED)
    else:
        world.cluster.start_daemon(victim)


@contextmanager
def maintenance(world, chance):
    """Cordon one site, both or none: the pods lose their places there."""
    closed = chance.choice(((), SITES[:1], SITES[1:], SITES))
    if closed:
        world.cluster.kubectl("cordon", *closed)
    try:
        yield
    finally:
        if closed:
            world.cluster.kubectl("uncordon", *closed)


def test_each_pod_that_races_runs_once(world, long, report):
    total, kills = (LONG_PODS, LONG_KILLS) if long else (PODS, KILLS)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    marks.prepare(world)
    for batch in marks.batches(total, kills):
        for name in (f"r{number}" for number in batch):
            pools = ",".join(chance.sample(SITES, 2))
            world.create_pod(marks.spec(name, chance.randrange(5)), pools, name, {"bridge.vk.io/placement": "race"})
        with maintenance(world, chance):
            hurt(world, chance)
            time.sleep(chance.uniform(0.2, 2))
    marks.check_each_ran_once(world, total, report, f"chaos of races, seed {seed}: {kills} kills and stops")
