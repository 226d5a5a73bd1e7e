"""podbridge in pods of its image, installed by Helm on a real node: ``./hack/up.sh --helm``.

There is no kube-proxy. Pods reach the API server and slurmrestd at the address of this machine, and the API server
reaches the webhook at the addresses of its pods (``--enable-aggregator-routing``).
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from cluster import places, tools
from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.processes import run
from cluster.systems import image, install, kube, realnode
from cluster.systems.containerd import CLIENT

CHART = places.CHECKOUT / "helm" / "podbridge"
NAMESPACE = "podbridge"
RELEASE = "podbridge"
SECRET = "slurm-bridge-token"  # noqa: S105  (its name)
PARTS = ("admission", "scheduler", "controllers")
TIMEOUT = 200
"""Seconds until all pods of a release must be ready."""


def values(cluster: Cluster) -> dict[str, Any]:
    """Return the values of the chart for a local cluster."""
    address = realnode.address()
    # no kube-proxy runs
    api_server = [
        {"name": "KUBERNETES_SERVICE_HOST", "value": address},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(cluster.kube_port)},
    ]
    return {
        "image": {"repository": image.REPOSITORY, "tag": image.version(), "pullPolicy": "Never"},
        "config": {
            "slurmRestApi": f"http://{address}:{cluster.rest_port}",
            "managedNamespaces": ["slurm-bridge"],
            "nodes": {"taint": True},
            "namespacePolicies": [{"namespaces": ["*"], "mayNameScheduler": True, "allowed": tools.ANYTHING}],
        },
        "slurm": {"jwt": {"existingSecret": SECRET, "key": "auth-token"}},
        "extraEnv": api_server,
        "dashboard": {"extraEnv": api_server},
        # the only node with containers is also one of Slurm
        "nodeSelector": {"kubernetes.io/hostname": realnode.NAME},
        "tolerations": [{"operator": "Exists"}],
    }


def prepare(cluster: Cluster) -> image.Image:
    """Build the image, import it, and create what the chart expects: namespace and Secret."""
    built = image.build()
    cluster.real_node.run(*CLIENT, "images", "import", str(built.archive))
    token = base64.b64encode(cluster.jwt_file.read_bytes()).decode()
    secret = {"metadata": {"name": SECRET}, "data": {"auth-token": token}}
    cluster.api.ensure(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    return built


class Release:
    """One release of the chart. All methods raise :class:`ClusterError` with Helm's message."""

    def __init__(self, cluster: Cluster, name: str = RELEASE, settings: Mapping[str, Any] | None = None) -> None:
        """Describe a release; ``settings`` are values that are merged into :func:`values`."""
        self.cluster = cluster
        self.name = name
        self.settings = settings or {}

    def helm(self, *args: str, text: str | None = None) -> str:
        """Run Helm as the administrator; return its output."""
        folder = self.cluster.state / "helm"
        where = (f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}")
        homes = [f"HELM_{kind}_HOME={folder / kind.lower()}" for kind in ("CACHE", "CONFIG", "DATA")]
        program = str(install.binaries(install.HELM.packages)["helm"])
        return run(["env", *homes, program, *where, *args], text, timeout=TIMEOUT + 20)

    def install(self, overrides: Mapping[str, Any] | None = None) -> float:
        """Install or upgrade the release, and wait until its pods are ready; return the seconds that it took."""
        settings = tools.merged(tools.merged(values(self.cluster), self.settings), overrides or {})
        begun = time.monotonic()
        command = ("upgrade", "--install", self.name, str(CHART), "--values=-")
        self.helm(*command, "--wait", f"--timeout={TIMEOUT}s", text=json.dumps(settings))
        return time.monotonic() - begun

    def rollback(self, revision: int) -> None:
        """Return to a revision, and wait until its pods are ready."""
        self.helm("rollback", self.name, str(revision), "--wait", f"--timeout={TIMEOUT}s")

    def uninstall(self) -> None:
        """Uninstall the release, and wait until its objects are gone."""
        self.helm("uninstall", self.name, "--wait", f"--timeout={TIMEOUT}s")

    def test(self) -> str:
        """Run the test of the chart, ``podbridge check`` in a pod; return its output.

        Helm's ``--logs`` would also request the logs of the hooks that are no pods.
        """
        self.helm("test", self.name, f"--timeout={TIMEOUT}s")
        return self.cluster.kubectl("logs", f"--namespace={NAMESPACE}", f"{self.name}-test-check")

    def revision(self) -> int:
        """Return the revision that is deployed; 0 if the release is not installed."""
        found = json.loads(self.helm("list", "--output=json", f"--filter=^{self.name}$"))
        return int(found[0]["revision"]) if found else 0

    def pods(self, part: str) -> list[dict[str, Any]]:
        """Return the pods of a part that are not being deleted."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={part}"
        found = self.cluster.api("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}")["items"]
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def ready(self) -> bool:
        """Return whether every part has a ready pod."""
        return all(any(kube.is_ready(pod) for pod in self.pods(part)) for part in PARTS)


def up(cluster: Cluster) -> float:
    """Install podbridge on a cluster; return the seconds from ``helm install`` to ready pods."""
    if not cluster.options.helm:
        raise ClusterError("this cluster was not started with --helm")
    prepare(cluster)
    return Release(cluster).install()
