"""The operator of KubeRay as a process: it creates the pods of a RayCluster, and the RayCluster of a RayJob."""

from __future__ import annotations

from pathlib import Path

from cluster.systems import gang_manifests
from cluster.systems.gang_manifests import CRDS
from cluster.systems.job_controller import JobController

OPERATOR = "kuberay-operator"
PORTS = 1
MODULE = "github.com/ray-project/kuberay/ray-operator"


def take(tools: Path, folder: Path) -> None:
    """Write ``folder/crds.yaml``: the CRDs of the module that ``tools/go.mod`` pins."""
    bases = gang_manifests.module_folder(tools, MODULE) / "config" / "crd" / "bases"
    with gang_manifests.replacing(folder) as aside:
        (aside / CRDS).write_text("\n---\n".join(file.read_text() for file in sorted(bases.glob("ray.io_*.yaml"))))


class KubeRaySetup(JobController):
    """The operator in one cluster. Its webhooks are off, as by default."""

    user = "kuberay"

    def write(self) -> None:
        """Write nothing: its options are on its command line."""

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of the operator, without a batch scheduler: the user labels the pods."""
        options = [f"--health-probe-bind-address={self.health}", "--metrics-addr=0", "--enable-leader-election=false"]
        return {OPERATOR: [str(self.binary), f"--kubeconfig={self.kubeconfig}", *options]}
