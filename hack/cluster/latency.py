"""While many pods are pending: the time from the start of a job to the bind of its pod, and the requests to Slurm."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.request import urlopen

from cluster import bare, endings, hints
from cluster.polling import eventually
from cluster.world import JOB_PREFIX, LABEL, World

PARTITION = "full"
"""A partition of one node: Slurm considers only the first 500 pending jobs of a partition."""
PROBES = 60
PERL = (  # slurmctld's root folder has no curl; both start in about 10 ms
    'perl -MIO::Socket::UNIX -e \'for (glob "/srv/hints/*.sock") { my $s = IO::Socket::UNIX->new(Peer => $_) or next; '
    'print $s "POST /hint?job=$ENV{SLURM_JOB_ID} HTTP/1.1\\r\\nHost: p\\r\\nContent-Length: 0\\r\\n'
    "Connection: close\\r\\n\\r\\n\"; <$s> }'"
)
WATCH_SECONDS = 30


def measure(table: Any, world: World, count: int) -> None:
    """Measure, and add the rows to the table."""
    cluster = world.cluster
    for args, name in ((("admission",), "podbridge"), (("scheduler",), "scheduler"), (("controllers",), "controllers")):
        cluster.start_podbridge(args, name=name)
    world.running(world.create("blocker", cpu="512", job={"partition": PARTITION}))
    loads = []
    waiting = 0
    for target in (count // 10, count):
        _waiting_pods(world, waiting, target)
        waiting = target
        time.sleep(10)
        loads.append(load(cluster.podbridge_port("metrics", "scheduler")))
        requests, size = loads[-1]
        table.add(
            f"slurmrestd asked by the scheduler, {target} pods wait",
            f"{requests:.0f} requests/min, {size / 1e6:.2f} MB/min",
            "no more with more pods" if target != count else f"{requests / max(loads[0][0], 1):.2f} x the requests",
        )
    delays, running = _probe(world)
    p50, p99 = statistics.median(delays), sorted(delays)[int(len(delays) * 0.99) - 1]
    table.add(
        f"start to bind, {count} pods wait",
        f"p50 {p50:.2f} s, p99 {p99:.2f} s",
        f"{len(delays)} pods; to reach: 0.3, 0.6",
    )
    endings.measure(table, world, running, f"{count} pods wait")
    for name, title in (("podbridge", "admission"), ("scheduler", "scheduler"), ("controllers", "controllers")):
        cpu, peak = bare.usage(cluster.pid(name))
        table.add(f"{title} after that: CPU, peak memory", f"{cpu:.1f} s, {peak:.0f} MiB", "to reach: under 150 MiB")


MODES: dict[str, str | None] = {
    "no hints": None,
    "podbridge slurm-hint": "",
    "a small program": PERL,
    "no hints, again": None,
}
"""The commands that send hints, by title; empty: :func:`hints.script` has one."""


def measure_hints(table: Any, world: World, count: int, modes: Sequence[str] = tuple(MODES)) -> None:
    """Measure by turns without hints, and with each command that sends them."""
    cluster = world.cluster
    cluster.start_podbridge(("admission",))
    folder = hints.directory(cluster)
    blocked = False
    for title in modes:
        command = MODES[title]
        with hints.script(cluster, command) if command is not None else contextlib.nullcontext():
            overrides = {} if command is None else {"hints": {"directory": str(folder)}}
            for part in ("scheduler", "controllers"):
                cluster.start_podbridge((part,), name=part, config_overrides=overrides)
            if not blocked:
                world.running(world.create("blocker", cpu="512", job={"partition": PARTITION}))
                _waiting_pods(world, 0, count)
                blocked = True
            port = cluster.podbridge_port("metrics", "scheduler")
            before, began = by_endpoint(port), time.monotonic()
            delays, running = _probe(world, f"probe-{title.replace(' ', '-').replace(',', '')}")
            asked = by_endpoint(port) - before
            took = time.monotonic() - began
            endings.measure(table, world, running, title)
            for part in ("scheduler", "controllers"):
                cluster.stop_podbridge(part)
        p50, p99 = statistics.median(delays), sorted(delays)[int(len(delays) * 0.99) - 1]
        table.add(
            f"start to bind, {count} pods wait: {title}",
            f"p50 {p50:.3f} s, p99 {p99:.3f} s",
            f"{len(delays)} pods; to reach: 0.3 s, 0.6 s; with hints: p50 0.1 s",
        )
        shares = ", ".join(f"{name} {number / took:.1f}" for name, number in asked.most_common())
        table.add(f"slurmrestd asked meanwhile: {title}", f"{asked.total() / took:.1f} requests/s", shares)


def _waiting_pods(world: World, first: int, last: int) -> None:
    def work(number: int) -> None:
        api = bare.kube(world)
        for index in range(first + number, last, 8):
            body = bare.pod_body(f"w{index}", None)
            body["metadata"]["annotations"] = {JOB_PREFIX + "partition": PARTITION}
            api("POST", bare.PODS, body)

    bare.parallel(8, work)
    eventually(lambda: len(world.queue()) >= last, "all have jobs", 120, 0.5)


def load(port: int) -> tuple[float, float]:
    """Return the requests to slurmrestd and the bytes of its answers, both per minute."""
    before = counters(port)
    time.sleep(WATCH_SECONDS)
    after = counters(port)
    return tuple((b - a) * 60 / WATCH_SECONDS for a, b in zip(before, after, strict=True))  # type: ignore[return-value]


def by_endpoint(port: int) -> Counter[str]:
    """Return the number of requests to slurmrestd so far, by endpoint."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^podbridge_slurm_requests_total\{.*endpoint="(.*?)".*\} (\S+)$', text, re.MULTILINE)
    requests: Counter[str] = Counter()
    for endpoint, number in found:
        requests[endpoint] += int(float(number))
    return requests


def counters(port: int) -> tuple[float, float]:
    """Return the requests to slurmrestd and the bytes of its answers since the start of a process."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    requests = sum(float(n) for n in re.findall(r"^podbridge_slurm_requests_total\{.*\} (\S+)$", text, re.MULTILINE))
    size = sum(float(n) for n in re.findall(r"^podbridge_slurm_response_bytes_total (\S+)$", text, re.MULTILINE))
    return requests, size


def _probe(world: World, prefix: str = "probe") -> tuple[list[float], list[Any]]:
    """Create pods one by one on free nodes; compare slurmctld's log with the API server's. Return the pods too."""
    pods = []
    for number in range(PROBES):
        pods.append(world.create(f"{prefix}-{number}", nodeSelector={"kubernetes.io/hostname": f"node-{number % 3}"}))
        time.sleep(0.3)
    bound = [world.bound(pod, 60) for pod in pods]
    log = world.cluster.processes.log("slurmctld").read_text(errors="replace")
    started: dict[int, float] = {}
    for stamp, job in re.findall(r"^\[(\S+?)\] .*?(?:Allocate|Started|_start_job).*?JobId=(\d+)", log, re.MULTILINE):
        started.setdefault(int(job), datetime.fromisoformat(stamp).timestamp())
    binds = {
        event["objectRef"]["name"]: datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        for event in world.cluster.audit_events()
        if event.get("objectRef", {}).get("subresource") == "binding" and event["stage"] == "ResponseComplete"
    }
    delays = [
        max(0.0, binds[pod["metadata"]["name"]] - started[int(pod["metadata"]["labels"][LABEL])])
        for pod in bound
        if int(pod["metadata"]["labels"][LABEL]) in started
    ]
    return delays, bound
