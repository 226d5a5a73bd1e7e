"""The controllers of groups of pods, each a process: JobSet, LeaderWorkerSet, and scheduler-plugins' controller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import pki
from cluster.ports import http_status
from cluster.systems import controllers, gang_manifests

JOBSET, LWS, PODGROUPS = "jobset-controller", "lws-controller", "scheduler-plugins-controller"
DAEMONS = (JOBSET, LWS, PODGROUPS)
"""They are started after their CRDs exist."""
PORTS = 5
_MANIFESTS = {JOBSET: "jobset", LWS: "lws"}
"""Controllers with webhooks, and their names in :mod:`cluster.systems.gang_manifests`."""
_GROUPS = {JOBSET: "config.jobset.x-k8s.io", LWS: "config.lws.x-k8s.io"}
WORKLOAD_API = {
    "1.36": ("scheduling.k8s.io/v1alpha2",),
    "1.37": ("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"),
}
"""Kubernetes version -> the versions of its own Workload API that it serves (off by default); others have none."""
_FEATURES = {"1.36": (), "1.37": ("CompositePodGroup",)}
_GATES = ("GenericWorkload", "TopologyAwareWorkloadScheduling", "DRAWorkloadResourceClaims")


def apiserver_args(kubernetes: str) -> list[str]:
    """Return the arguments with which kube-apiserver serves the Workload API; none if the version has none."""
    served = ",".join(f"{version}=true" for version in WORKLOAD_API.get(kubernetes, ()))
    return [*gates(kubernetes), f"--runtime-config={served}"] if served else []


def gates(kubernetes: str) -> list[str]:
    """Return the arguments of the control plane's programs that turn the Workload API on; none if it has none."""
    if kubernetes not in WORKLOAD_API:
        return []
    return ["--feature-gates=" + ",".join(f"{gate}=true" for gate in (*_GATES, *_FEATURES[kubernetes]))]


@dataclass(frozen=True)
class GangSetup:
    """The three controllers of one cluster: their folder, ports and programs."""

    folder: Path
    first_port: int
    """Ports: webhooks of JobSet and of LeaderWorkerSet, then the health of each controller."""
    binaries: Mapping[str, Path]
    manifests: Path
    """Folder that :func:`cluster.systems.gang_manifests.take` has written."""
    kubeconfig: Path

    user = "gang-controllers"

    def write(self) -> None:
        """Write configuration and serving certificates.

        The controllers' own management of certificates is off: it asks for a Service, and there is no cluster network.
        """
        self.folder.mkdir(mode=0o700)
        authority = pki.Authority(self.folder, "ca")
        for name in _MANIFESTS:
            (self.folder / name).mkdir()
            authority.write(self.folder / name / "tls", name, hosts=("127.0.0.1",))
            (self.folder / f"{name}.json").write_text(json.dumps(self._configuration(name), indent=1) + "\n")

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each controller."""
        health = f"127.0.0.1:{self._health(PODGROUPS)}"
        return {
            **{
                name: [
                    *(str(self.binaries[name]), f"--kubeconfig={self.kubeconfig}"),
                    f"--config={self.folder / f'{name}.json'}",
                ]
                for name in _MANIFESTS
            },
            PODGROUPS: [
                *(str(self.binaries[PODGROUPS]), f"--kubeconfig={self.kubeconfig}"),
                *("--metricsAddr=0", f"--probeAddr={health}", "--workers=4"),
            ],
        }

    def answers(self, name: str) -> bool:
        """Return whether a controller runs, and serves each of its webhooks: it registers them after it is healthy."""
        if http_status(f"http://127.0.0.1:{self._health(name)}/readyz") != 200:
            return False
        if name not in _MANIFESTS:
            return True
        paths, port = controllers.paths(self._configurations(name)), self._webhooks(name)
        return all(controllers.serves(port, path, self.folder / "ca.crt") for path in paths)

    @property
    def crds(self) -> Path:
        """Manifest of the CRDs."""
        return self.manifests / gang_manifests.CRDS

    def webhook_objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return path and body of each webhook configuration."""
        authority = controllers.bundle(self.folder / "ca.crt")
        return [
            gang_manifests.addressed(item, short, f"https://127.0.0.1:{self._webhooks(name)}", authority)
            for name, short in _MANIFESTS.items()
            for item in self._configurations(name)
        ]

    def _configurations(self, name: str) -> list[dict[str, Any]]:
        content = json.loads((self.manifests / gang_manifests.WEBHOOKS).read_text())
        found: list[dict[str, Any]] = content[_MANIFESTS[name]]
        return found

    def _webhooks(self, name: str) -> int:
        return self.first_port + list(_MANIFESTS).index(name)

    def _health(self, name: str) -> int:
        return self.first_port + len(_MANIFESTS) + DAEMONS.index(name)

    def _configuration(self, name: str) -> dict[str, Any]:
        return {
            "apiVersion": f"{_GROUPS[name]}/v1alpha1",
            "kind": "Configuration",
            "webhook": {"host": "127.0.0.1", "port": self._webhooks(name), "certDir": str(self.folder / name)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health(name)}"},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
        }
