"""One table of the speed of the interLink plugin, measured in one run: ``./hack/bench.sh --interlink [--pods N]``.

The site has a null batch system, so that only podbridge is measured. The clients are plain http.client connections, and
for the end of a job podbridge's hub with the plugin as a pool.
"""

from __future__ import annotations

import http.client
import json
import random
import shutil
import statistics
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.config.interlink import InterlinkSection
from bridge.interlink.messages import RetrievedPodData, as_json
from bridge.pools.interlink import references
from cluster import tools
from cluster.bench import bare, bench_hub, bench_pods, bench_site, nullsite
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.ports import free_block, listening
from cluster.views import SEEN_AS

POOL = "plugin"
"""The plugin's process, and the hub's pool of it."""
ROUNDS = 3
WARM_UP = 100
SINGLES, SECONDS = 200, 15.0
"""Requests for one pod per second, and the seconds of this load."""
PROBES = 100
STATUSES = 20
OBJECTS = replace(
    bench_pods.OBJECTS,
    configmaps={name: {"metadata": {"name": name}, **found} for name, found in bench_pods.OBJECTS.configmaps.items()},
    secrets={name: {"metadata": {"name": name}, **found} for name, found in bench_pods.OBJECTS.secrets.items()},
)
PERIOD: float = InterlinkSection.model_fields["poll_period"].default


def run(pods: int) -> int:
    """Measure and print."""
    state = Path(tempfile.mkdtemp(prefix="podbridge-bench-"))
    state.chmod(0o755)
    table = Table()
    try:
        with Cluster(state, slurm=None, nodes=1, cpus=10_000, pools=[bench_site.NULL]) as cluster:
            submissions(table, cluster, pods)
            port = start_plugin(cluster, states=True)
            section = {"name": POOL, "url": f"http://127.0.0.1:{port}", "capacity": {"cpu": "10000", "pods": "100000"}}
            cluster.start_podbridge(config_overrides={"pools": {"interlink": [section]}})
            world = PoolWorld(cluster)
            world.ready(POOL)
            running(table, world, port, pods)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    table.show()
    return 0


def submissions(table: Table, cluster: Cluster, pods: int) -> None:
    """Measure submissions over NATS and by ``/create``, in turn: the machine's speed varies."""
    over_nats, created, theft = [], [], bare.Theft()
    for _ in range(ROUNDS):
        bench_site.start_null(cluster)
        bench_site.submit_rate(cluster, WARM_UP)
        with theft.watched():
            over_nats.append(bench_site.submit_rate(cluster, pods))
        bench_site.stop_null(cluster)
        port = start_plugin(cluster)
        create_rate(port, WARM_UP)
        with theft.watched():
            created.append(create_rate(port, pods))
        stop_plugin(cluster)
    note = f"{pods} pods of ten kinds, {bench_site.AT_ONCE} at once"
    table.add("(a) submitted over NATS, kept on disk", _rates(over_nats), note)
    table.add("(b) /create, kept on disk", _rates(created), f"the same pods, hop B; {theft}")
    table.add("b/a", f"{sum(created) / sum(over_nats):.2f}", "to reach: 0.60")


