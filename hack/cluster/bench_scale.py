"""A leader and a standby beside many jobs of others and many waiting pods: ``./hack/bench.sh --scale``."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import bare, drains, latency
from cluster.core import Cluster
from cluster.kube import node_object
from cluster.polling import eventually
from cluster.ports import http_status
from cluster.table import Table
from cluster.world import JOB_PREFIX, LABEL, World

THREADS = 4
OTHERS, CLOSED = "others", "bench/closed"
"""A partition of Slurm for the jobs of others, and the taint of the nodes that the pods do not tolerate."""
WATCH = 60
"""Seconds over which requests and CPU time are counted."""
CORDONS = 5
DEBUG = {"logging": {"level": "debug"}}
"""The leader logs the CPU time of each look."""
PARTS = {"scheduler": "leader", "controllers": "controllers"}


@dataclass(frozen=True)
class Size:
    """The numbers of nodes, of waiting pods and of foreign jobs; ``closed`` is the share of nodes without room."""

    nodes: int
    pods: int
    foreign: int
    closed: float = 0.9


def slurm_conf(size: Size) -> list[str]:
    """Lines for nodes without slurmd: no job starts there. Slurm does not try to start the jobs of others at all."""
    jobs = 2 * (size.pods + size.foreign) + 1000
    nodes = f"{drains.PREFIX}[0-{size.nodes - 1}]"
    return [*drains.slurm_conf(size.nodes), f"MaxJobCount={jobs}", f"PartitionName={OTHERS} Nodes={nodes} State=DOWN"]


def measure(table: Table, folder: Path, size: Size) -> None:
    """Start a cluster with everything that is to be measured, and add the rows."""
    with Cluster(folder / "scale", slurm="26.05", nodes=2, gpus=0, slurm_conf=slurm_conf(size)) as cluster:
        world = World(cluster)
        _prepare(table, world, size)
        for part, name in PARTS.items():
            cluster.start_podbridge((part,), name=name, config_overrides=DEBUG)
        _wait_submitted(world, size)
        seconds = bare.parallel(THREADS, lambda first: _submit_others(world, range(first, size.foreign, THREADS)))
        table.add("pending jobs of others", f"{size.foreign}", f"submitted in {seconds:.0f} s")
        _restarts(table, world)
        cluster.start_podbridge(("scheduler",), name="standby")
        _wait_listed(world, "standby")
        _load(table, world, size)
        _cordons(table, world, size)
        for name, limit in (("leader", 400), ("standby", 200), ("controllers", 400)):
            pid = cluster.pid(name)
            figures = f"{bare.resident(pid):.0f} MiB, peak {bare.usage(pid)[1]:.0f} MiB"
            table.add(f"memory of the {name}", figures, f"to reach: {limit} MiB")
        table.add("memory of slurmrestd", f"{bare.resident(cluster.pid('slurmrestd')):.0f} MiB")


def _prepare(table: Table, world: World, size: Size) -> None:
    """Create the nodes and the waiting pods."""
    cluster = world.cluster
    seconds = bare.parallel(THREADS, lambda first: _create_nodes(world, range(first, size.nodes, THREADS), size))
    for state in ("down", "idle"):  # slurmctld does not know yet in which state they are
        names = f"nodename={drains.PREFIX}[0-{size.nodes - 1}]"
        cluster.run_slurm("scontrol", "update", names, f"state={state}", "reason=bench")
    table.add("nodes", f"{size.nodes}, {size.closed:.0%} of them excluded", f"created in {seconds:.0f} s")
    seconds = bare.parallel(THREADS, lambda first: _create_pods(world, range(first, size.pods, THREADS)))
    table.add("waiting pods", f"{size.pods}", f"created in {seconds:.0f} s")


def _create_nodes(world: World, numbers: range, size: Size) -> None:
    for number in numbers:
        node = node_object(f"{drains.PREFIX}{number}", drains.SIZE)
        if number < size.nodes * size.closed:
            node.setdefault("spec", {})["taints"] = [{"key": CLOSED, "effect": "NoSchedule"}]
        world.api("POST", "/api/v1/nodes", node)


def _submit_others(world: World, numbers: range) -> None:
    api, body = bare.slurm(world)
    for number in numbers:
        job = body(f"other-{number}")
        job["job"]["partition"] = OTHERS
        api("POST", bare.submit_path(world), job)


def _create_pods(world: World, numbers: range) -> None:
    api = bare.kube(world)
    for number in numbers:
        api("POST", bare.PODS, _pod(f"w{number}"))


def _pod(name: str) -> dict[str, Any]:
    pod = bare.pod_body(name, "slurm-bridge-scheduler")
    pod["metadata"]["annotations"] = {JOB_PREFIX + "partition": "many"}
    return pod


def _wait_submitted(world: World, size: Size) -> None:
    """Wait until each pod has the id of its job; the leader sets it after some seconds."""
    eventually(lambda: len(bare.said(world, "job submitted", "leader")) >= size.pods, "all pods have jobs", 3600, 1)
    # a list with a selector has no count of the rest: a page shows whether pods without the id are left
    query = f"{bare.PODS}?limit=1&labelSelector=%21{LABEL.replace('/', '%2F')}"
    eventually(lambda: not world.api("GET", query)["items"], "all pods have the ids of their jobs", 3600, 1)


def _listed(world: World, name: str) -> bool:
    """Return whether a process has read all jobs once since its start."""
    return bool(bare.said(world, "all jobs are read", name))


def _wait_listed(world: World, name: str) -> None:
    eventually(lambda: _listed(world, name), f"{name} has read all jobs", 3600, 0.5)


def _restarts(table: Table, world: World) -> None:
    """Stop and start the processes while the pods wait; nobody stands by."""
    cluster = world.cluster
    _wait_listed(world, "leader")
    for name in PARTS.values():
        cluster.stop_podbridge(name)
    began = time.monotonic()
    for part, name in PARTS.items():
        cluster.start_podbridge((part,), name=name, config_overrides=DEBUG, wait=False)
    health = {name: cluster.podbridge_port("health", name) for name in PARTS.values()}
    ready: dict[str, float] = {}

    def all_ready() -> bool:
        for name, port in health.items():
            if name not in ready and http_status(f"http://127.0.0.1:{port}/readyz") == 200:
                ready[name] = time.monotonic() - began
        return len(ready) == len(health)

    eventually(all_ready, "ready", 3600, 0.1)
    for name, seconds in ready.items():
        table.add(f"{name}: ready after a start", f"{seconds:.1f} s", "to reach: 15 s")
    _wait_listed(world, "leader")
    table.add("leader: all jobs read after a start", f"{time.monotonic() - began:.0f} s", "then it submits new pods")


def _load(table: Table, world: World, size: Size) -> None:
    """Count requests to slurmrestd, and CPU time, while nothing changes."""
    cluster = world.cluster
    time.sleep(20)
    names = ("leader", "standby", "controllers")
    before = {name: _usage(cluster, name) for name in names}
    daemons = {name: bare.usage(cluster.pid(name))[0] for name in ("slurmrestd", "slurmctld")}
    time.sleep(WATCH)
    for name in names:
        requests, data, cpu = (
            (after - earlier) / WATCH for after, earlier in zip(_usage(cluster, name), before[name], strict=True)
        )
        limit = "to reach: 12/s, 2 MB/s" if name == "leader" else "to reach: 1/s"
        table.add(f"slurmrestd asked by the {name}", f"{requests:.1f}/s, {data / 1e6:.2f} MB/s", limit)
        table.add(f"CPU of the {name}", f"{cpu:.3f} core")
    for name, earlier in daemons.items():
        table.add(f"CPU of {name}", f"{(bare.usage(cluster.pid(name))[0] - earlier) / WATCH:.3f} core")
    looks = _looks(world, "leader")
    table.add(
        "a look at all pods", f"p50 {statistics.median(looks):.3f} s of CPU", f"{size.pods} pods; to reach: 0.2 s"
    )


def _usage(cluster: Cluster, name: str) -> tuple[float, float, float]:
    return *latency.counters(cluster.podbridge_port("metrics", name)), bare.usage(cluster.pid(name))[0]


def _looks(world: World, name: str) -> list[float]:
    """Return the CPU seconds of the last looks at all pods."""
    lines = world.cluster.processes.log(name).read_text().splitlines()[-5000:]
    found = [json.loads(line) for line in lines if '"msg": "reconciled"' in line and line.endswith("}")]
    return [line["cpu"] for line in found if line["whole"] and line["loop"] == "scheduler"][-20:] or [0.0]


def _cordons(table: Table, world: World, size: Size) -> None:
    """Cordon open nodes; count the updates of jobs afterwards."""
    cluster = world.cluster
    port = cluster.podbridge_port("metrics", "leader")
    before, began = latency.counters(port)[0], time.monotonic()
    open_nodes = range(int(size.nodes * size.closed), size.nodes)
    delays = []
    for number in random.sample(open_nodes, min(CORDONS, len(open_nodes))):
        name = f"{drains.PREFIX}{number}"
        delays.append(drains.delay(world, name, "state=drain", "reason=bench"))
        time.sleep(5)
    rate = (latency.counters(port)[0] - before) / (time.monotonic() - began)
    table.add(
        "drain to cordon", f"p50 {statistics.median(delays):.1f} s, longest {max(delays):.1f} s", f"{len(delays)} nodes"
    )
    table.add("slurmrestd asked by the leader meanwhile", f"{rate:.1f}/s", "to reach: 12/s")
