"""One table of the speed of pools, measured in one run: ``./hack/bench.sh --pools [--pods N] [--many N]``.

The site is a real submitter with a null batch system, so that only podbridge is measured; the row about ``sbatch`` has
a real Slurm. Each row also shows the limit of the machine in the same run.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import harmonic_mean

from bridge.protocol.nats.two_way import SESSION
from bridge.serving.streaming import LIMIT
from cluster.bench import bare, bare_nats, bench_hub, bench_pods, bench_site
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.pods import PoolWorld

SCRIPTS = 2000
PROBES = 200
WARM_UP = 100
READERS, LINES = LIMIT // 2, 10
"""The pods are of one namespace, which has half of the logs."""
SUBMITS, ROUNDS = 3, 3
ARRAY = 1000
GROUP = 64
CHUNKS = 4000


def run(pods: int, many: int) -> int:
    """Measure and print."""
    state = Path(tempfile.mkdtemp(prefix="podbridge-bench-"))
    state.chmod(0o755)
    table = Table()
    try:
        scripts(table)
        way_to_the_site(table, state / "site", pods)
        hub(table, state / "hub", pods, many)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    table.show()
    return 0


def scripts(table: Table) -> None:
    """Measure the conversion of pods to scripts."""
    rate, length = bench_pods.scripts_per_second(SCRIPTS)
    table.add("scripts built by one core", f"{rate:.0f} /s", f"ten kinds, {length:.0f} bytes each; to reach: 500")


def way_to_the_site(table: Table, state: Path, pods: int) -> None:
    """Measure submissions, without Kubernetes."""
    with Cluster(state, slurm=None, kube=False, pools=[bench_site.NULL, bench_site.SLURM]) as cluster:
        size = bench_site.payload_size()
        before = bench_site.bare_rate(cluster, size, 3 * pods)
        bench_site.start_null(cluster)
        bench_site.submit_rate(cluster, WARM_UP)
        theft = bare.Theft()
        with theft.watched():
            ours = [bench_site.submit_rate(cluster, pods) for _ in range(SUBMITS)]
        cluster.stop_submitter(bench_site.NULL)
        after = bench_site.bare_rate(cluster, size, 3 * pods)
        limit = (before + after) / 2
        note = f"{size} bytes, {bench_site.AT_ONCE} at once"
        table.add("(a) bare NATS round trips", _rates((before, after), "/s"), note)
        table.add("(b) built, submitted, kept on disk", _rates(ours), f"{pods} pods, the same way; {theft}")
        table.add("b/a", f"{sum(ours) / len(ours) / limit:.2f}", "to reach: 0.60, or 500 pods/s")
        cluster.start_submitter(bench_site.SLURM)
        straight, through = bench_site.sbatch_times(cluster)
        slow, fast = bench_site.p50(through), bench_site.p50(straight)
        table.add("(c) sbatch, p50", f"{fast * 1000:.0f} ms", f"{len(straight)} times")
        table.add("(d) submit by podbridge, p50", f"{slow * 1000:.0f} ms", "from the hub, sbatch included")
        table.add("d - c", f"{(slow - fast) * 1000:.0f} ms", "to reach: under 100 ms")
        cluster.stop_submitter(bench_site.SLURM)
        arrays(table, cluster)
        group(table, cluster, GROUP)
        session(table, cluster)


def arrays(table: Table, cluster: Cluster) -> None:
    """Measure equal pods at a Slurm, each as a job and all as an array."""
    for name, owner in (("jobs", ""), ("an array", "owner")):
        costs = bench_site.array_costs(cluster, ARRAY, owner)
        note = f"{costs.arrays} sbatch; CPU: submitter {costs.submitter:.1f} s, slurmctld {costs.slurmctld:.2f} s"
        table.add(f"(e) {ARRAY} pods as {name}", f"{costs.wall:.1f} s", note)


def group_alone(table: Table, state: Path, size: int) -> None:
    """Measure the start of a group several times, and nothing else."""
    with Cluster(state, slurm=None, kube=False, pools=[bench_site.LOCAL]) as cluster:
        for _ in range(ROUNDS):
            group(table, cluster, size)


def group(table: Table, cluster: Cluster, size: int) -> None:
    """Measure the start of a group on one machine."""
    theft = bare.Theft()
    with theft.watched():
        start = bench_site.group_start(cluster, size)
    note = f"the first: {start.first:.1f} s; to read {size} scripts: {start.parsed:.1f} s; to reach: 2 s; {theft}"
    table.add(f"(g) {size} pods of a group, the last starts after", f"{start.last:.1f} s", note)


def session(table: Table, cluster: Cluster) -> None:
    """Measure commands in a container, and compare with bare NATS at the size and number of their chunks."""
    limits, speeds = [], []
    for _ in range(ROUNDS):  # in turn: the machine's speed varies
        bench_site.start_null(cluster)
        # in the direction of the output
        limits.append(bench_site.bare_rate(cluster, bare_nats.SHORT, CHUNKS, SESSION.size, SESSION.chunks))
        cluster.stop_submitter(bench_site.NULL)
        speeds.append(bench_site.session_speed(cluster, CHUNKS * SESSION.size))
    start, echo = bench_site.p50([each.start for each in speeds]), bench_site.p50([each.echo for each in speeds])
    note = f"a byte comes back after {echo * 1000:.1f} ms; to reach: 20 ms more than bare NATS"
    table.add("(k) a command in a container", f"{start * 1000:.0f} ms", note)
    limit, rate = harmonic_mean(limits) * SESSION.size, harmonic_mean([each.rate for each in speeds])
    chunks = f"{SESSION.chunks} chunks of {SESSION.size} bytes at once"
    table.add(
        "(l) its output",
        f"{rate / 2**20:.0f} MiB/s, {rate / limit:.2f}",
        f"bare NATS: {limit / 2**20:.0f} MiB/s, {chunks}; to reach: 0.50",
    )
    port = bench_site.port_speed(cluster)
    note = f"the first one: {port.first * 1000:.0f} ms; to reach: 30 ms"
    table.add("(m) an HTTP request to a port of a pod", f"{port.request * 1000:.1f} ms", note)


def hub(table: Table, state: Path, pods: int, many: int) -> None:
    """Measure pods, from their creation on."""
    with Cluster(state, slurm=None, nodes=4, cpus=10_000, pools=[bench_site.NULL]) as cluster:
        world = PoolWorld(cluster)
        lines, ours, theft = [], [], bare.Theft()
        for number in range(ROUNDS):  # in turn: the machine's speed varies
            cluster.start_podbridge(("admission",))
            with theft.watched():
                lines.append(bench_hub.straight_line(world, pods))
            bench_hub.clean(world)
            cluster.stop_podbridge()
            bench_site.start_null(cluster, states=True)
            cluster.start_podbridge()
            world.ready(bench_site.NULL)
            with theft.watched():
                ours.append(bench_hub.creation_rate(world, 0, pods))
            if number < ROUNDS - 1:
                cluster.stop_podbridge()
                bench_hub.clean(world)
                bench_site.stop_null(cluster)
        table.add("(h) straight line: create, bind, patch, status", _rates(lines), f"{pods} pods, 8 connections")
        table.add("(i) podbridge, the same and a job", _rates(ours), "from the first creation to all running")
        table.add("i/h", f"{sum(ours) / sum(lines):.2f}", f"to reach: 0.60; {theft}")
        delays = bench_hub.status_delays(world, min(PROBES, pods))
        p99 = delays[int(len(delays) * 0.99) - 1]
        figure = f"p50 {bench_site.p50(delays):.2f} s, p99 {p99:.2f} s"
        table.add(f"status change to pod, {pods} run", figure, f"{len(delays)} changes; to reach: 1 s")
        if many > pods:
            rate = bench_hub.creation_rate(world, pods, many)
            table.add(f"{many - pods} more", f"{rate:.0f} pods/s")
        cores, memory, asked = bench_hub.at_rest(world)
        table.add(
            f"hub at rest, {max(pods, many)} run", f"{memory:.0f} MiB, {cores:.2f} core", "to reach: 400 MiB, 0.2"
        )
        period = 1 / asked if asked else float("inf")
        table.add("one question to the batch system every", f"{period:.1f} s", f"the period is {bench_site.PERIOD} s")
        readers = min(READERS, max(pods, many))
        whole, late = bench_hub.follow(world, readers, LINES)
        table.add(
            f"{readers} logs followed at once", f"{whole} whole, at most {late:.1f} s late", f"{LINES} lines each"
        )


def _rates(rounds: Sequence[float], unit: str = "pods/s") -> str:
    """Return the mean of several rounds, and each value, as text."""
    return f"{sum(rounds) / len(rounds):.0f} {unit} ({', '.join(f'{rate:.0f}' for rate in rounds)})"
