"""While many pods are pending: the time from the start of a job to the bind of its pod, and the requests to Slurm."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.request import urlopen

from cluster import hints
from cluster.bench import bare, endings
from cluster.polling import eventually
from cluster.world import JOB_PREFIX, LABEL, World

PARTITION = "full"
"""A partition of one node: Slurm considers only the first 500 pending jobs of a partition."""
PROBES = 60
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
    "the script": "",
    "podbridge slurm-hint": hints.command(),
    "no hints, again": None,
}
"""The scripts that send hints, by title; empty: the one of the documentation."""


def measure_hints(table: Any, world: World, count: int, modes: Sequence[str] = tuple(MODES)) -> None:
    """Measure by turns without hints, and with each command that sends them."""
    cluster = world.cluster
    cluster.start_podbridge(("admission",))
    folder = hints.directory(cluster)
    blocked = False
    for title in modes:
        command = MODES[title]
        with hints.script(cluster, command) if command is not None else contextlib.nullcontext():
            overrides: dict[str, Any] = {"logging": {"level": "debug", "format": "json"}}
            if command is not None:
                overrides["hints"] = {"directory": str(folder)}
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
            if command is not None:
                table.add(f"of that, p50: {title}", _parts(world, running))
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
    requests, size = sums(port, "podbridge_slurm_requests_total", "podbridge_slurm_response_bytes_total")
    return requests, size


def sums(port: int, *names: str) -> list[float]:
    """Return the sum of all samples of each metric."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = (re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE) for name in names)
    return [sum(map(float, values)) for values in found]


def _probe(world: World, prefix: str = "probe") -> tuple[list[float], list[Any]]:
    """Create pods one by one on free nodes; compare slurmctld's log with the API server's. Return the pods too."""
    pods = []
    for number in range(PROBES):
        pods.append(world.create(f"{prefix}-{number}", nodeSelector={"kubernetes.io/hostname": f"node-{number % 3}"}))
        time.sleep(0.3)
    bound = [world.bound(pod, 60) for pod in pods]
    started, binds = _starts(world), _binds(world)
    ids = {pod["metadata"]["name"]: int(pod["metadata"]["labels"][LABEL]) for pod in bound}
    delays = [max(0.0, binds[name][1] - started[job_id]) for name, job_id in ids.items() if job_id in started]
    return delays, bound


def _starts(world: World) -> dict[int, float]:
    """Return when slurmctld has logged the start of each job."""
    log = world.cluster.processes.log("slurmctld").read_text(errors="replace")
    started: dict[int, float] = {}
    for stamp, job in re.findall(r"^\[(\S+?)\] .*?(?:Allocate|Started|_start_job).*?JobId=(\d+)", log, re.MULTILINE):
        started.setdefault(int(job), datetime.fromisoformat(stamp).timestamp())
    return started


def _binds(world: World) -> dict[str, tuple[float, float]]:
    """Return when the API server has received the binding of each pod, and when it has answered."""
    return {
        event["objectRef"]["name"]: (
            datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
            datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
        )
        for event in world.cluster.audit_events()
        if event.get("objectRef", {}).get("subresource") == "binding" and event["stage"] == "ResponseComplete"
    }


def _parts(world: World, pods: list[Any]) -> str:
    """Return the medians of the times from the start of a job to each step that a hint causes."""
    started, binds = _starts(world), _binds(world)
    prologs = {call.job_id: call for call in hints.calls(world.cluster) if call.context == "prolog_slurmctld"}
    reads: dict[int, tuple[float, float]] = {}
    for line in world.cluster.processes.log("scheduler").read_text(errors="replace").splitlines():
        if '"hinted job read"' in line:
            entry = json.loads(line)
            reads.setdefault(entry["job"], (entry["ts"] - entry["seconds"], entry["ts"]))
    steps: dict[str, list[float]] = {}
    for pod in pods:
        job_id = int(pod["metadata"]["labels"][LABEL])
        if job_id in started and job_id in prologs and job_id in reads:
            received, answered = binds[pod["metadata"]["name"]]
            moments = {
                "script starts": prologs[job_id].began,
                "script ends": prologs[job_id].ended,
                "job is requested": reads[job_id][0],
                "job is read": reads[job_id][1],
                "API server gets the bind": received,
                "bound": answered,
            }
            for name, moment in moments.items():
                steps.setdefault(name, []).append(moment - started[job_id])
    return ", ".join(f"{name} {1000 * statistics.median(times):.0f} ms" for name, times in steps.items())
