"""Kueue's controller as a process, and a first queue for the nodes of Slurm."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import pki
from cluster.ports import http_status
from cluster.systems import controllers, gang_manifests, kueue_manifests
from cluster.systems.slurm import Size

KUEUE = "kueue"
NAMESPACE = "kueue-system"
PORTS = 3
LOCAL_NODE = "local-0"
"""A node without slurmd: kube-scheduler binds pods to it."""
API = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE = "slurm"
"""Name of the first ResourceFlavor, its ClusterQueue, and the LocalQueue in ``slurm-bridge``."""
SETTINGS: dict[str, Any] = {
    "queues": {"enabled": True},
    "nodes": {"partitionLabels": True},
    "defaultSchedulerNodes": {"kubernetes.io/hostname": LOCAL_NODE},
}
"""Settings of podbridge in a cluster with Kueue."""
TOLERATION = {"key": "virtual-node.interlink/no-schedule", "operator": "Exists"}
"""With it, a workload may be admitted to the flavors of pools."""
_GROUPS = ("", "batch", "kueue.x-k8s.io")
_FRAMEWORKS = ("batch/job", "pod")
_GANG_GROUPS = ("jobset.x-k8s.io", "leaderworkerset.x-k8s.io")
_GANG_FRAMEWORKS = ("jobset.x-k8s.io/jobset", "leaderworkerset.x-k8s.io/leaderworkerset")
_METRICS = Path("kueue/metrics/certs")
"""Folder below ``/etc`` with the certificate of the metrics."""


@dataclass(frozen=True)
class KueueSetup:
    """Kueue in one cluster: its folder, ports and program."""

    folder: Path
    first_port: int
    """Ports: webhooks, health, metrics (HTTPS, for users that may get ``/metrics``)."""
    binary: Path
    manifests: Path
    """Folder that :func:`cluster.systems.kueue_manifests.take` has written."""
    kubeconfig: Path
    gangs: bool
    """Whether the controllers of JobSet and LeaderWorkerSet run beside it."""

    user = "kueue"

    def write(self) -> None:
        """Write configuration, CRDs and certificates.

        Kueue's own management of certificates is off: it asks for a Service, and there is no cluster network.
        """
        self.folder.mkdir(mode=0o700)
        authority = pki.Authority(self.folder, "ca")
        for place in (self.folder, self._etc / _METRICS):
            place.mkdir(parents=True, exist_ok=True)
            authority.write(place / "tls", KUEUE, hosts=("127.0.0.1",))
        (self.folder / "kueue.json").write_text(json.dumps(self._configuration(), indent=1) + "\n")
        crds = json.loads((self.manifests / kueue_manifests.CRDS).read_text())
        addressed = [kueue_manifests.with_conversion_at(crd, self._server, self._bundle) for crd in crds]
        self.crds.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": addressed}) + "\n")

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of the controller: its ``/etc`` is a folder with the certificate of its metrics."""
        command = shlex.join([str(self.binary), f"--kubeconfig={self.kubeconfig}", f"--config={self._file}"])
        start = f"mount --bind {shlex.quote(str(self._etc))} /etc && exec {command}"
        return {KUEUE: ["unshare", "--mount", "sh", "-c", start]}

    def answers(self, name: str) -> bool:
        """Return whether the controller runs, and serves each of its webhooks: some are registered later."""
        if http_status(f"http://127.0.0.1:{self.first_port + 1}/readyz") != 200:
            return False
        paths = controllers.paths(self._webhooks())
        return all(controllers.serves(self.first_port, path, self.folder / "ca.crt") for path in paths)

    @property
    def crds(self) -> Path:
        """Manifest of the CRDs."""
        return self.folder / "crds.json"

    def webhook_objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return path and body of each webhook configuration."""
        return [gang_manifests.addressed(item, KUEUE, self._server, self._bundle) for item in self._webhooks()]

    @property
    def _server(self) -> str:
        return f"https://127.0.0.1:{self.first_port}"

    @property
    def _bundle(self) -> str:
        return controllers.bundle(self.folder / "ca.crt")

    @property
    def _etc(self) -> Path:
        return self.folder / "etc"

    @property
    def _file(self) -> Path:
        return self.folder / "kueue.json"

    def _webhooks(self) -> list[dict[str, Any]]:
        groups = frozenset((*_GROUPS, *(_GANG_GROUPS if self.gangs else ())))
        return kueue_manifests.of_groups(json.loads((self.manifests / gang_manifests.WEBHOOKS).read_text()), groups)

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "webhook": {"host": "127.0.0.1", "port": self.first_port, "certDir": str(self.folder)},
            "metrics": {"bindAddress": f"127.0.0.1:{self.first_port + 2}"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.first_port + 1}"},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            # high enough not to limit a measurement
            "clientConnection": {"qps": 500, "burst": 1000},
            # its port cannot be chosen
            "featureGates": {"VisibilityOnDemand": False},
            "integrations": {"frameworks": [*_FRAMEWORKS, *(_GANG_FRAMEWORKS if self.gangs else ())]},
        }


def flavor(name: str, **spec: Any) -> tuple[str, dict[str, Any]]:
    """Return path and body of a ResourceFlavor."""
    return f"{API}/resourceflavors", _object("ResourceFlavor", name, spec)


def cluster_queue(name: str, quotas: dict[str, dict[str, str]], **spec: Any) -> tuple[str, dict[str, Any]]:
    """Return path and body of a ClusterQueue for all namespaces; ``quotas``: flavor -> resource -> quantity."""
    flavors = [
        {"name": flavor, "resources": [{"name": key, "nominalQuota": value} for key, value in quota.items()]}
        for flavor, quota in quotas.items()
    ]
    covered = list(next(iter(quotas.values())))
    groups = [{"coveredResources": covered, "flavors": flavors}]
    return f"{API}/clusterqueues", _object(
        "ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups, **spec}
    )


def local_queue(name: str, namespace: str, target: str) -> tuple[str, dict[str, Any]]:
    """Return path and body of a LocalQueue of a ClusterQueue."""
    return f"{API}/namespaces/{namespace}/localqueues", _object("LocalQueue", name, {"clusterQueue": target})


def first_objects(nodes: int, size: Size) -> list[tuple[str, dict[str, Any]]]:
    """Return a flavor for Slurm's nodes, a ClusterQueue with all that they have, and its LocalQueue."""
    quota = {"cpu": str(nodes * size.cpus), "memory": f"{nodes * size.memory}Mi"}
    if size.gpus:
        quota["nvidia.com/gpu"] = str(nodes * size.gpus)
    return [flavor(QUEUE), cluster_queue(QUEUE, {QUEUE: quota}), local_queue(QUEUE, "slurm-bridge", QUEUE)]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
