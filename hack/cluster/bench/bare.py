"""The limits of the machine: bare clients without decisions, on plain http.client connections."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster.polling import eventually
from cluster.world import LABEL, NAMESPACE, World

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
STRATEGIC = "application/strategic-merge-patch+json"
TOLERATION = {"key": "slinky.slurm.net/managed-node", "operator": "Exists"}
now = time.monotonic
_STEAL = 7


class Connection:
    """One kept-alive connection."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        host, port = str(parts.hostname), parts.port
        self._http = (
            http.client.HTTPSConnection(host, port, timeout=60, context=tls)
            if tls
            else http.client.HTTPConnection(host, port, timeout=60)
        )
        self._headers = headers or {}

    def __call__(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """Make a call; an error status raises."""
        data = None if body is None else json.dumps(body)
        self._http.request(method, path, data, {"Content-Type": content, **self._headers})
        response = self._http.getresponse()
        text = response.read()
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status}: {text[:300]!r}")
        return json.loads(text) if text else {}


def kube(world: World, podbridge: bool = False) -> Connection:
    """Connect to the API server as its administrator, or as podbridge, which alone may write its label."""
    import base64

    import yaml

    file = world.cluster.podbridge_kubeconfig if podbridge else world.cluster.kubeconfig
    config = yaml.safe_load(Path(file).read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    folder = world.cluster.state / "bench-tls"
    folder.mkdir(mode=0o700, exist_ok=True)
    pair = []
    for kind in ("client-certificate-data", "client-key-data"):
        part = folder / f"{kind}-{podbridge}-{threading.get_ident()}"
        part.write_bytes(base64.b64decode(user[kind]))
        pair.append(str(part))
    tls.load_cert_chain(*pair)
    return Connection(cluster["server"], tls)


def slurm(world: World) -> tuple[Connection, Callable[[str], dict[str, Any]]]:
    """Connect to slurmrestd; return the connection, and a function that returns the body of a placeholder job."""
    token = world.cluster.jwt_file.read_text()
    new = world.cluster.options.slurm == "26.05"
    body: dict[str, Any] = {
        "partition": "main",
        "minimum_nodes": 1,
        "tasks": 1,
        "cpus_per_task": 1,
        "memory_per_node": {"set": True, "infinite": False, "number": 16},
        "current_working_directory": "/tmp",
        "environment": ["PATH=/bin:/usr/bin"],
    }
    if new:
        body["flags"] = ["EXTERNAL_JOB"]
    else:
        body |= {"script": "#!/bin/sh\nexec sleep infinity\n", "standard_output": "/dev/null"}
    return (
        Connection(world.cluster.slurm_rest_url, headers={"X-SLURM-USER-NAME": "slurm", "X-SLURM-USER-TOKEN": token}),
        lambda name: {"job": {**body, "name": name}},
    )


def submit_path(world: World) -> str:
    """Return the path of a submission."""
    return f"/slurm/{'v0.0.45' if world.cluster.options.slurm == '26.05' else 'v0.0.42'}/job/submit"


def parallel(threads: int, work: Callable[[int], None]) -> float:
    """Run ``work(number)`` in ``threads`` threads; return the seconds from the common start to the last end."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    barrier.wait()
    began = now()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]
    return now() - began


def pod_body(name: str, scheduler: str | None, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """Return the manifest of a small pod."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "16Mi"}}}
    body: dict[str, Any] = {"containers": [container], "tolerations": [TOLERATION], **spec}
    if scheduler:
        body["schedulerName"] = scheduler
    return {"metadata": {"name": name}, "spec": body}


_HELD = {"finalizers": ["scheduler.slinky.slurm.net/finalizer"]}


def create_pods(
    world: World,
    count: int,
    threads: int,
    scheduler: str | Callable[[int], str] = "slurm-bridge-scheduler",
    annotations: Callable[[int], dict[str, str]] | None = None,
    held: bool = False,
) -> list[dict[str, Any]]:
    """Create ``count`` pods over ``threads`` connections; both functions get the number of the pod.

    With ``held``, they have the finalizer that admission sets.
    """
    made: list[dict[str, Any]] = []

    def work(number: int) -> None:
        api = kube(world)
        for index in range(number, count, threads):
            body = pod_body(f"b{index}", scheduler if isinstance(scheduler, str) else scheduler(index))
            if held:
                body["metadata"] |= _HELD
            if annotations is not None:
                body["metadata"]["annotations"] = annotations(index)
            made.append(api("POST", PODS, body))

    parallel(threads, work)
    return made


def submit_rate(world: World, count: int, threads: int) -> float:
    """(a) jobs per second that slurmrestd and slurmctld take."""

    def work(number: int) -> None:
        api, body = slurm(world)
        for index in range(number, count, threads):
            api("POST", submit_path(world), body(f"a{index}"))

    rate = count / parallel(threads, work)
    world.slurm("scancel", "-u", "slurm")
    eventually(lambda: not world.queue(), "no job left", 120)
    return rate


def bind_rate(world: World, count: int, threads: int) -> float:
    """(b) binds per second that the API server takes."""
    pods = create_pods(world, count, threads, "bench-nobody")

    def work(number: int) -> None:
        api = kube(world, podbridge=True)
        for index in range(number, count, threads):
            name = pods[index]["metadata"]["name"]
            api("POST", f"{PODS}/{name}/binding", binding(name, index))

    import signal

    world.cluster.kill("kwok", signal.SIGSTOP)
    seconds = parallel(threads, work)
    world.cluster.kill("kwok", signal.SIGCONT)
    clean(world)
    return count / seconds


def binding(name: str, index: int) -> dict[str, Any]:
    """Return the body of a binding; the nodes take turns."""
    return {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": f"node-{index % 4}"}}


def _write(
    world: World, writes: int, kube_api: Connection, slurm_api: Connection, body: Any, pod: Any, index: int
) -> None:
    name = pod["metadata"]["name"]
    job = slurm_api("POST", submit_path(world), body(name))["job_id"]
    if writes == 3:
        kube_api("PATCH", f"{PODS}/{name}", {"metadata": {"labels": {LABEL: str(job)}, **_HELD}}, STRATEGIC)
    bound = binding(name, index)
    bound["metadata"]["labels"] = {LABEL: str(job)}
    kube_api("POST", f"{PODS}/{name}/binding", bound)


def straight_line(world: World, pods: Sequence[dict[str, Any]], threads: int, writes: int) -> float:
    """(d) submit, patch (with three writes) and bind pods that exist: pods per second."""

    def work(number: int) -> None:
        kube_api, (slurm_api, body) = kube(world, podbridge=True), slurm(world)
        for index in range(number, len(pods), threads):
            _write(world, writes, kube_api, slurm_api, body, pods[index], index)

    return len(pods) / parallel(threads, work)


def straight_line_with_creation(world: World, count: int, threads: int, writes: int) -> float:
    """(d2) the same, each pod created first."""

    def work(number: int) -> None:
        admin, kube_api, (slurm_api, body) = kube(world), kube(world, podbridge=True), slurm(world)
        for index in range(number, count, threads):
            pod = admin("POST", PODS, pod_body(f"b{index}", None))
            _write(world, writes, kube_api, slurm_api, body, pod, index)

    return count / parallel(threads, work)


def said(world: World, message: str, name: str = "scheduler") -> list[float]:
    """Return the times of a message in a scheduler's log since its start; the API server has no load from this."""
    lines = world.cluster.processes.log(name).read_text().rpartition('"msg": "starting"')[2].splitlines()
    return [json.loads(line)["ts"] for line in lines if f'"msg": "{message}"' in line and line.endswith("}")]


def _count(world: World, query: str) -> int:
    found = world.api("GET", f"{PODS}?limit=1&{query}")
    return len(found["items"]) + int(found["metadata"].get("remainingItemCount") or 0)


def wait_bound(world: World, count: int) -> float:
    """Wait until the scheduler has bound ``count`` pods; return the time of the last bind (epoch, seconds)."""
    eventually(lambda: len(said(world, "pod bound")) >= count, "all pods bound", 300, 0.2)
    if left := _count(world, "fieldSelector=spec.nodeName%3D"):
        raise RuntimeError(f"{left} pods without a node although the scheduler says it has bound all")
    return said(world, "pod bound")[-1]


def unfinished(world: World) -> int:
    """Count pods that do not run yet."""
    return _count(world, "fieldSelector=status.phase%3DPending")


class Theft:
    """Measures the CPU time that the host of this virtual machine uses for others: see proc_stat(5), ``steal``."""

    def __init__(self) -> None:
        self._taken = self._all = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure it while the block runs."""
        before = _ticks()
        yield
        after = _ticks()
        self._taken += after[_STEAL] - before[_STEAL]
        self._all += sum(after) - sum(before)

    def __str__(self) -> str:
        return f"the host took {self._taken / max(1, self._all):.0%} of the cores"


def _ticks() -> list[int]:
    with open("/proc/stat") as file:
        return [int(word) for word in file.readline().split()[1 : _STEAL + 2]]


def usage(pid: int | None) -> tuple[float, float]:
    """Return the CPU seconds and the peak resident memory (MiB) of a process."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return (int(stat[11]) + int(stat[12])) / 100, int(peak[1]) / 1024 if peak else 0.0


def resident(pid: int | None) -> float:
    """Return the resident memory (MiB) of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def clean(world: World) -> None:
    """Delete all pods and cancel all jobs."""
    for name in ("scheduler", "controllers", "podbridge"):
        if world.cluster.pid(name):
            world.cluster.stop_podbridge(name)
    for kind in ("mutating", "validating"):
        for suffix in ("mutate", "validate"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/podbridge-{suffix}"
            world.api.request("DELETE", path)
    world.cluster.apply_manifests()  # podbridge updates the webhook configurations and may not create them
    api = kube(world)
    for pod in api("GET", PODS)["items"]:
        if pod["metadata"].get("finalizers"):
            api("PATCH", f"{PODS}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}}, STRATEGIC)
    api("DELETE", PODS, {"gracePeriodSeconds": 0})
    eventually(lambda: _count(world, "") == 0, "no pod left", 180)
    world.cluster.run_slurm("scancel", "-u", "slurm", check=False)
    eventually(lambda: not world.queue(), "no job left", 180)
