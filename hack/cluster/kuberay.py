"""The operator of KubeRay as a process: it creates the pods of a RayCluster, and the RayCluster of a RayJob."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import gang_manifests
from cluster.ports import http_status

OPERATOR = "kuberay-operator"
PORTS = 1
MODULE = "github.com/ray-project/kuberay/ray-operator"
CRDS = "crds.yaml"


def take(tools: Path, folder: Path) -> None:
    """Write ``folder/crds.yaml``: the CRDs of the module that ``tools/go.mod`` pins."""
    bases = gang_manifests.module_folder(tools, MODULE) / "config" / "crd" / "bases"
    aside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    (aside / CRDS).write_text("\n---\n".join(file.read_text() for file in sorted(bases.glob("ray.io_*.yaml"))))
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


@dataclass(frozen=True)
class KubeRaySetup:
    """The operator in one cluster: its folder, port and program. Its webhooks are off, as by default."""

    folder: Path
    first_port: int
    """Port of its health."""
    binary: Path
    manifests: Path
    """Folder that :func:`take` has written."""
    kubeconfig: Path

    user = "kuberay"

    def write(self) -> None:
        """Write nothing: its options are on its command line."""

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of the operator, without a batch scheduler: the user labels the pods."""
        options = [f"--health-probe-bind-address={self._health}", "--metrics-addr=0", "--enable-leader-election=false"]
        return {OPERATOR: [str(self.binary), f"--kubeconfig={self.kubeconfig}", *options]}

    def answers(self, name: str) -> bool:
        """Return whether the operator runs."""
        return http_status(f"http://{self._health}/readyz") == 200

    @property
    def crds(self) -> Path:
        """Manifest of the CRDs."""
        return self.manifests / CRDS

    def webhook_objects(self) -> list[tuple[str, dict[str, Any]]]:
        """Return no webhook configuration."""
        return []

    @property
    def _health(self) -> str:
        return f"127.0.0.1:{self.first_port}"
