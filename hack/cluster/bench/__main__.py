"""One table of ratios, all measured in one run: ``./hack/bench.sh [--pods N]``.

Every figure of podbridge stands beside the limit of the same machine in the same run: what slurmrestd takes, what the
API server binds, and the *straight line*: a bare client that makes the two writes of a pod (submit, bind) with nothing
to decide. A second straight line also patches each pod, as podbridge did before.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from cluster.bench import (
    bare,
    bench_dashboard,
    bench_gangs,
    bench_interlink,
    bench_kueue,
    bench_places,
    bench_pools,
    bench_scale,
    bench_shards,
    drains,
    latency,
    reviews,
)
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.polling import eventually
from cluster.world import World

THREADS = 8
SLURM_CONF = ("MinJobAge=5", f"PartitionName={latency.PARTITION} Nodes=node-3 MaxTime=INFINITE State=UP")
ROUNDS = 2
"""Measurements of podbridge; before and after each, the straight line is measured."""


@contextmanager
def idle_kubelets(world: World) -> Iterator[None]:
    """Stop kwok while the block runs. After half a minute the nodes would count as lost."""
    import signal

    world.cluster.kill("kwok", signal.SIGSTOP)
    try:
        yield
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)


def bound_rate(world: World, count: int, began: float | None) -> float:
    """Wait until every pod is bound; return pods per second since ``began`` (epoch), or since the first submission."""
    last = bare.wait_bound(world, count)
    return count / (last - (began or bare.said(world, "job submitted")[0]))


def by_turns(
    world: World, line: Callable[[int], float], ours: Callable[[], float]
) -> tuple[list[float], list[float], list[float]]:
    """Measure both straight lines before, between and after the runs of podbridge: the machine's speed varies.

    Return the results of the line of two writes, of the line of three writes, and of podbridge.
    """
    two: list[float] = []
    three: list[float] = []
    results = []

    def both() -> None:
        for writes, measured in ((2, two), (3, three)):
            measured.append(line(writes))
            bare.clean(world)

    both()
    for _ in range(ROUNDS):
        results.append(ours())
        bare.clean(world)
        both()
    return two, three, results


def compare(table: Table, letter: str, rates_of: tuple[list[float], list[float], list[float]]) -> None:
    """Add the ratios to both straight lines: of two writes, as podbridge makes, and of three."""
    two, three, ours = rates_of
    table.add(f"c{letter}/d{letter}, two writes", f"{mean(ours) / mean(two):.2f}", "to reach: 0.80")
    table.add(
        f"c{letter}/d{letter}, three writes", f"{mean(ours) / mean(three):.2f}", "to reach: 1.00; 0.95 with creation"
    )


def rates(values: list[float]) -> str:
    """Return a mean and its values as text."""
    return f"{mean(values):.0f} pods/s ({', '.join(f'{value:.0f}' for value in values)})"


def scheduler_alone(table: Table, world: World, count: int) -> None:
    """(d) and (c): existing pods, kwok idle."""

    def line(writes: int) -> float:
        pods = bare.create_pods(world, count, THREADS, scheduler="bench-nobody")
        with idle_kubelets(world):
            return bare.straight_line(world, pods, THREADS, writes)

    def ours() -> float:
        bare.create_pods(world, count, THREADS, held=True)
        with idle_kubelets(world):
            world.cluster.start_podbridge(("scheduler",), name="scheduler")
            return bound_rate(world, count, None)

    found = two, three, c = by_turns(world, line, ours)
    table.add("(d) two writes, existing pods", rates(two), f"{count} pods, {THREADS} threads")
    table.add("(d) three writes, existing pods", rates(three), "")
    table.add("(c) podbridge's scheduler, the same", rates(c), "from its first submit to its last bind")
    compare(table, "", found)


def everything(table: Table, world: World, count: int) -> None:
    """(d2) and (c2): pods created at once, through admission; kwok runs them."""
    cluster = world.cluster
    parts = {"admission": "podbridge", "scheduler": "scheduler", "controllers": "controllers"}
    used: dict[str, tuple[float, float]] = {}

    def line(writes: int) -> float:
        cluster.start_podbridge(("admission",))
        return bare.straight_line_with_creation(world, count, THREADS, writes)

    def ours() -> float:
        for part, name in parts.items():
            cluster.start_podbridge((part,), name=name)
        before = {part: bare.usage(cluster.pid(name))[0] for part, name in parts.items()}
        began = time.time()
        bare.create_pods(world, count, THREADS)
        rate = bound_rate(world, count, began)
        eventually(lambda: bare.unfinished(world) == 0, "all pods run", 120)
        for part, name in parts.items():
            cpu, peak = bare.usage(cluster.pid(name))
            used[part] = (cpu - before[part], peak)
        return rate

    found = two, three, c2 = by_turns(world, line, ours)
    table.add("(d2) two writes, everything on", rates(two), f"{count} pods created by {THREADS} connections")
    table.add("(d2) three writes, everything on", rates(three), "")
    table.add("(c2) podbridge, everything on", rates(c2), "from the first creation to the last bind")
    compare(table, "2", found)
    for part, (cpu, peak) in used.items():
        table.add(f"{part}: CPU, peak memory", f"{cpu:.1f} s, {peak:.0f} MiB", "to reach: under 150 MiB")


def new_slurm(table: Table, folder: Path, count: int) -> None:
    """Measure rates, latencies and reviews with Slurm 26.05 and external placeholders."""
    table.add("--- Slurm 26.05", "", "external placeholders")
    with _world(folder, "26.05", count) as world:
        throughput(table, world, count)
        latency.measure(table, world, count)
        bare.clean(world)
        reviews.measure(table, world)


def old_slurm(table: Table, folder: Path, count: int) -> None:
    """Measure rates with Slurm 24.11 and batch placeholders."""
    table.add("--- Slurm 24.11", "", "batch placeholders")
    with _world(folder, "24.11", count) as world:
        throughput(table, world, count)


@contextmanager
def _world(folder: Path, version: str, count: int) -> Iterator[World]:
    print(f"== Slurm {version}, {count} pods", flush=True)
    with Cluster(
        folder / version, slurm=version, nodes=4, cpus=512, gpus=0, audit=True, slurm_conf=SLURM_CONF
    ) as cluster:
        yield World(cluster)


def throughput(table: Table, world: World, count: int) -> None:
    """(a) to (d), (c2) and (d2)."""
    a = bare.submit_rate(world, min(count, 500), THREADS)
    table.add("(a) slurmrestd and slurmctld alone", f"{a:.0f} jobs/s", f"{THREADS} connections")
    b = bare.bind_rate(world, count, THREADS)
    table.add("(b) API server alone", f"{b:.0f} binds/s", f"{THREADS} connections")
    scheduler_alone(table, world, count)
    everything(table, world, count)


def _measure(table: Table, state: Path, options: argparse.Namespace) -> None:
    """Measure what the options name, else pods on Slurm."""
    if options.scale:
        bench_scale.measure(table, state, bench_scale.Size(options.nodes or 1000, options.waiting, options.foreign))
    elif options.kueue:
        bench_kueue.measure(table, state, options.jobs)
    elif options.nodes:
        drains.measure(table, state, options.nodes)
    elif options.group:
        bench_pools.group_alone(table, state, options.group)
    elif options.places:
        bench_places.measure(table, options.places)
    elif options.dashboard:
        bench_dashboard.measure(table, state, options.many)
    elif options.hints:
        with _world(state, "26.05", options.pods) as world:
            latency.measure_hints(table, world, options.pods)
    elif options.schedulers:
        bench_shards.measure(table, state, options.pods, options.schedulers)
    elif options.gangs:
        bench_gangs.measure(table, state, options.gangs)
    else:
        if options.pods:
            new_slurm(table, state, options.pods)
        if options.old_pods:
            old_slurm(table, state, options.old_pods)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="hack/bench.sh", description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--old-pods", type=int, default=200, help="Pods on Slurm 24.11 with batch placeholders.")
    parser.add_argument("--pools", action="store_true", help="Measure pools instead.")
    parser.add_argument("--group", type=int, default=0, help="Start a group of this many pods at a plain host instead.")
    parser.add_argument("--interlink", action="store_true", help="Measure the interLink plugin instead.")
    parser.add_argument("--many", type=int, default=10_000, help="Pods at once, with --pools and --dashboard.")
    parser.add_argument("--dashboard", action="store_true", help="Measure the web page with --many pods instead.")
    parser.add_argument("--places", type=int, default=0, help="Replay this many pods over three places instead.")
    parser.add_argument("--hints", action="store_true", help="Measure start to bind with and without hints instead.")
    parser.add_argument("--nodes", type=int, default=0, help="Measure drains among this many nodes instead.")
    parser.add_argument("--schedulers", type=int, default=0, help="Measure one leader and this many shards instead.")
    parser.add_argument("--gangs", type=int, default=0, help="Measure this many gangs of eight pods instead.")
    parser.add_argument("--kueue", action="store_true", help="Measure MasterQueues and Jobs with a queue instead.")
    parser.add_argument("--jobs", type=int, default=200, help="Jobs in each round, with --kueue.")
    parser.add_argument("--scale", action="store_true", help="Measure many nodes, pods and jobs of others instead.")
    parser.add_argument("--waiting", type=int, default=10_000, help="Waiting pods, with --scale.")
    parser.add_argument("--foreign", type=int, default=50_000, help="Pending jobs of others, with --scale.")
    options = parser.parse_args()
    if options.pools:
        return bench_pools.run(options.pods, options.many)
    if options.interlink:
        return bench_interlink.run(options.pods)
    # ext4 without a journal passes over inodes that were removed within the last seconds, one by one: after the jobs of
    # one group, the folders of the next took a third of its start
    state = Path(tempfile.mkdtemp(prefix="podbridge-bench-", dir="/dev/shm" if options.group else None))
    state.chmod(0o755)
    table = Table()
    try:
        _measure(table, state, options)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    table.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
