"""A leader and a standby beside many jobs of others and many waiting pods: ``./hack/bench.sh --scale``."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.bench import bare, drains, latency, scrapes
from cluster.bench.table import Table
from cluster.core import Cluster
from cluster.polling import eventually
from cluster.ports import http_status
from cluster.systems.kube import node_object
from cluster.world import JOB_PREFIX, LABEL, World

THREADS = 4
OTHERS, CLOSED = "others", "bench/closed"
"""A partition of Slurm for the jobs of others, and the taint of the nodes that the pods do not tolerate."""
LIMIT = 900
"""Seconds after which a step has failed."""
WATCH = 60
"""Seconds over which requests and CPU time are counted."""
IDLE_WATCH = 40
"""Seconds over which the requests of a leader without pods are counted."""
DISTINCT = 1000
"""Number of different requests of the waiting pods."""
CLOCKS = 310
"""Seconds: a pod needs the jobs of others that were submitted up to 300 s before it (:mod:`scheduler.rules`)."""
HEAD = 1000
"""Jobs whose excluded nodes are kept up to date (:mod:`scheduler.excluded_nodes`)."""
BURST = 120
"""Pods that the leader submits when it is killed."""
BEGIN = 1.5
"""Seconds after which the loop of a new leader has begun: pods count as new from then on."""
CORDONS = 5
DEBUG = {"logging": {"level": "debug"}}
"""The leader logs the CPU time of each look."""
PARTS = {"scheduler": "leader", "controllers": "controllers"}


@dataclass(frozen=True)
class Size:
    """The numbers of nodes, of waiting pods and of foreign jobs; ``closed`` is the share of nodes without room."""

    nodes: int
    pods: int
    foreign: int
    closed: float = 0.9

    def minutes(self) -> float:
        """Return the expected duration on a quiet machine with 2 cores."""
        return (600 + self.nodes / 50 + self.pods / 20 + self.foreign / 80) / 60


def slurm_conf(size: Size) -> list[str]:
    """Lines for nodes without slurmd: no job starts there. Slurm does not try to start the jobs of others at all."""
    jobs = 2 * (size.pods + size.foreign) + 1000
    nodes = f"{drains.PREFIX}[0-{size.nodes - 1}]"
    return [
        *drains.slurm_conf(size.nodes),
        f"MaxJobCount={jobs}",
        f"PartitionName={OTHERS} Nodes={nodes} State=DOWN",
        # Slurm's defaults: the cycles without a pause that the tests use hold slurmctld's locks half of the time
        "SchedulerParameters=bf_interval=30",
    ]


@dataclass
class Aims:
    """The aims with their figures; ``table`` prints each as it is measured."""

    table: Table
    began: float = field(default_factory=time.monotonic)
    missed: list[str] = field(default_factory=list)
    reached: list[str] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, limit: float, note: str = "") -> None:
        """Add a row with a value that must be at most ``limit``."""
        good = value <= limit
        (self.reached if good else self.missed).append(what)
        self.table.add(
            what, f"{value:.2f} {unit}", f"aim {limit:g}: {'reached' if good else 'NOT REACHED'} {note}".strip()
        )

    def step(self, text: str) -> None:
        """Print what begins now."""
        print(f"[{time.monotonic() - self.began:4.0f} s] {text}", flush=True)

    def show(self) -> None:
        """Add the aims that were reached, and those that were not."""
        seconds = time.monotonic() - self.began
        self.table.add("duration of the measurement", f"{seconds:.0f} s")
        self.table.add("aims reached", f"{len(self.reached)} of {len(self.reached) + len(self.missed)}")
        for what in self.missed:
            self.table.add("aim NOT reached", what)


def measure(table: Table, folder: Path, size: Size) -> None:
    """Start a cluster with everything that is to be measured, and add the rows."""
    aims = Aims(table)
    aims.step(
        f"{size.nodes} nodes, {size.pods} waiting pods, {size.foreign} jobs of others: {size.minutes():.0f} minutes"
    )
    with Cluster(folder / "scale", slurm="26.05", nodes=2, gpus=0, slurm_conf=slurm_conf(size)) as cluster:
        world = World(cluster)
        _prepare(aims, world, size)
        old_at = time.monotonic() + CLOCKS
        for part, name in PARTS.items():
            cluster.start_podbridge((part,), name=name, config_overrides=DEBUG)
        aims.step("podbridge submits the waiting pods")
        _wait_submitted(aims, world, size)
        aims.step("jobs of others grow older than the clocks may differ")
        time.sleep(max(0, old_at - time.monotonic()))
        _restarts(aims, world)
        aims.step("a standby starts")
        cluster.start_podbridge(("scheduler",), name="standby")
        _load(aims, world, size)
        _cordons(aims, world, size)
        for name, limit in (("leader", 400), ("standby", 200), ("controllers", 400)):
            pid = cluster.pid(name)
            peak = f"peak {bare.usage(pid)[1]:.0f} MiB"
            aims.add(f"memory of the {name}", bare.resident(pid), "MiB", limit, peak)
        table.add("memory of slurmrestd", f"{bare.resident(cluster.pid('slurmrestd')):.0f} MiB")
        _closings(aims, world, size)
        _takeover(aims, world)
        aims.show()


def _prepare(aims: Aims, world: World, size: Size) -> None:
    """Create the nodes, the jobs of others and the waiting pods."""
    cluster, table = world.cluster, aims.table
    aims.step("nodes, jobs of others and waiting pods are created")
    seconds = bare.parallel(THREADS, lambda first: _create_nodes(world, range(first, size.nodes, THREADS), size))
    for state in ("down", "idle"):  # slurmctld does not know yet in which state they are
        names = f"nodename={drains.PREFIX}[0-{size.nodes - 1}]"
        cluster.run_slurm("scontrol", "update", names, f"state={state}", "reason=bench")
    table.add("nodes", f"{size.nodes}, {size.closed:.0%} of them excluded", f"created in {seconds:.0f} s")
    seconds = bare.parallel(THREADS, lambda first: _submit_others(world, range(first, size.foreign, THREADS)))
    table.add("pending jobs of others", f"{size.foreign}", f"submitted in {seconds:.0f} s")
    _idle(aims, world)
    seconds = bare.parallel(THREADS, lambda first: _create_pods(world, range(first, size.pods, THREADS)))
    table.add("waiting pods", f"{size.pods}", f"created in {seconds:.0f} s")


def _idle(aims: Aims, world: World) -> None:
    """Count the requests of a leader without pods."""
    cluster = world.cluster
    aims.step(f"a leader without pods, for {20 + IDLE_WATCH} s")
    cluster.start_podbridge(("scheduler",), name="leader", config_overrides=DEBUG)
    time.sleep(20)
    port = cluster.podbridge_port("metrics", "leader")
    before = latency.by_endpoint(port)
    time.sleep(IDLE_WATCH)
    asked = latency.by_endpoint(port) - before
    others = asked.pop("job", 0) / IDLE_WATCH
    rate = asked.total() / IDLE_WATCH
    cluster.stop_podbridge("leader")
    aims.add("slurmrestd asked by a leader without pods", rate, "requests/s", 1)
    aims.add("the same, about single jobs of others, until all are read", others, "requests/s", 6)


def _create_nodes(world: World, numbers: range, size: Size) -> None:
    for number in numbers:
        node = node_object(f"{drains.PREFIX}{number}", drains.SIZE)
        if number < size.nodes * size.closed:
            node.setdefault("spec", {})["taints"] = [{"key": CLOSED, "effect": "NoSchedule"}]
        world.api("POST", "/api/v1/nodes", node)


def _submit_others(world: World, numbers: range) -> None:
    api, body = bare.slurm(world)
    for number in numbers:
        job = body(f"other-{number}")
        job["job"]["partition"] = OTHERS
        api("POST", bare.submit_path(world), job)


def _create_pods(world: World, numbers: range) -> None:
    api = bare.kube(world)
    for number in numbers:
        api("POST", bare.PODS, _pod(f"w{number}", 16 + number % DISTINCT))


def _pod(name: str, mebibytes: int = 16) -> dict[str, Any]:
    pod = bare.pod_body(name, "slurm-bridge-scheduler")
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = f"{mebibytes}Mi"
    pod["metadata"]["annotations"] = {JOB_PREFIX + "partition": "many"}
    return pod


def _wait_submitted(aims: Aims, world: World, size: Size) -> None:
    """Wait until each pod has the id of its job; the leader sets it after some seconds."""

    def has_submitted(count: int) -> bool:
        return len(bare.said(world, "job submitted", "leader")) >= count

    for part in range(1, 11):
        eventually(lambda part=part: has_submitted(size.pods * part // 10), "pods have jobs", LIMIT, 1)  # type: ignore[misc]
        aims.step(f"{part * 10} % of the pods have jobs")
    # a list with a selector has no count of the rest: a page shows whether pods without the id are left
    query = f"{bare.PODS}?limit=1&labelSelector=%21{LABEL.replace('/', '%2F')}"
    eventually(lambda: not world.api("GET", query)["items"], "all pods have the ids of their jobs", LIMIT, 1)


def _wait_pod(world: World, pod: str, name: str) -> float:
    """Wait until a process has submitted a pod; return the time (epoch, seconds)."""
    log = world.cluster.processes.log(name)

    def found() -> float:
        lines = [line for line in log.read_text().splitlines() if f'/{pod}"' in line and '"job submitted"' in line]
        return float(json.loads(lines[-1])["ts"]) if lines else 0.0

    return eventually(found, f"{pod} is submitted", LIMIT, 0.2)


def _restarts(aims: Aims, world: World) -> None:
    """Stop and start the processes while the pods wait; then kill them while they submit pods; nobody stands by."""
    for how in ("a stop", "a kill"):
        cluster, word = world.cluster, how[2:]
        aims.step(f"the processes start after {how}")
        for name in PARTS.values():
            if word == "stop":
                cluster.stop_podbridge(name)
            else:
                if name == "leader":
                    _create_burst(world)
                cluster.kill(name)
        world.api("POST", bare.PODS, _pod(f"during-{word}"))
        began, epoch = time.monotonic(), time.time()
        for part, name in PARTS.items():
            cluster.start_podbridge((part,), name=name, config_overrides=DEBUG, wait=False)
        health = {name: cluster.podbridge_port("health", name) for name in PARTS.values()}
        ready: dict[str, float] = {}
        leads: list[float] = []

        def all_ready(health: dict[str, int] = health, ready: dict[str, float] = ready, began: float = began) -> bool:
            for name, port in health.items():
                if name not in ready and http_status(f"http://127.0.0.1:{port}/readyz") == 200:
                    ready[name] = time.monotonic() - began
            return len(ready) == len(health)

        eventually(all_ready, "ready", LIMIT, 0.1)
        for name, seconds in ready.items():
            aims.add(f"{name}: ready after {how}", seconds, "s", 15)
        leads = eventually(lambda: bare.said(world, "leader lease acquired", "leader"), "leader", LIMIT, 0.2)
        aims.table.add(f"leader: lease acquired after {how}", f"{leads[0] - epoch:.1f} s")
        time.sleep(BEGIN)
        created = time.time()
        world.api("POST", bare.PODS, _pod(f"after-{word}"))
        seconds = _wait_pod(world, f"after-{word}", "leader") - created
        aims.add(f"new pod submitted after {how}", seconds, "s", 15, "from its creation")
        seconds = _wait_pod(world, f"during-{word}", "leader") - epoch
        aims.table.add(f"pod created meanwhile submitted after {how}", f"{seconds:.0f} s", "needs one list of all jobs")
    eventually(lambda: len(set(_burst_jobs(world))) == BURST, "the pods of the burst have jobs", LIMIT, 1)
    jobs = _burst_jobs(world)
    aims.add("second jobs of pods after a kill", len(jobs) - len(set(jobs)), "jobs", 0, f"of {BURST} pods")


def _closings(aims: Aims, world: World, size: Size) -> None:
    """Make half of the open nodes unusable for the pods, and count the updates of pending jobs."""
    port = world.cluster.podbridge_port("metrics", "leader")
    numbers = range(int(size.nodes * size.closed), size.nodes, 2)
    aims.step(f"{len(numbers)} nodes are tainted")
    before, began = latency.by_endpoint(port), time.monotonic()
    for number in numbers:
        node = f"/api/v1/nodes/{drains.PREFIX}{number}"
        taints = [*world.api("GET", node)["spec"].get("taints", []), {"key": CLOSED, "effect": "NoSchedule"}]
        world.api("PATCH", node, {"spec": {"taints": taints}}, bare.STRATEGIC)
    expected = min(size.pods, HEAD)
    updated = lambda: latency.by_endpoint(port)["set_job"] - before["set_job"] >= expected  # noqa: E731
    eventually(updated, "the first jobs are updated", LIMIT, 0.5)
    seconds = time.monotonic() - began
    rate = (latency.by_endpoint(port) - before).total() / seconds
    aims.add(f"the first {expected} jobs exclude them after", seconds, "s", 120, f"{rate:.1f} requests/s meanwhile")


def _create_burst(world: World) -> None:
    """Create pods, and return while the leader submits them: their jobs are not on the pods yet."""
    api = bare.kube(world)
    before = len(bare.said(world, "job submitted", "leader"))
    for number in range(BURST):
        api("POST", bare.PODS, _pod(f"burst-{number}"))
    eventually(lambda: len(bare.said(world, "job submitted", "leader")) - before >= BURST // 3, "jobs", LIMIT, 0.01)


def _burst_jobs(world: World) -> list[str]:
    """Return the names of all jobs of the burst that Slurm knows, ended ones included."""
    lines = world.cluster.run_slurm("squeue", "-h", "-t", "all", "-o", "%j").splitlines()
    return [line for line in lines if line.startswith("burst-")]


def _takeover(aims: Aims, world: World) -> None:
    """Kill the leader: the standby acquires the lease when it has expired."""
    aims.step("the leader is killed")
    world.cluster.kill("leader")
    leads = eventually(lambda: bare.said(world, "leader lease acquired", "standby"), "a leader", LIMIT, 0.1)
    time.sleep(BEGIN)
    world.api("POST", bare.PODS, _pod("after-takeover"))
    seconds = _wait_pod(world, "after-takeover", "standby") - leads[0]
    aims.add("new pod submitted by the standby", seconds, "s", 15, "from its leadership")


def _load(aims: Aims, world: World, size: Size) -> None:
    """Count requests to slurmrestd, and CPU time, while nothing changes."""
    cluster, table = world.cluster, aims.table
    for name in ("leader", "controllers"):
        port = cluster.podbridge_port("metrics", name)
        read = lambda port=port: latency.sums(port, "podbridge_slurm_jobs")[0] >= size.pods  # noqa: E731
        eventually(read, f"the {name} has read the jobs of the pods", LIMIT, 1)
    aims.step(f"nothing changes for {20 + WATCH} s")
    time.sleep(20)
    names = ("leader", "standby", "controllers")
    before = {name: _usage(cluster, name) for name in names}
    daemons = {name: bare.usage(cluster.pid(name))[0] for name in ("slurmrestd", "slurmctld")}
    time.sleep(WATCH)
    for name in names:
        requests, data, cpu = (
            (after - earlier) / WATCH for after, earlier in zip(_usage(cluster, name), before[name], strict=True)
        )
        aims.add(f"slurmrestd asked by the {name}", requests, "requests/s", 1 if name == "standby" else 12)
        aims.add(f"answers for the {name}", data / 1e6, "MB/s", 2)
        table.add(f"CPU of the {name}", f"{cpu:.3f} core")
        duration, note = scrapes.longest(cluster.podbridge_port("metrics", name))
        aims.add(f"longest scrape of the {name}", duration, "ms", scrapes.LIMIT, note)
    for name, earlier in daemons.items():
        table.add(f"CPU of {name}", f"{(bare.usage(cluster.pid(name))[0] - earlier) / WATCH:.3f} core")
    aims.add(
        "a whole reconciliation (p50)", statistics.median(_looks(world, "leader")), "s of CPU", 0.2, f"{size.pods} pods"
    )


def _usage(cluster: Cluster, name: str) -> tuple[float, float, float]:
    return *latency.counters(cluster.podbridge_port("metrics", name)), bare.usage(cluster.pid(name))[0]


def _looks(world: World, name: str) -> list[float]:
    """Return the CPU seconds of the last looks at all pods."""
    lines = world.cluster.processes.log(name).read_text().splitlines()[-5000:]
    found = [json.loads(line) for line in lines if '"msg": "reconciled"' in line and line.endswith("}")]
    return [line["cpu"] for line in found if line["whole"] and line["loop"] == "scheduler"][-20:] or [0.0]


def _cordons(aims: Aims, world: World, size: Size) -> None:
    """Cordon open nodes; count the updates of jobs afterwards."""
    cluster, table = world.cluster, aims.table
    aims.step(f"{CORDONS} nodes are drained")
    port = cluster.podbridge_port("metrics", "leader")
    before, began = latency.counters(port)[0], time.monotonic()
    open_nodes = range(int(size.nodes * size.closed), size.nodes)
    delays = []
    for number in random.sample(open_nodes, min(CORDONS, len(open_nodes))):
        name = f"{drains.PREFIX}{number}"
        delays.append(drains.delay(world, name, "state=drain", "reason=bench"))
        time.sleep(5)
    rate = (latency.counters(port)[0] - before) / (time.monotonic() - began)
    table.add(
        "drain to cordon", f"p50 {statistics.median(delays):.1f} s, longest {max(delays):.1f} s", f"{len(delays)} nodes"
    )
    aims.add("slurmrestd asked by the leader meanwhile", rate, "requests/s", 12)
