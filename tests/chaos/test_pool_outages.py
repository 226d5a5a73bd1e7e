"""Sides that can't reach each other for longer than anybody waits: what happened meanwhile is right afterwards.

The sites reach nats-server through a proxy that can drop all traffic silently.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from datetime import datetime

import pytest

from cluster import Cluster
from cluster.pods import FINISHED, PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.chaos import marks
from tests.fakes.blackhole_proxy import BlackholeProxy

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

SITES = ("slurm-site", "local-site")
CUT = 100.0
"""Seconds: longer than any time-out on the way, so that every connection is given up and made anew."""
AWAY = 40.0
"""Seconds without an API server: longer than a leader keeps its lease."""
SETTLED = 90.0
NUMBERS = itertools.count()


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


def start(world, overrides):
    for site in SITES:
        world.cluster.start_submitter(site, overrides)
    world.cluster.start_podbridge()
    for pool in SITES:
        world.ready(pool)
    marks.prepare(world)


def create(world, kind, seconds):
    """Create a pod on each site; it ends with a code of its own."""
    made = []
    for site in SITES:
        number = next(NUMBERS)
        name, code = f"{kind}-{number}", number % 3
        spec = marks.spec(name, seconds, code, terminationGracePeriodSeconds=1)
        made.append((world.create_pod(spec, site, name), code))
    return made


def terminated(status):
    """How a pod's container ended; empty while it has not."""
    return ((status.get("containerStatuses") or [{}])[0].get("state") or {}).get("terminated") or {}


def wrong(world, wanted):
    """What is not as it should be of pods and the codes that they should have ended with."""
    found = {pod["metadata"]["uid"]: pod["status"] for pod in world.pods(NAMESPACE)}
    bad = {}
    for pod, code in wanted:
        status = found.get(pod["metadata"]["uid"], {})
        if status.get("phase") not in FINISHED or terminated(status).get("exitCode") != code:
            bad[pod["metadata"]["name"]] = status
    return bad


def finished_at(world, pod):
    return datetime.fromisoformat(terminated(world.get(pod)["status"])["finishedAt"]).timestamp()


def check(world, kept, deleted, capsys, what):
    with contextlib.suppress(AssertionError):  # the next line says more
        eventually(lambda: not wrong(world, kept), "each pod as it should be", SETTLED, 0.5)
    assert not wrong(world, kept)
    for pod, _ in deleted:
        world.gone(pod, 30)
    ran = marks.runs(world)
    names = [pod["metadata"]["name"] for pod, _ in kept]
    lost = [name for name in names if name not in ran]
    twice = [name for name, count in ran.items() if count > 1]
    world.clear()
    left = [uid for site in SITES for uid in world.jobs_at(site)]
    with capsys.disabled():
        print(f"\n{what}: {len(kept) + len(deleted)} pods: ", end="")
        print(f"{len(lost)} never run, {len(twice)} run twice, {len(left)} left behind")
    assert not lost
    assert not twice
    assert not left


def test_sites_out_of_reach_for_longer_than_any_time_out(world, blackhole_proxy, capsys):
    proxy = blackhole_proxy(int(world.cluster.nats.websocket_url.rpartition(":")[2]))
    start(world, {"nats": {"servers": [f"wss://127.0.0.1:{proxy.port}"]}})
    meanwhile, through, deleted = create(world, "meanwhile", 20), create(world, "through", 120), []
    for _ in range(3):
        deleted += create(world, "deleted", 300)
        meanwhile += create(world, "meanwhile", 25)
    for pod, _ in (*meanwhile, *through, *deleted):
        world.running(pod)
    proxy.cut()
    cut_at = time.time()
    for pod, _ in deleted:
        world.delete(pod)
    created = create(world, "created", 2) + create(world, "created", 5)
    for pool in SITES:
        eventually(lambda p=pool: world.readiness(p).get("status") == "False", "not ready", CUT)
    time.sleep(max(0.0, cut_at + CUT - time.time()))
    assert all(world.get(pod) is not None for pod, _ in deleted), "forgotten while the site was out of reach"
    proxy.mend()
    mended_at = time.time()
    for pod, _ in meanwhile:
        eventually(lambda p=pod: world.get(p)["status"]["phase"] in FINISHED, "ended", SETTLED)
        assert cut_at < finished_at(world, pod) < mended_at - CUT / 2, "its end is told as it was at the site"
    check(world, meanwhile + through + created, deleted, capsys, f"sites cut off for {CUT:.0f} s")


def test_a_hub_without_its_api_server(world, capsys):
    start(world, {})
    meanwhile, through = create(world, "meanwhile", 15), create(world, "through", 60)
    for _ in range(3):
        meanwhile += create(world, "meanwhile", 20)
    for pod, _ in (*meanwhile, *through):
        world.running(pod)
    world.cluster.kill("kube-apiserver", signal.SIGSTOP)
    stopped_at = time.time()
    time.sleep(AWAY)
    world.cluster.kill("kube-apiserver", signal.SIGCONT)
    if world.cluster.pid("podbridge") is None:  # who lost the lease ends, and Kubernetes starts it again
        world.cluster.start_podbridge()
    for pool in SITES:
        world.ready(pool, 60)
    created = create(world, "created", 2)
    check(world, meanwhile + through + created, [], capsys, f"no API server for {AWAY:.0f} s")
    assert time.time() - stopped_at < AWAY + SETTLED + 60
