"""The speed of gangs beside that of single pods in one run: ``./hack/bench.sh --gangs N``."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

from cluster.bench import bare
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.world import World

MEMBERS = 8
THREADS = 8
ROUNDS = 2


def _group(number: int) -> dict[str, str]:
    """Return the annotation that admission writes to a member; only the scheduler runs in this measurement."""
    gang, slot = divmod(number, MEMBERS)
    group = {"kind": "job", "name": f"g{gang}", "uid": f"uid-{gang}", "size": MEMBERS, "minimum": MEMBERS, "slot": slot}
    return {"bridge.vk.io/group": json.dumps(group)}


def _rate(world: World, count: int, *, gangs: bool) -> float:
    """Return existing pods that the scheduler binds, in pods per second from its first submit to its last bind."""
    bare.clean(world)
    bare.create_pods(world, count, THREADS, annotations=_group if gangs else None)
    world.cluster.start_podbridge(("scheduler",), name="scheduler")
    last = bare.wait_bound(world, count)
    return count / (last - bare.said(world, "job submitted")[0])


def measure(table: Table, folder: Path, gangs: int) -> None:
    """Measure single pods and gangs in turn, with Slurm 26.05 and external placeholders."""
    count = gangs * MEMBERS
    with Cluster(folder / "gangs", slurm="26.05", nodes=MEMBERS, cpus=512, gpus=0, slurm_conf=("MinJobAge=5",)) as made:
        world = World(made)
        single, together = [], []
        for _ in range(ROUNDS):
            single.append(_rate(world, count, gangs=False))
            together.append(_rate(world, count, gangs=True))
        bare.clean(world)
    for name, values in (("single pods", single), (f"gangs of {MEMBERS}", together)):
        shown = ", ".join(f"{value:.0f}" for value in values)
        table.add(name, f"{mean(values):.0f} pods/s ({shown})", f"{count} pods on {MEMBERS} nodes")
    table.add("gangs/single", f"{mean(together) / mean(single):.2f}", "to reach: 1.00")
