"""MasterQueues of 100 pools, and the way of a Job through Kueue to a pool: ``./hack/bench.sh --kueue``."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from bridge import names
from cluster import pools
from cluster.bench import bare, bench_site
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import kube, kueue
from cluster.systems.slurm import Size

POOLS, QUEUES = 100, 2
"""Pools in MasterQueues; Kueue allows 64 flavors in a queue."""
REST = 30.0
"""Seconds of the measurement while nothing changes."""
CHANGES = 20
ROUNDS = 2
THREADS = 8
WITHOUT, FAST = {"queues": {"enabled": False}}, {"queues": {"releaseAfter": 1}}
LOCAL = "default"
"""Namespace that podbridge does not manage."""
QUEUE = "bench"
FOREVER = "36000"
"""Seconds for which kwok runs a pod."""


def measure(table: Table, folder: Path, jobs: int) -> None:
    """Measure both."""
    operator(table, folder / "queues")
    overhead(table, folder / "way", jobs)


def operator(table: Table, folder: Path) -> None:
    """Measure the controllers: writes, CPU and memory while nothing changes, and the reaction to a change."""
    with Cluster(folder, slurm="26.05", nodes=1, kueue=True) as cluster:
        world = PoolWorld(cluster)
        for number in range(POOLS):
            cluster.api.ensure("/api/v1/nodes", virtual_node(f"pool-{number % QUEUES}-{number:03}"))
        nodes = f"/api/v1/nodes?labelSelector={names.POOL_LABEL}"
        eventually(lambda: all(map(kube.is_ready, world.api("GET", nodes)["items"])), "all pools are ready", 60)
        cluster.start_podbridge(("controllers",), config_overrides=WITHOUT)
        without, _, _ = at_rest(world)
        cluster.stop_podbridge()
        cluster.start_podbridge(("controllers",), config_overrides=FAST)
        for number in range(QUEUES):
            create_master_queue(world, f"{QUEUE}-{number}", f"^pool-{number}-")
        eventually(lambda: sum(len(quotas(world, n)) for n in range(QUEUES)) == POOLS, "all pools have a flavor", 60)
        eventually(lambda: world.metric("podbridge_queue_flavors", state="offered") == POOLS, "all are offered", 60)
        cores, memory, writes = at_rest(world)
        table.add(f"{POOLS} pools: writes at rest", f"{writes:.0f}", f"in {REST:.0f} s; to reach: 0")
        note = f"{cores:.3f} core with everything else of the controllers, {without:.3f} without queues"
        table.add(f"{POOLS} pools: CPU at rest", f"{max(0.0, cores - without):.3f} core", f"to reach: 0.02; {note}")
        table.add(f"{POOLS} pools: memory", f"{memory:.0f} MiB", "to reach: under 120 MiB")
        delays = reactions(world)
        figure = f"p50 {median(delays):.2f} s, at most {max(delays):.2f} s"
        table.add("change of a pool to the quota", figure, f"{len(delays)} changes; to reach: under 2 s")


def virtual_node(pool: str) -> dict[str, Any]:
    """Return a virtual node as podbridge creates it, which kwok keeps Ready; no process has its pool."""
    body = kube.node_object(pool, Size(64, 256_000, 0))
    body["metadata"]["labels"][names.POOL_LABEL] = pool
    taints = [(names.POOL_TAINT, pool), (names.VIRTUAL_TAINT, "true")]
    body["spec"] = {"taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in taints]}
    return body


def create_master_queue(world: PoolWorld, name: str, expression: str, **more: Any) -> None:
    """Create a MasterQueue of the pools that the expression selects."""
    spec = {"flavors": [{"name": "p", "poolFlavor": {"poolRegExp": expression}}], **more}
    body = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "metadata": {"name": name}, "spec": spec}
    world.api("POST", "/apis/vk.io/v1/masterqueues", body)


def quotas(world: PoolWorld, number: int) -> dict[str, str]:
    """Return the CPU quota of each flavor of a queue."""
    status, found = world.api.request("GET", f"{kueue.API}/clusterqueues/{QUEUE}-{number}")
    groups = found["spec"].get("resourceGroups") or () if status == 200 else ()
    return {
        flavor["name"]: next(item["nominalQuota"] for item in flavor["resources"] if item["name"] == "cpu")
        for group in groups
        for flavor in group["flavors"]
    }


def at_rest(world: PoolWorld) -> tuple[float, float, float]:
    """Wait while nothing changes; return the CPU cores of the controllers, their MiB, and the writes for queues."""
    pid = world.cluster.pid("podbridge")
    time.sleep(5)  # the start is over
    used, written, began = bare.usage(pid)[0], world.metric("podbridge_queue_writes_total"), time.monotonic()
    time.sleep(REST)
    seconds = time.monotonic() - began
    writes = world.metric("podbridge_queue_writes_total") - written
    return (bare.usage(pid)[0] - used) / seconds, bare.resident(pid), writes


def reactions(world: PoolWorld) -> list[float]:
    """Cordon and uncordon pools in turn; return the seconds until the quota has followed, for each."""
    found = []
    for number in range(CHANGES):
        queue, pool = number // 2 % QUEUES, f"pool-{number // 2 % QUEUES}-{number // 2:03}"
        cordoned = number % 2 == 0
        patch = {"spec": {"unschedulable": cordoned or None}}
        began = time.monotonic()
        world.api("PATCH", f"/api/v1/nodes/{pool}", patch, "application/merge-patch+json")
        flavor = f"{QUEUE}-{queue}-p-{pool}"
        eventually(lambda q=queue, f=flavor, c=cordoned: (quotas(world, q)[f] == "0") == c, "quota", 30, 0.02)  # type: ignore[misc]
        found.append(time.monotonic() - began)
        time.sleep(0.5)
    return found


def overhead(table: Table, folder: Path, jobs: int) -> None:
    """Measure Jobs from their creation to running pods, on kwok by kube-scheduler and on a pool, in turn."""
    options: dict[str, Any] = {"nodes": 2, "cpus": 10_000, "gpus": 0, "kueue": True, "pools": [bench_site.NULL]}
    with Cluster(folder, slurm=None, **options) as cluster:
        world = PoolWorld(cluster)
        world.api("POST", *kueue.local_queue(QUEUE, LOCAL, kueue.QUEUE))
        bench_site.start_null(cluster, states=True)
        cluster.start_podbridge(config_overrides=FAST)
        world.ready(bench_site.NULL)
        create_master_queue(world, QUEUE, ".", localQueues=[{"namespace": pools.NAMESPACE}])
        queue = f"{kueue.API}/namespaces/{pools.NAMESPACE}/localqueues/{QUEUE}"
        eventually(lambda: world.api.request("GET", queue)[0] == 200, "the LocalQueue exists")
        line, ours, theft = [], [], bare.Theft()
        for _ in range(ROUNDS):  # in turn: the machine's speed varies
            with theft.watched():
                line.append(rate(world, LOCAL, jobs))
                ours.append(rate(world, pools.NAMESPACE, jobs))
        table.add("Kueue, kube-scheduler, kwok: Job created to running", shown(line), f"{jobs} Jobs, {THREADS} at once")
        table.add("Kueue, podbridge, a pool", shown(ours), f"the same; {theft}")
        table.add("pool/kwok", f"{mean(ours) / mean(line):.2f}", "rates; 1.00: no overhead")


def rate(world: PoolWorld, namespace: str, count: int) -> float:
    """Create Jobs with a queue, and wait until their pods run; return Jobs per second; delete them."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def work(number: int) -> None:
        api = bare.kube(world)
        for index in range(number, count, THREADS):
            api("POST", jobs, job_body(f"j{index}"))

    began = time.monotonic()
    bare.parallel(THREADS, work)
    eventually(lambda: running(world, namespace) == count, "all Jobs run", 600, 0.2)
    seconds = time.monotonic() - began
    world.api("DELETE", jobs, {"propagationPolicy": "Background", "gracePeriodSeconds": 1})
    eventually(lambda: not world.pods(namespace), "no pod left", 300, 1)
    return count / seconds


def running(world: PoolWorld, namespace: str) -> int:
    """Return the number of pods that run."""
    query = "fieldSelector=status.phase%3DRunning"
    return len(world.api("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")["items"])


def job_body(name: str) -> dict[str, Any]:
    """Return a Job of one pod that may run on a pool."""
    requests = {"cpu": "10m", "memory": "16Mi"}
    container = {"name": "main", "image": "none", "command": ["sleep", "infinity"], "resources": {"requests": requests}}
    spec = {"restartPolicy": "Never", "containers": [container], "tolerations": [kueue.TOLERATION]}
    template = {"metadata": {"annotations": {"hack/run-seconds": FOREVER}}, "spec": spec}
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"backoffLimit": 0, "template": template}}


def shown(rates: list[float]) -> str:
    """Return a mean and its values as text."""
    return f"{mean(rates):.0f} Jobs/s ({', '.join(f'{value:.0f}' for value in rates)})"