def running(table: Table, world: PoolWorld, port: int, pods: int) -> None:
    """Measure the plugin while pods run."""
    rate = bench_hub.creation_rate(world, 0, pods, POOL)
    table.add(f"{pods} pods by the hub and the plugin", f"{rate:.0f} pods/s", "from the first creation to all running")
    pid = world.cluster.pid(POOL)
    found = world.api("GET", bench_hub.PODS)["items"]
    before = bare.usage(pid)[0]
    times = status_times(port, found)
    cpu = (bare.usage(pid)[0] - before) / len(times)
    figure = f"p50 {bench_site.p50(times) * 1000:.0f} ms, longest {max(times) * 1000:.0f} ms"
    note = f"{len(times)} requests, {cpu * 1000:.0f} ms of the plugin's CPU each; to reach: 100 ms"
    table.add(f"/status for {pods} pods", figure, note)
    before, began = bare.usage(pid)[0], time.monotonic()
    late = single_statuses(port, found)
    cores = (bare.usage(pid)[0] - before) / (time.monotonic() - began)
    table.add(f"{SINGLES} /status for one pod per second", f"{cores:.2f} core", f"{late}; to reach: 0.3 core")
    delays = end_delays(world, min(PROBES, pods // 2))
    limit = f"to reach: {PERIOD:g} + 1 s"
    figure = f"p50 {bench_site.p50(delays):.2f} s, longest {delays[-1]:.2f} s"
    table.add(f"end of a job to its pod, {pods} run", figure, f"{len(delays)} ends, poll period {PERIOD:g} s; {limit}")
    before, began = bare.usage(pid)[0], time.monotonic()
    time.sleep(bench_hub.REST)
    cores = (bare.usage(pid)[0] - before) / (time.monotonic() - began)
    figure = f"{bare.resident(pid):.0f} MiB, peak {bare.usage(pid)[1]:.0f} MiB, {cores:.2f} core"
    table.add(f"plugin at rest, {pods} run", figure, "the hub polls it; to reach: 150 MiB")


def start_plugin(cluster: Cluster, states: bool = False) -> int:
    """Start the plugin with the null batch system; return its port."""
    site, port = cluster.sites[bench_site.NULL], free_block(1)
    overrides = {"batch": {"period": bench_site.PERIOD}, "resources": {"pods": 100_000}}
    site.configure(cluster.nats.websocket_urls, cluster.nats.seed(site.name), cluster.nats.ca_file, overrides)
    options = ["--pool", site.name, "--config", f"{SEEN_AS}/site.toml", "--plugin", f"127.0.0.1:{port}"]
    variables = [f"{nullsite.STATES}=1"] if states else []
    command = [str(site.as_user), "env", *variables, *tools.module("cluster.bench.nullsite"), *options]
    cluster.processes.start(POOL, command)
    cluster.processes.wait(POOL, lambda: listening(port) and _pings(port))
    return port


def stop_plugin(cluster: Cluster) -> None:
    """Stop it and rename its job directories."""
    cluster.processes.stop([POOL])
    cluster.processes.forget(POOL)
    work = cluster.sites[bench_site.NULL].work
    (work / "jobs").rename(work / f"jobs.{time.monotonic_ns()}")


def create_rate(port: int, count: int) -> float:
    """Send ``/create`` for pods over several connections; return pods per second."""
    bodies = [_create_body(pod) for pod in bench_pods.pods(count)]

    def work(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for body in bodies[number :: bench_site.AT_ONCE]:
            _answer(connection, "POST", "/create", body)
        connection.close()

    return count / bare.parallel(bench_site.AT_ONCE, work)


def status_times(port: int, pods: list[dict[str, Any]]) -> list[float]:
    """Request the states of all pods at once, several times; return the seconds of each request."""
    body, times = json.dumps(pods).encode(), []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(STATUSES):
        began = time.monotonic()
        answer = _answer(connection, "GET", "/status", body)
        times.append(time.monotonic() - began)
        if len(json.loads(answer)) != len(pods):
            raise RuntimeError("a pod is missing in the answer")
        time.sleep(0.2)
    connection.close()
    return times


def single_statuses(port: int, pods: list[dict[str, Any]]) -> str:
    """Request the state of one pod after the other, :data:`SINGLES` per second; return how long an answer took."""
    bodies = [json.dumps([pod]).encode() for pod in random.sample(pods, min(len(pods), SINGLES))]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times, began = [], time.monotonic()
    for number in range(int(SINGLES * SECONDS)):
        time.sleep(max(0.0, began + number / SINGLES - time.monotonic()))
        sent = time.monotonic()
        _answer(connection, "GET", "/status", bodies[number % len(bodies)])
        times.append(time.monotonic() - sent)
    connection.close()
    rate = len(times) / (time.monotonic() - began)
    return f"{rate:.0f}/s, p50 {statistics.median(times) * 1000:.1f} ms"


def end_delays(world: PoolWorld, probes: int) -> list[float]:
    """End jobs at the site; return the seconds until each end is on its pod, sorted."""
    work, began, delays = world.cluster.sites[bench_site.NULL].work, dict[str, float](), dict[str, float]()

    def seen(pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid in began and uid not in delays and pod["status"].get("phase") == "Succeeded":
            delays[uid] = time.monotonic() - began[uid]

    with bench_hub.watching(world, seen):
        for pod in random.sample(world.api("GET", bench_hub.PODS)["items"], probes):
            uid = pod["metadata"]["uid"]
            began[uid] = time.monotonic()
            nullsite.write_end(work / "jobs" / uid, time.time())
            (work / "changed" / uid).touch()
            time.sleep(PERIOD / 50)
        eventually(lambda: len(delays) == probes, "every end on its pod", 60)
    return sorted(delays.values())


def _create_body(pod: dict[str, Any]) -> bytes:
    """Return the body of ``/create`` on hop B, as an interLink API server sends it."""
    own = {**pod, "metadata": {**pod["metadata"], "uid": str(uuid.uuid4())}}
    sent = references.sent_pod(own, OBJECTS, bench_pods.NODE)
    containers = references.sent_containers(own, OBJECTS, bench_pods.NODE)
    return json.dumps(as_json(RetrievedPodData(pod=sent, container=containers))).encode()


def _answer(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> bytes:
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status}: {text[:300]!r}")
    return text


def _pings(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/status", b"[]", {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _rates(rounds: list[float]) -> str:
    """Return the mean of several rounds, and each value, as text."""
    return f"{sum(rounds) / len(rounds):.0f} pods/s ({', '.join(f'{rate:.0f}' for rate in rounds)})"
