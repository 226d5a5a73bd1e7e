"""Outages that are longer than all time-outs: afterwards each pod has the outcome that its job had at the site.

The sites reach nats-server through a proxy that can drop all traffic silently. A long run (``./hack/test.sh --long``)
has longer outages.
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
CUT, LONG_CUT = 65.0, 100.0
"""Seconds without NATS: longer than each time-out (the longest is that of a submission, 60 s)."""
AWAY, LONG_AWAY = 12.0, 40.0
"""Seconds without an API server: longer than the lease of a leader."""
SHORT_LEASE = {"leaderElection": {"leaseDuration": 4, "renewDeadline": 3, "retryPeriod": 0.5}}
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


def start(world, submitter=None, hub=None):
    for site in SITES:
        world.cluster.start_submitter(site, submitter)
    world.cluster.start_podbridge(config_overrides=hub)
    for pool in SITES:
        world.ready(pool)
    marks.prepare(world)


def create(world, kind, seconds):
    """Create a pod on each site; return the pods with their exit codes."""
    made = []
    for site in SITES:
        number = next(NUMBERS)
        name, code = f"{kind}-{number}", number % 3
        spec = marks.spec(name, seconds, code, terminationGracePeriodSeconds=1)
        made.append((world.create_pod(spec, site, name), code))
    return made


def terminated(status):
    """Return the terminated state of a pod's container; empty before its end."""
    return ((status.get("containerStatuses") or [{}])[0].get("state") or {}).get("terminated") or {}


def wrong(world, wanted):
    """Return the statuses of the pods that have not ended with their exit code, by name."""
    found = {pod["metadata"]["uid"]: pod["status"] for pod in world.pods(NAMESPACE)}
    bad = {}
    for pod, code in wanted:
        status = found.get(pod["metadata"]["uid"], {})
        if status.get("phase") not in FINISHED or terminated(status).get("exitCode") != code:
            bad[pod["metadata"]["name"]] = status
    return bad


def finished_at(world, pod):
    return datetime.fromisoformat(terminated(world.get(pod)["status"])["finishedAt"]).timestamp()


def check(world, kept, deleted, report, what):
    with contextlib.suppress(AssertionError):  # the next line shows the statuses
        eventually(lambda: not wrong(world, kept), "each pod ended with its exit code", SETTLED, 0.5)
    assert not wrong(world, kept)
    for pod, _ in deleted:
        world.gone(pod, 30)
    ran = marks.runs(world)
    names = [pod["metadata"]["name"] for pod, _ in kept]
    lost = [name for name in names if name not in ran]
    twice = [name for name, count in ran.items() if count > 1]
    world.clear()
    left = [uid for site in SITES for uid in world.jobs_at(site)]
    counts = f"{len(lost)} never run, {len(twice)} run twice, {len(left)} left behind"
    report(f"{what}, {len(kept) + len(deleted)} pods: {counts}")
    assert not lost
    assert not twice
    assert not left


def test_sites_out_of_reach_for_longer_than_any_time_out(world, blackhole_proxy, long, report):
    cut = LONG_CUT if long else CUT
    proxy = blackhole_proxy(int(world.cluster.nats.websocket_url.rpartition(":")[2]))
    start(world, {"nats": {"servers": [f"wss://127.0.0.1:{proxy.port}"]}})
    meanwhile, through, deleted = create(world, "meanwhile", 20), create(world, "through", cut + 15), []
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
        eventually(lambda p=pool: world.readiness(p).get("status") == "False", "not ready", cut)
    time.sleep(max(0.0, cut_at + cut - time.time()))
    assert all(world.get(pod) is not None for pod, _ in deleted), "removed while the site was unreachable"
    proxy.mend()
    mended_at = time.time()
    for pod, _ in meanwhile:
        eventually(lambda p=pod: world.get(p)["status"]["phase"] in FINISHED, "ended", SETTLED)
        assert cut_at < finished_at(world, pod) < mended_at - cut / 2, "the time of its end is not that of the site"
    check(world, meanwhile + through + created, deleted, report, f"sites cut off for {cut:.0f} s")


def test_a_hub_without_its_api_server(world, long, report):
    away, hub = (LONG_AWAY, None) if long else (AWAY, SHORT_LEASE)
    start(world, hub=hub)
    meanwhile, through = create(world, "meanwhile", 0.4 * away), create(world, "through", 1.5 * away)
    for _ in range(3):
        meanwhile += create(world, "meanwhile", 0.5 * away)
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
    created = create(world, "created", 2)
    check(world, meanwhile + through + created, [], report, f"no API server for {away:.0f} s")
    assert time.time() - stopped_at < away + SETTLED + 60
