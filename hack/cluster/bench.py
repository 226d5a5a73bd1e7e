"""One table of ratios, all measured in one run: ``./hack/bench.sh [--pods N]``.

Every figure of podbridge stands beside the limit of the same machine in the same run: what slurmrestd takes, what the
API server binds, and the *straight line*: a bare client that does the three writes of a pod with nothing to decide.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import bare, latency, reviews
from cluster.core import Cluster
from cluster.world import World, until

THREADS = 8


class Table:
    """The rows, printed as they come and all together at the end."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, what: str, figure: str, note: str = "") -> None:
        """Add a row."""
        self.rows.append((what, figure, note))
        print(f"  {what}: {figure} {note}", flush=True)

    def show(self) -> None:
        """Print the table."""
        widths = [max(len(row[column]) for row in self.rows) for column in range(3)]
        print()
        for row in self.rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@contextmanager
def idle_kubelets(world: World) -> Iterator[None]:
    """Have kwok stand still meanwhile."""
    import signal

    world.cluster.kill("kwok", signal.SIGSTOP)
    try:
        yield
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)


def bound_rate(world: World, count: int, began: float | None) -> float:
    """Wait until every pod is bound; give pods per second since ``began`` (epoch), or since the first submit."""
    last = bare.wait_bound(world, count)
    return count / (last - (began or bare.said(world, "job submitted")[0]))


def scheduler_alone(table: Table, world: World, count: int) -> None:
    """(d) and (c): existing pods, kwok idle."""
    with idle_kubelets(world):
        pods = bare.create_pods(world, count, THREADS, scheduler="bench-nobody")
        d = bare.straight_line(world, pods, THREADS)
        table.add("(d) straight line, existing pods", f"{d:.0f} pods/s", f"{count} pods, {THREADS} threads")
        bare.clean(world)
        bare.create_pods(world, count, THREADS)
        world.cluster.start_podbridge(("scheduler",), name="scheduler")
        c = bound_rate(world, count, None)
        table.add("(c) podbridge's scheduler, the same", f"{c:.0f} pods/s", "from its first submit to its last bind")
        table.add("c/d", f"{c / d:.2f}", "to reach: 0.60")
        world.cluster.stop_podbridge("scheduler")
    bare.clean(world)


def everything(table: Table, world: World, count: int) -> None:
    """(d2) and (c2): created at once, through admission, kwok running them."""
    cluster = world.cluster
    cluster.start_podbridge(("admission",))
    d2 = bare.straight_line_with_creation(world, count, THREADS)
    table.add("(d2) straight line, everything on", f"{d2:.0f} pods/s", f"{count} pods created by {THREADS} connections")
    bare.clean(world)
    for part, name in (("admission", "podbridge"), ("scheduler", "scheduler"), ("controllers", "controllers")):
        cluster.start_podbridge((part,), name=name)
    before = {name: bare.usage(cluster.pid(name)) for name in ("podbridge", "scheduler", "controllers")}
    began = time.time()
    bare.create_pods(world, count, THREADS)
    c2 = bound_rate(world, count, began)
    table.add("(c2) podbridge, everything on", f"{c2:.0f} pods/s")
    table.add("c2/d2", f"{c2 / d2:.2f}", "to reach: 0.60")
    for name, (cpu, _) in before.items():
        used, peak = bare.usage(cluster.pid(name))
        title = "admission" if name == "podbridge" else name
        table.add(f"{title}: CPU, peak memory", f"{used - cpu:.1f} s, {peak:.0f} MiB", "to reach: under 150 MiB")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--old-pods", type=int, default=200, help="Pods on Slurm 24.11 with batch placeholders.")
    options = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="podbridge-bench-"))
    state.chmod(0o755)
    table = Table()
    try:
        for version, count in (("26.05", options.pods), ("24.11", options.old_pods)):
            if not count:
                continue
            print(f"== Slurm {version}, {count} pods", flush=True)
            table.add(
                f"--- Slurm {version}", "", "external placeholders" if version == "26.05" else "batch placeholders"
            )
            with Cluster(
                state / version, slurm=version, nodes=4, cpus=512, gpus=0, audit=True, slurm_conf=["MinJobAge=5"]
            ) as cluster:
                world = World(cluster)
                a = bare.submit_rate(world, min(count, 500), THREADS)
                table.add("(a) slurmrestd and slurmctld alone", f"{a:.0f} jobs/s", f"{THREADS} connections")
                b = bare.bind_rate(world, count, THREADS)
                table.add("(b) API server alone", f"{b:.0f} binds/s", f"{THREADS} connections")
                scheduler_alone(table, world, count)
                everything(table, world, count)
                until("all pods run", lambda w=world: bare.unfinished(w) == 0, 120)  # type: ignore[misc]
                bare.clean(world)
                if version == "26.05":
                    latency.measure(table, world, count)
                    bare.clean(world)
                    reviews.measure(table, world)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    table.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
