"""The web page with many pods, on a real API server: ``./hack/bench.sh --dashboard``."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from bridge import names
from bridge.kube.resources import CONFIGMAPS
from bridge.slurm import cluster_sums, day_history
from bridge.slurm.cluster_sums import Amounts, ClusterSums, NodeSums, PartitionSums
from bridge.slurm.day_history import Sample
from cluster.bench import bare
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.polling import eventually
from cluster.systems import dashboard
from cluster.systems.browser import Browser
from cluster.systems.dashboard import Page
from cluster.world import NAMESPACE, World

THREADS = 8
VIEWS = 9
CHURN = 10.0
"""Seconds for which pods change while the page is open."""
NODES = 1000
VIEWED = (
    ("overview", ""),
    ("list", "pods"),
    ("filtered list", "pods?state=running&page=7"),
    ("map", "map"),
    ("queue", "queue?sort=position"),
    ("list of nodes", "nodes?sort=-use"),
)
_HELD = {"metadata": {"finalizers": ["scheduler.slinky.slurm.net/finalizer"]}}


def _holds(page: Page, count: int) -> bool:
    """Whether the list has this number of pods."""
    return f"{count:,} pod" in page.get("pods")[1]


def _create(world: World, count: int) -> None:
    """Create pods as podbridge leaves them: half wait for Slurm, half are bound, and kwok runs them."""

    def work(number: int) -> None:
        api = bare.kube(world)
        for index in range(number, count, THREADS):
            bound = {"nodeName": f"node-{index % 4}"} if index % 2 else {}
            body = bare.pod_body(f"train-{index:05}", "slurm-bridge-scheduler", **bound)
            body["metadata"] |= _HELD["metadata"] | {"labels": {"scheduler.slinky.slurm.net/slurm-jobid": str(index)}}
            body["spec"]["containers"][0]["env"] = [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(10)]
            api("POST", bare.PODS, body)
            if not bound:
                api("PATCH", f"{bare.PODS}/train-{index:05}/status", _waiting(index), bare.STRATEGIC)

    bare.parallel(THREADS, work)


def _waiting(index: int) -> dict[str, Any]:
    reason = "Priority" if index % 4 else "Resources"
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SlurmPending",
        "message": f"Slurm job {index} is pending in partition main: {reason}",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {"status": {"conditions": [condition]}}


def _create_nodes(world: World) -> None:
    """Create nodes that no kubelet runs, and the sums of Slurm about them as the controllers publish them."""

    def work(number: int) -> None:
        api = bare.kube(world)
        for index in range(number, NODES, THREADS):
            amounts = {"cpu": "128", "memory": "512Gi", "pods": "110"}
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
            status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
            api("POST", "/api/v1/nodes", {"metadata": {"name": f"idle-{index:04}"}, "status": status})

    bare.parallel(THREADS, work)
    patch = cluster_sums.to_config_map(_sums(time.time()))
    patch["data"][day_history.KEY] = day_history.to_text(_day(int(time.time())))
    path = CONFIGMAPS.path(names.SYSTEM_NAMESPACE, names.slurm_sums(names.COMPONENT))
    bare.kube(world)("PATCH", path, patch, "application/merge-patch+json")


def _sums(now: float) -> ClusterSums:
    total = Amounts(128, 512_000, {"gpu:a100": 8})
    nodes = []
    for index in range(NODES):
        states = ("DRAIN", "IDLE") if index % 50 == 0 else ("MIXED",)
        own, others = Amounts(index % 60, index * 100, {"gpu:a100": index % 4}), Amounts(index % 65, index * 200)
        reason = "new memory" if index % 50 == 0 else ""
        nodes.append(NodeSums(f"idle-{index:04}", states, reason, total, own, others, int(now) + 3600, ("main",)))
    waiting = {"Priority": 3750, "Resources": 1250}
    main = PartitionSums("main", NODES, 5000, waiting, 100, 100, tuple(range(0, 1000, 2)))
    return ClusterSums(now, now + 86400, tuple(nodes), (main,))


def _day(now: int) -> list[Sample]:
    period = int(day_history.PERIOD)
    ages = range(day_history.MOST)
    return [Sample(now - age * period, age * 100, age * 50, 128_000, 5000, age * 9, age % 40, age % 30) for age in ages]


def measure(table: Table, folder: Path, count: int) -> None:
    """Measure memory and times of the page without pods, and with ``count`` pods and ``NODES`` nodes."""
    with Cluster(folder / "dashboard", slurm=None, nodes=4) as cluster:
        world = World(cluster)
        with dashboard.served(world) as page:
            page.get("")
            before = bare.resident(page.pid)
        table.add("memory without pods", f"{before:.0f} MiB", "")
        _create(world, count)
        _create_nodes(world)
        began = time.time()
        with dashboard.served(world) as page:
            eventually(lambda: _holds(page, count), "all pods on the page", 120)
            table.add("start to the list of all pods", f"{time.time() - began:.1f} s", f"{count} pods")
            for name, path in VIEWED:
                times = [page.get(path)[0] for _ in range(VIEWS)]
                size = len(page.get(path)[1]) / 1024
                table.add(f"{name}: median, worst", f"{median(times):.3f} s, {max(times):.3f} s", f"{size:.0f} KiB")
            with Browser(folder / "browser") as browser:
                browser.open(page.url)
                table.add("first view in the browser", f"{browser.load_time():.2f} s", "to reach: under 1 s")
                for name, path in VIEWED[3:5]:
                    browser.open(page.base + path)
                    table.add(f"{name} in the browser", f"{browser.load_time():.2f} s", f"{NODES} nodes")
                _churn(world, browser, page, table)
            used = bare.resident(page.pid) - before
            peak = bare.usage(page.pid)[1] - before
            table.add("memory for pods and nodes", f"{used:.0f} MiB, peak {peak:.0f} MiB", "to reach: under 50 MiB")


def _churn(world: World, browser: Browser, page: Page, table: Table) -> None:
    """Change pods as fast as one client can while the page is open."""
    api = bare.kube(world)
    browser.open(page.base)
    read = "return performance.getEntriesByType('resource').filter((e) => e.initiatorType === 'fetch').length"
    cpu, begun, writes = bare.usage(page.pid)[0], time.time(), 0
    while time.time() - begun < CHURN:
        body = {"metadata": {"annotations": {"count": str(writes)}}}
        api("PATCH", f"/api/v1/namespaces/{NAMESPACE}/pods/train-{writes % 1000:05}", body, bare.STRATEGIC)
        writes += 1
    seconds = time.time() - begun
    share = (bare.usage(page.pid)[0] - cpu) / seconds
    table.add(
        "changes of pods, pages read", f"{writes / seconds:.0f}/s, {browser.run(read) / seconds:.1f}/s", "one tab"
    )
    table.add("CPU of the page meanwhile", f"{100 * share:.0f} %", "")
