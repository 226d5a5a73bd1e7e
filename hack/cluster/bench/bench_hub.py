"""The hub's speed with a null pool: creation of pods, changes of status, load while nothing changes."""

from __future__ import annotations

import http.client
import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cluster.bench import bare, nullsite
from cluster.bench.bench_site import NULL, questions
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
THREADS = 8
REST = 30.0
"""Seconds of the measurement while nothing changes."""
JOB = "bridge.vk.io/job"


def body(name: str, scheduler: str | None = None, pool: str = NULL) -> dict[str, Any]:
    """Return the manifest of a small pod for a pool."""
    made = bare.pod_body(name, scheduler, cpu="10m")
    made["metadata"]["annotations"] = {"bridge.vk.io/pools": pool}
    made["spec"]["containers"][0]["command"] = ["sleep", "infinity"]
    return made


def create(world: PoolWorld, first: int, last: int, pool: str = NULL) -> None:
    """Create pods over some connections."""

    def work(number: int) -> None:
        api = bare.kube(world)
        for index in range(first + number, last, THREADS):
            api("POST", PODS, body(f"b{index}", pool=pool))

    bare.parallel(THREADS, work)


def straight_line(world: PoolWorld, count: int) -> float:
    """Create, bind and patch pods and their status by bare clients, with admission; return pods per second."""
    world.cluster.kill("kwok", signal.SIGSTOP)
    try:

        def work(number: int) -> None:
            admin, api = bare.kube(world), bare.kube(world, podbridge=True)
            for index in range(number, count, THREADS):
                name = f"s{index}"
                admin("POST", PODS, body(name, "bench-nobody"))
                api("POST", f"{PODS}/{name}/binding", bare.binding(name, index))
                api("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": {JOB: f"{NULL}/{index}"}}}, bare.STRATEGIC)
                api("PATCH", f"{PODS}/{name}/status", {"status": _running()}, bare.STRATEGIC)

        return count / bare.parallel(THREADS, work)
    finally:
        world.cluster.kill("kwok", signal.SIGCONT)


def _running() -> dict[str, Any]:
    started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    container = {"name": "main", "image": "none", "imageID": "", "ready": True, "restartCount": 0, "state": started}
    return {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [container]}


def clean(world: PoolWorld) -> None:
    """Delete every pod without a grace period."""
    api = bare.kube(world)
    for pod in api("GET", PODS)["items"]:
        if pod["metadata"].get("finalizers"):
            api("PATCH", f"{PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}}, bare.STRATEGIC)
    api("DELETE", PODS, {"gracePeriodSeconds": 0})
    eventually(lambda: not _some(world, ""), "no pod left", 300)


def _some(world: PoolWorld, selector: str) -> bool:
    """Return whether a field selector selects a pod."""
    return bool(world.api("GET", f"{PODS}?limit=1&fieldSelector={selector}")["items"])


def creation_rate(world: PoolWorld, first: int, last: int, pool: str = NULL) -> float:
    """Create pods and wait until each runs at the site; return pods per second."""
    began = time.monotonic()
    create(world, first, last, pool)
    eventually(lambda: not _some(world, "status.phase%3DPending"), "no pod pending", 900, 0.25)
    seconds = time.monotonic() - began
    if _some(world, "status.phase!%3DRunning"):
        raise RuntimeError("pods have ended that should run")
    return (last - first) / seconds


def status_delays(world: PoolWorld, probes: int) -> list[float]:
    """Change the status of pods at the site; return the seconds until each change is on its pod, sorted."""
    pods = random.sample(world.api("GET", PODS)["items"], probes)
    work = world.cluster.sites[NULL].work
    began: dict[str, float] = {}
    delays: dict[str, float] = {}

    def seen(pod: dict[str, Any]) -> None:
        uid, statuses = pod["metadata"]["uid"], pod["status"].get("containerStatuses") or [{}]
        if uid in began and uid not in delays and statuses[0].get("ready"):
            delays[uid] = time.monotonic() - began[uid]

    with watching(world, seen):
        for pod in pods:
            uid = pod["metadata"]["uid"]
            began[uid] = time.monotonic()
            nullsite.write_state(work / "jobs" / uid, nullsite.CONTAINER, nullsite.container(time.time(), ready=True))
            (work / "changed" / uid).touch()
            time.sleep(0.05)
        eventually(lambda: len(delays) == len(pods), "every change on its pod", 60)
    return sorted(delays.values())


@contextmanager
def watching(world: PoolWorld, seen: Any) -> Iterator[None]:
    """Call ``seen`` with each pod that changes."""
    connection = world.api.connection(120)
    version = world.api("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    connection.request("GET", f"{PODS}?watch=1&resourceVersion={version}")
    response = connection.getresponse()

    def read() -> None:
        try:
            for line in response:
                seen(json.loads(line)["object"])
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # closed below

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        reader.join(5)


def at_rest(world: PoolWorld) -> tuple[float, float, float]:
    """Wait while nothing changes; return podbridge's CPU cores, its MiB, and queries of the batch system per second."""
    pid, work = world.cluster.pid("podbridge"), world.cluster.sites[NULL].work
    used, asked, began = bare.usage(pid)[0], questions(work), time.monotonic()
    time.sleep(REST)
    seconds = time.monotonic() - began
    return (bare.usage(pid)[0] - used) / seconds, bare.resident(pid), (questions(work) - asked) / seconds


def follow(world: PoolWorld, readers: int, lines: int) -> tuple[int, float]:
    """Follow ``readers`` logs at once; return how many arrived complete, and the longest delay of a line in seconds."""
    pods = world.api("GET", f"{PODS}?limit={readers}")["items"]
    jobs = world.cluster.sites[NULL].work / "jobs"
    late: list[float] = []
    whole: list[str] = []
    ready = threading.Barrier(len(pods) + 1)

    def read(pod: dict[str, Any]) -> None:
        connection = world.api.connection(120)
        connection.request("GET", f"{PODS}/{pod['metadata']['name']}/log?follow=true")
        response = connection.getresponse()
        ready.wait(60)
        got = []
        for line in response:
            number, said = line.split()
            late.append(time.time() - float(said))
            got.append(int(number))
            if len(got) == lines:
                break
        if got == list(range(lines)):
            whole.append(pod["metadata"]["name"])
        connection.close()

    for pod in pods:
        _log(jobs / pod["metadata"]["uid"]).touch()
    threads = [threading.Thread(target=read, args=(pod,), daemon=True) for pod in pods]
    for thread in threads:
        thread.start()
    ready.wait(60)
    for number in range(lines):
        for pod in pods:
            with _log(jobs / pod["metadata"]["uid"]).open("a") as file:
                file.write(f"{number} {time.time():.3f}\n")
        time.sleep(1)
    for thread in threads:
        thread.join(30)
    return len(whole), max(late, default=float("inf"))


def _log(folder: Any) -> Any:
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs").chmod(0o755)
    return folder / "logs" / f"{nullsite.CONTAINER}.log"
