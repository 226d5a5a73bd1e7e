"""The speed of shards beside that of one leader in one run: ``./hack/bench.sh --schedulers N``."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean

from cluster import shards
from cluster.bench import bare
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.polling import eventually
from cluster.world import World

NODES = 8
THREADS = 8
ROUNDS = 2


def _rate(world: World, count: int, schedulers: int) -> tuple[float, float]:
    """Return pods per second, from the first submit to the last bind of all, and their CPU milliseconds per pod."""
    bare.clean(world)
    chosen = [shards.settings(number) for number in range(1, schedulers + 1)]
    names = [shards.numbered("scheduler", number) for number in range(1, schedulers + 1)]
    bare.create_pods(world, count, THREADS, lambda index: str(chosen[index % schedulers]["schedulerName"]))
    began = time.time()
    for name, settings in zip(names, chosen, strict=True):
        world.cluster.start_podbridge(("scheduler",), name=name, config_overrides=settings, wait=False)

    def times(message: str) -> list[float]:
        found = (moment for name in names for moment in bare.said(world, message, name))
        return sorted(moment for moment in found if moment > began)  # the log has earlier runs too

    eventually(lambda: len(times("pod bound")) >= count, "all pods bound", 300, 0.5)
    seconds = times("pod bound")[-1] - times("job submitted")[0]
    used = sum(bare.usage(world.cluster.pid(name))[0] for name in names)
    for name in names:
        world.cluster.stop_podbridge(name)
    return count / seconds, 1000 * used / count


def measure(table: Table, folder: Path, count: int, schedulers: int) -> None:
    """Measure one scheduler and several in turn, with Slurm 26.05 and external placeholders."""
    lines = ("MinJobAge=5",)
    with Cluster(
        folder / "shards", slurm="26.05", nodes=NODES, cpus=1024, gpus=0, slurm_conf=lines, schedulers=schedulers
    ) as made:
        world = World(made)
        one, many = [], []
        for _ in range(ROUNDS):
            one.append(_rate(world, count, 1))
            many.append(_rate(world, count, schedulers))
        bare.clean(world)
    for name, values in (("one leader", one), (f"{schedulers} shards", many)):
        shown = ", ".join(f"{rate:.0f}" for rate, _ in values)
        cpu = mean(used for _, used in values)
        table.add(name, f"{mean(rate for rate, _ in values):.0f} pods/s ({shown})", f"{cpu:.1f} ms of CPU time a pod")
    ratio = mean(rate for rate, _ in many) / mean(rate for rate, _ in one)
    table.add(f"{schedulers} shards/one leader", f"{ratio:.2f}", f"{count} pods")
