"""Pods on pools: the calls of tests and of the demonstration."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster.core import Cluster
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.systems import install
from cluster.world import Object, World

FINISHED = ("Succeeded", "Failed")


class PoolWorld(World):
    """One running cluster with pools. Pods without a name get a number."""

    numbers = itertools.count(1)

    @classmethod
    def started(cls, cluster: Cluster) -> PoolWorld:
        """Start the submitters and podbridge on a started cluster; return when every pool is ready."""
        cluster.start_submitters()
        cluster.start_podbridge()
        world = cls(cluster)
        for pool in cluster.sites:
            world.ready(pool)
        return world

    def run(self, script: str, pool: str = "*", name: str | None = None, **spec: Any) -> Object:
        """Create a pod that runs a shell script on a pool (or on one of a list)."""
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script]}
        return self.create_pod({"containers": [container], "restartPolicy": "Never", **spec}, pool, name)

    def held(self, then: str, pool: str, **spec: Any) -> tuple[Object, Callable[[], object]]:
        """Create a pod that waits at a site without containers; return it, and a function that lets it run ``then``."""
        gate = f"/srv/home/gate-{next(self.numbers)}-{time.monotonic_ns()}"
        pod = self.run(f"until [ -e {gate} ]; do sleep 0.1; done; {then}", pool, **spec)
        return pod, lambda: self.cluster.sites[pool].run("touch", gate)

    def create_pod(
        self,
        spec: Object,
        pool: str = "*",
        name: str | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Object:
        """Create a pod for pools in their namespace."""
        metadata = {
            "name": name or f"r{next(self.numbers)}",
            "annotations": {"bridge.vk.io/pools": pool, **(annotations or {})},
            "labels": {**(labels or {})},
        }
        found: Object = self.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})
        return found

    def ended(self, pod: Object, timeout: float = 60) -> Object:
        """Wait until the pod has ended; return it."""
        return self.seen(pod, "ended", lambda p: p["status"].get("phase") in FINISHED, timeout)

    def taken(self, pod: Object, timeout: float = 30) -> str:
        """Wait until the site has the pod; return ``<pool>/<job>``."""
        found = self.seen(pod, "taken", lambda p: self.remote_job(p), timeout)
        return self.remote_job(found)

    @staticmethod
    def remote_job(pod: Object) -> str:
        """Return the job at the site, ``<pool>/<job>``; empty if there is none yet."""
        return str((pod["metadata"].get("annotations") or {}).get("bridge.vk.io/job", ""))

    def logs(self, pod: Object, *args: str, check: bool = True) -> str:
        """Run ``kubectl logs`` on a pod."""
        metadata = pod["metadata"]
        return self.cluster.kubectl("logs", metadata["name"], "-n", metadata["namespace"], *args, check=check)

    def explain(self, pod: Object) -> str:
        """Run ``podbridge explain pod``; return its output."""
        metadata, state = pod["metadata"], self.cluster.state
        command = [str(state / "bin" / "podbridge"), "explain", "pod", metadata["name"], "-n", metadata["namespace"]]
        files = ["--config", str(state / "podbridge.yaml"), "--kubeconfig", str(self.cluster.kubeconfig)]
        env = {**self.cluster.env, "PATH": "/usr/bin:/bin"}
        done = subprocess.run([*command, *files], env=env, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def log_bytes(self, pod: Object, *args: str) -> bytes:
        """Return the bytes that ``kubectl logs`` prints."""
        metadata = pod["metadata"]
        own = [str(install.binaries()["kubectl"]), f"--kubeconfig={self.cluster.kubeconfig}"]
        command = [*own, "logs", metadata["name"], "-n", metadata["namespace"], *args]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120).stdout

    def follow(self, pod: Object, *args: str) -> subprocess.Popen[str]:
        """Start ``kubectl logs -f`` on a pod; ``communicate`` returns its output."""
        metadata = pod["metadata"]
        own = [str(install.binaries()["kubectl"]), f"--kubeconfig={self.cluster.kubeconfig}"]
        command = [*own, "logs", "-f", metadata["name"], "-n", metadata["namespace"], *args]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ready(self, pool: str, timeout: float = 30) -> Object:
        """Wait until a pool's virtual node is ready; return it."""
        eventually(lambda: self.readiness(pool).get("status") == "True", f"pool {pool} ready", timeout)
        return self.kube_node(pool)

    def readiness(self, pool: str) -> Object:
        """Return the condition Ready of a pool's virtual node; empty if there is none."""
        status, node = self.api.request("GET", f"/api/v1/nodes/{pool}")
        conditions = node["status"].get("conditions") or () if status == 200 else ()
        return next((c for c in conditions if c["type"] == "Ready"), {})

    def jobs_at(self, pool: str) -> list[str]:
        """Return the UIDs of the jobs whose folders a site keeps."""
        folder = self.cluster.sites[pool].work / "jobs"
        return sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []

    def job_folder(self, pod: Object, pool: str) -> Path:
        """Return the path of the folder of a pod's job at a site, which may not exist."""
        return self.cluster.sites[pool].work / "jobs" / str(pod["metadata"]["uid"])

    def clear(self) -> None:
        """Delete every pod of the namespace, and wait until no pod and no job is left."""
        self.api.delete_pods(NAMESPACE)
        eventually(lambda: not self.pods(NAMESPACE), "no pod left", 90)
        for pool in self.cluster.sites:
            eventually(lambda p=pool: not self.jobs_at(p), f"no job left at {pool}", 60)  # type: ignore[misc]
