"""While many pods are pending: the time from the end of a job to the end of its pod, and from there to its release."""

from __future__ import annotations

import statistics
import time
from datetime import datetime
from typing import Any

from cluster.bench import bare
from cluster.polling import eventually
from cluster.world import LABEL, World

PAUSE = 0.3
"""Seconds between two ends."""
CONTROLLERS = "podbridge-controllers"
AIM = "to reach: p99 1.5 s"


def measure(table: Any, world: World, running: list[Any], title: str) -> None:
    """End half of the running pods by their jobs, and the jobs of the other half by their pods; add two rows."""
    half = len(running) // 2
    jobs = _cancelled(world, running[:half])
    pods = _succeeded(world, running[half:])
    eventually(lambda: not {job_id for job_id, _ in pods.values()} & world.queue().keys(), "released", 60)
    eventually(lambda: len(_ended(world, jobs)) == len(jobs), "pods end with their jobs", 60)
    eventually(lambda: len(_released(world, pods)) == len(pods), "jobs end with their pods", 60)
    ended, released = _ended(world, jobs), _released(world, pods)
    table.add(f"job end to pod ended, {title}", *_row([ended[name] - jobs[name][1] for name in jobs]))
    table.add(f"pod end to job released, {title}", *_row([released[name] - pods[name][1] for name in pods]))


def _row(delays: list[float]) -> tuple[str, str]:
    p50, p99 = statistics.median(delays), sorted(delays)[int(len(delays) * 0.99) - 1]
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s", f"{len(delays)} pods; {AIM}"


def _cancelled(world: World, pods: list[Any]) -> dict[str, tuple[int, float]]:
    """Cancel the jobs of the pods one by one; return the job and the time before the request, by name of the pod."""
    slurm, _ = bare.slurm(world)
    root = bare.submit_path(world).removesuffix("/submit")
    began = {}
    for pod in pods:
        job_id = int(pod["metadata"]["labels"][LABEL])
        began[pod["metadata"]["name"]] = job_id, time.time()
        slurm("DELETE", f"{root}/{job_id}")
        time.sleep(PAUSE)
    return began


def _succeeded(world: World, pods: list[Any]) -> dict[str, tuple[int, float]]:
    """Write the phase Succeeded, as a kubelet does; return the job and the time before the request, by name."""
    kube = bare.kube(world)
    began = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        began[name] = int(pod["metadata"]["labels"][LABEL]), time.time()
        kube("PATCH", f"{bare.PODS}/{name}/status", {"status": {"phase": "Succeeded"}}, bare.STRATEGIC)
        time.sleep(PAUSE)
    return began


def _ended(world: World, began: dict[str, tuple[int, float]]) -> dict[str, float]:
    """Return when the controllers have written the phase of the pods."""
    return _written(world, began, "status")


def _released(world: World, began: dict[str, tuple[int, float]]) -> dict[str, float]:
    """Return when the controllers have removed the finalizer: Slurm has accepted the cancellation before."""
    return _written(world, began, None)


def _written(world: World, began: dict[str, tuple[int, float]], part: str | None) -> dict[str, float]:
    written: dict[str, float] = {}
    for event in world.cluster.audit_events():
        target = event.get("objectRef", {})
        name, by = target.get("name"), event["user"]["username"]
        if name not in began or event["stage"] != "ResponseComplete" or not by.endswith(CONTROLLERS):
            continue
        at = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        if event["verb"] == "patch" and target.get("subresource") == part and at > began[name][1]:
            written.setdefault(name, at)
    return written
