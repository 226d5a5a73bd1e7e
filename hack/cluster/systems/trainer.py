"""The controller of Kubeflow Trainer as a process: it makes a JobSet of each TrainJob."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from cluster import pki
from cluster.systems import gang_manifests
from cluster.systems.gang_manifests import CRDS
from cluster.systems.job_controller import JobController

TRAINER = "trainer-controller"
NAMESPACE = "kubeflow-system"
PORTS = 2
MODULE = "github.com/kubeflow/trainer/v2"
_CERTIFICATES = Path("/tmp/k8s-webhook-server")
"""Folder above that of the certificate of its webhooks, which cannot be chosen."""
_OBJECTS: tuple[dict[str, Any], ...] = (
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
    {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "kubeflow-trainer-webhook-cert", "namespace": NAMESPACE},
    },
    {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.trainer.kubeflow.org"},
    },
)
"""The controller waits for its own certificates in these objects. Its webhooks only validate, and are not registered:
it issues their certificate for the name of a Service, and there is no cluster network."""


def take(tools: Path, folder: Path) -> None:
    """Write ``folder/crds.yaml``: the CRDs of the module that ``tools/go.mod`` pins, and what the controller needs."""
    bases = gang_manifests.module_folder(tools, MODULE) / "manifests" / "base" / "crds"
    texts = [file.read_text() for file in sorted(bases.glob("trainer.kubeflow.org_*.yaml"))]
    with gang_manifests.replacing(folder) as aside:
        (aside / CRDS).write_text("\n---\n".join([*texts, *map(json.dumps, _OBJECTS)]))


class TrainerSetup(JobController):
    """The controller in one cluster. Ports: health, webhooks. Its webhooks are not registered (see ``_OBJECTS``)."""

    user = "trainer"

    def write(self) -> None:
        """Write a serving certificate."""
        certificates = self.folder / "serving-certs"
        certificates.mkdir(mode=0o700, parents=True)
        pki.Authority(self.folder, "ca").write(certificates / "tls", TRAINER, hosts=("127.0.0.1",))

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of the controller. It reads its certificate from a fixed path."""
        options = [f"--webhook-server-port={self.first_port + 1}", f"--health-probe-bind-address={self.health}"]
        command = shlex.join([str(self.binary), f"--kubeconfig={self.kubeconfig}", *options])
        own = shlex.quote(str(self.folder))
        start = f"mkdir -p {_CERTIFICATES} && mount --bind {own} {_CERTIFICATES} && exec {command}"
        return {TRAINER: ["unshare", "--mount", "sh", "-c", start]}
