"""Among many nodes: how soon after a drain or a resume in Slurm the Kubernetes node is cordoned or uncordoned."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path
from typing import Any

from cluster.bench import bare
from cluster.bench.latency import load
from cluster.core import Cluster
from cluster.polling import eventually
from cluster.systems.kube import node_object
from cluster.systems.slurm import Size
from cluster.world import World

PREFIX = "many-"
ROUNDS = 20
THREADS = 4
SIZE = Size(cpus=8, memory=16000, gpus=0)


def slurm_conf(count: int) -> list[str]:
    """Lines for nodes that have no slurmd, and that slurmctld never gives up."""
    names = f"{PREFIX}[0-{count - 1}]"
    return [
        "SlurmdTimeout=0",
        f"NodeName={names} CPUs={SIZE.cpus} RealMemory={SIZE.memory} NodeAddr=127.0.0.1 State=UNKNOWN",
        f"PartitionName=many Nodes={names}",
    ]


def measure(table: Any, folder: Path, count: int) -> None:
    """Start a cluster of ``count`` more nodes, drain and resume some of them, and add the rows."""
    with Cluster(folder, slurm="26.05", nodes=2, gpus=0, slurm_conf=slurm_conf(count)) as cluster:
        world = World(cluster)
        bare.parallel(THREADS, lambda first: _create_nodes(world, range(first, count, THREADS)))
        for state in ("down", "idle"):  # slurmctld does not know yet in which state they are
            cluster.run_slurm(
                "scontrol", "update", f"nodename={PREFIX}[0-{count - 1}]", f"state={state}", "reason=bench"
            )
        for part in ("scheduler", "controllers"):
            cluster.start_podbridge((part,), name=part)
        eventually(lambda: _usable(world) == count, "all nodes are managed, and none is cordoned", 120, 1)
        requests, size = load(cluster.podbridge_port("metrics", "controllers"))
        table.add(
            f"controllers to slurmrestd, {count} nodes", f"{requests:.0f} requests/min", f"{size / 1e6:.2f} MB/min"
        )
        cordons, uncordons = [], []
        for number in random.sample(range(count), ROUNDS):
            name = f"{PREFIX}{number}"
            cordons.append(delay(world, name, "state=drain", "reason=bench"))
            time.sleep(random.uniform(0.5, 2.5))  # noqa: S311
            uncordons.append(delay(world, name, "state=resume"))
            time.sleep(random.uniform(0.5, 2.5))  # noqa: S311
        for what, delays in (("drain to cordon", cordons), ("resume to uncordon", uncordons)):
            figures = f"p50 {statistics.median(delays):.2f} s, longest {max(delays):.2f} s"
            table.add(f"{what}, {count} nodes", figures, f"{ROUNDS} nodes; to reach: 2 s")


def _create_nodes(world: World, numbers: range) -> None:
    for number in numbers:
        world.api("POST", "/api/v1/nodes", node_object(f"{PREFIX}{number}", SIZE))


def _usable(world: World) -> int:
    nodes = world.api("GET", "/api/v1/nodes")["items"]
    ours = [node for node in nodes if node["metadata"]["name"].startswith(PREFIX)]
    return sum(bool(node["spec"].get("taints")) and not node["spec"].get("unschedulable") for node in ours)


def delay(world: World, name: str, *change: str) -> float:
    """Return the seconds from the end of ``scontrol update`` until the Node has changed."""
    before = _is_cordoned(world, name)
    world.cluster.run_slurm("scontrol", "update", f"nodename={name}", *change)
    began = time.monotonic()
    eventually(lambda: _is_cordoned(world, name) != before, f"{name} after {change[0]}", 60, 0.02)
    return time.monotonic() - began


def _is_cordoned(world: World, name: str) -> bool:
    return bool(world.api("GET", f"/api/v1/nodes/{name}")["spec"].get("unschedulable"))
