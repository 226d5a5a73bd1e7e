"""An interLink plugin drops, delays, repeats and garbles answers, and the hub is killed: no pod runs twice, is lost, or
is forgotten.

The hub is a real process on a real API server; the plugin is a server of this test, whose jobs are timers. Every pod
must succeed with exactly one job, and after all pods are deleted the plugin must have no job. A third of the pods are
deleted early, at any moment of their lives. A short run takes less than a minute; a long run (``./hack/test.sh
--long outages``) has 400 pods and 60 kills.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

import pytest

from cluster import Cluster
from cluster.pods import FINISHED, PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.fakes.interlink_plugin import FAULTS, FakePlugin

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]
POOL = "far"
PODS, KILLS = 40, 3
LONG_PODS, LONG_KILLS = 400, 60
SHARES = {"/create": 0.5}
SHARE = 0.2
"""Shares of the requests with a fault: of ``/create``, and of the others."""


class Faults:
    """Faults of requests while ``on``, from the random numbers of a seed. Thread-safe."""

    def __init__(self, seed: int) -> None:
        self.on = True
        self.counts: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._lock = threading.Lock()

    def __call__(self, method: str, path: str) -> str | None:
        with self._lock:
            if not self.on or self._chance.random() >= SHARES.get(path, SHARE):
                return None
            fault = self._chance.choice(FAULTS)
            self.counts[f"{path} {fault}"] += 1
            return fault


class FaultyWorld(PoolWorld):
    """A cluster with an interLink pool; ``settings`` are those of its hub."""

    def __init__(self, cluster: Cluster, settings: dict[str, object]) -> None:
        super().__init__(cluster)
        self.settings = settings

    def start(self) -> None:
        self.cluster.start_podbridge(config_overrides=self.settings)


@pytest.fixture
def plugin():
    with FakePlugin(seconds=3.0, delay=1.5) as running:
        yield running


@pytest.fixture
def world(state_folder, plugin):
    with Cluster(state_folder / "chaos-interlink", slurm=None, nodes=0) as cluster:
        section = {
            "name": POOL,
            "url": plugin.url,
            "capacity": {"cpu": "1000", "memory": "1Ti"},
            "pollPeriod": 0.5,
            "pingPeriod": 1,
            "timeout": 2,
            "createAttempts": 100,
            "lateCreate": 3,
        }
        cluster.add_namespace(NAMESPACE, {"bridge.vk.io/pools": "*"})
        cluster.open_to_pools(NAMESPACE)
        pools = {"interlink": [section], "submitTimeout": 1, "nodeAddress": "127.0.0.1", "kubeletPort": 0}
        lease = {"leaseDuration": 3, "renewDeadline": 2, "retryPeriod": 0.5}
        world = FaultyWorld(cluster, {"managedNamespaces": [NAMESPACE], "pools": pools, "leaderElection": lease})
        world.start()
        world.ready(POOL)
        yield world


def create(world: PoolWorld, number: int) -> str:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["true"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    spec = {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False}
    return str(world.create_pod(spec, POOL, f"f{number}")["metadata"]["uid"])


def delete(world: PoolWorld, number: int, grace: int) -> None:
    world.api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/f{number}", {"gracePeriodSeconds": grace})


def test_no_pod_runs_twice_is_lost_or_forgotten(world, plugin, long, report):
    total, kills = (LONG_PODS, LONG_KILLS) if long else (PODS, KILLS)
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    plugin.fault = faults = Faults(seed)
    uids: dict[int, str] = {}
    deleted: set[int] = set()
    for kill in range(kills):
        for number in range(total * kill // kills, total * (kill + 1) // kills):
            uids[number] = create(world, number)
        time.sleep(chance.uniform(0.5, 3))
        for number in sorted(uids.keys() - deleted):
            if chance.random() < 0.1:
                delete(world, number, chance.choice((0, 1, 30)))
                deleted.add(number)
        world.cluster.kill("podbridge")
        time.sleep(chance.uniform(0, 1))
        world.start()
        time.sleep(chance.uniform(0.5, 2))

    time.sleep(60 if long else 6)
    faults.on = False  # otherwise the back-offs of the last pods take minutes

    def over() -> bool:
        found = world.pods(NAMESPACE)
        kept = {pod["metadata"]["name"] for pod in found}
        return kept == {f"f{number}" for number in uids.keys() - deleted} and all(
            pod["status"].get("phase") in FINISHED for pod in found
        )

    eventually(over, "all pods over, and the deleted ones gone", 180, 1.0)
    failed = {pod["metadata"]["name"]: pod["status"] for pod in world.pods(NAMESPACE)
              if pod["status"]["phase"] != "Succeeded"}  # fmt: skip
    world.api.delete_pods(NAMESPACE)
    eventually(lambda: not world.pods(NAMESPACE), "no pod left", 90)
    times = Counter(plugin.creates)
    twice = [uid for uid, count in times.items() if count > 1]
    never = [number for number in uids.keys() - deleted if times[uids[number]] == 0]
    left = list(plugin.jobs)  # every pod is deleted, and so must its job be
    said = f"{len(failed)} lost, {len(twice)} run twice, {len(never)} never run, {len(left)} left behind"
    report(f"interLink faults, seed {seed}: {total} pods, {kills} kills, {faults.counts.total()} faults: {said}")
    assert not failed, (seed, list(failed.items())[:3])
    assert not twice, (seed, faults.counts)
    assert not never, seed
    assert not left, (seed, faults.counts)
