"""metrics-server as a process: it scrapes the nodes, and serves ``metrics.k8s.io`` through the API server."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import places
from cluster.errors import ClusterError
from cluster.ports import free_block
from cluster.systems import gang_manifests

PROGRAM = "metrics-server"
MODULE = "sigs.k8s.io/metrics-server"
RESOLUTION = 10
"""Seconds between two scrapes: the shortest time that it accepts."""
_PATIENCE = 60.0
_NAMESPACE = "kube-system"
_GROUP = "v1beta1.metrics.k8s.io"


def folder() -> Path:
    """Return the folder of its manifests in the cache."""
    return places.cache() / PROGRAM


def take(tools: Path) -> None:
    """Copy its own account, roles and bindings from the module that ``tools/go.mod`` pins."""
    folder().mkdir(parents=True, exist_ok=True)
    shutil.copyfile(gang_manifests.module_folder(tools, MODULE) / "manifests/base/rbac.yaml", folder() / "rbac.yaml")


@contextmanager
def running(kubectl: Callable[..., str], kubeconfig: Path, state: Path) -> Iterator[None]:
    """Run it with its own account, which may read ``nodes/metrics`` only; the API server has its API.

    ``kubectl`` runs a command of the administrator, whose file is ``kubeconfig``.
    """
    state.mkdir(parents=True, exist_ok=True)
    port = free_block(1)
    kubectl("apply", "-f", str(folder() / "rbac.yaml"))
    token = kubectl("create", "token", PROGRAM, "-n", _NAMESPACE, "--duration=2h").strip()
    shutil.copyfile(kubeconfig, state / "kubeconfig")
    config = f"--kubeconfig={state / 'kubeconfig'}"
    kubectl(config, "config", "set-credentials", PROGRAM, f"--token={token}")
    kubectl(config, "config", "set-context", "--current", f"--user={PROGRAM}")
    command = [
        str(places.cache() / "bin" / PROGRAM),
        config,
        f"--authentication-{config[2:]}",
        f"--authorization-{config[2:]}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={state}",
        "--kubelet-use-node-status-port",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-insecure-tls",
        f"--metric-resolution={RESOLUTION}s",
        f"--kubelet-request-timeout={RESOLUTION - 2}s",
        "--v=1",
    ]
    with (state / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            kubectl("apply", "-f", "-", input=json.dumps({"kind": "List", "apiVersion": "v1", "items": _api(port)}))
            path = "jsonpath={.status.conditions[?(@.type=='Available')]}"
            until = time.monotonic() + _PATIENCE
            while '"status":"True"' not in (said := kubectl("get", "apiservice", _GROUP, "-o", path)):
                if process.poll() is not None or time.monotonic() > until:
                    raise ClusterError(f"{PROGRAM} does not serve: {said}\n{(state / 'log').read_text()[-2000:]}")
                time.sleep(0.5)
            yield
        finally:
            kubectl("delete", "apiservice", _GROUP, "--ignore-not-found")
            process.terminate()


def _api(port: int) -> list[dict[str, Any]]:
    """Return the API and its Service, which the API server reaches at this machine without a network of pods."""
    name = {"name": PROGRAM, "namespace": _NAMESPACE}
    group, version = _GROUP.partition(".")[::2][::-1]
    spec = {
        "service": {**name, "port": port},
        "group": group,
        "version": version,
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": name,
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": _GROUP}, "spec": spec},
    ]
