from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import KubeGoneError, KubeUnavailableError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import LEASES
from cluster.errors import ClusterError
from cluster.polling import eventually
from tests.fakes.cache_suite import CacheSuite, Running, World

pytestmark = pytest.mark.real


class TestCacheOnKubeApiserver(CacheSuite):
    """The tests that the fake and the real API server share."""


def test_quiet_watch_stays_confirmed(client: KubeClient, namespace: str) -> None:
    with Running(client, namespace, idle_timeout=4.0) as running:
        assert running.cache.wait_synced(10)
        begun = time.monotonic()
        oldest = 0.0
        while time.monotonic() - begun < 7:
            oldest = max(oldest, running.cache.age())
            time.sleep(0.02)
        assert oldest < 4


def started(cluster: Any, daemon: str = "kube-apiserver") -> bool:
    try:
        cluster.start_daemon(daemon)
    except ClusterError:  # the port of a killed server may stay in use longer than its pid
        return False
    return True


def test_restart_of_the_api_server(client: KubeClient, namespace: str, cluster: Any) -> None:
    world = World(client, namespace)
    world.create("before")
    with Running(client, namespace) as running:
        assert running.cache.wait_synced(10)
        cluster.kill("kube-apiserver")
        eventually(lambda: started(cluster), timeout=30)
        begun = time.monotonic()
        eventually(lambda: world.create("after") or True, timeout=1)
        eventually(lambda: running.cache.get(namespace, "after"), timeout=10)
        assert time.monotonic() - begun < 10
        assert running.heard().count(("add", "before")) == 1
        with pytest.raises(KubeGoneError):  # the new server has no history
            list(client.watch(LEASES.path(namespace), {"resourceVersion": "1"}, idle_timeout=5))


def answers(client: KubeClient, namespace: str) -> bool:
    try:
        client.get(LEASES.path(namespace))
    except KubeUnavailableError:
        return False
    return True


def test_etcd_restored_from_a_backup(client: KubeClient, namespace: str, cluster: Any, tmp_path: Path) -> None:
    world = World(client, namespace)
    data = cluster.state / "kube" / "etcd"
    world.create("kept")
    cluster.kill("etcd")
    shutil.copytree(data, tmp_path / "backup")
    eventually(lambda: started(cluster, "etcd"))
    eventually(lambda: answers(client, namespace))
    with Running(client, namespace, idle_timeout=8.0) as running:
        assert running.cache.wait_synced(10)
        world.create("lost")
        for number in range(300):  # more than the API server writes when it starts
            world.patch("lost", str(number))
        eventually(lambda: len(running.cache) == 2)
        cluster.kill("kube-apiserver")
        cluster.kill("etcd")
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        eventually(lambda: started(cluster, "etcd"))
        eventually(lambda: started(cluster))
        eventually(lambda: len(running.cache) == 1, timeout=10)
