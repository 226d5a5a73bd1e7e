"""The objects of the Helm chart in config/, for ``kubectl apply`` and kustomize, by ``helm template``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from cluster.systems import install
from generate.chart import CHART
from generate.marked import ROOT

FOLDER = ROOT / "config"
FILES = {
    "rbac/admission.yaml": "rbac.yaml",
    "rbac/scheduler.yaml": "rbac.yaml",
    "rbac/controllers.yaml": "rbac.yaml",
    "rbac/run.yaml": "rbac-run.yaml",
    "rbac/pools.yaml": "rbac-pools.yaml",
    "rbac/queues.yaml": "rbac-queues.yaml",
    "rbac/race.yaml": "rbac-race.yaml",
    "rbac/dashboard.yaml": "rbac-dashboard.yaml",
    "rbac/slurm-sums.yaml": "rbac-users.yaml",
    "public-config.yaml": "rbac-users.yaml",
    "policies.yaml": "policies.yaml",
    "crds.yaml": "crds.yaml",
}
"""The file of ``config/`` for each template; the others are in :data:`REST`."""
REST = "podbridge.yaml"
SETTINGS = ("rbac.run=true", "rbac.queues=true", "rbac.race=true", "rbac.dashboard=true")
NOTE = "# Written by hack/generate.sh from the Helm chart helm/podbridge.\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: podbridge}\n"
KUSTOMIZATION = (
    NOTE
    + "# rbac-run.yaml adds the account of `podbridge run`, rbac-queues.yaml the permissions for MasterQueues,\n"
    + "# rbac-race.yaml those for late binding, rbac-dashboard.yaml the account of the web page.\n"
    + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    + "".join(f"  - {name}\n" for name in ("rbac.yaml", "rbac-users.yaml", "rbac-pools.yaml", "policies.yaml"))
    + "".join(f"  - {name}\n" for name in ("crds.yaml", REST))
)


EVICTS = "config: {nodes: {taint: true}}\n"
"""The values that a first installation with a colocated Slurm requires."""


def template(*args: str) -> str:
    """Return what ``helm template`` prints for the release podbridge in the namespace podbridge.

    Other values files than that of :data:`EVICTS` have precedence.
    """
    command = [str(install.binaries(install.HELM.packages)["helm"]), "template", "podbridge", str(CHART)]
    return subprocess.run(
        [*command, "--namespace=podbridge", "--values=-", *args],
        input=EVICTS,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def files() -> dict[Path, str]:
    """Return each file of ``config/``."""
    install.ensure(modules=[install.HELM])
    texts = {"rbac.yaml": NOTE + NAMESPACE, "kustomization.yaml": KUSTOMIZATION}
    for document in re.split(r"(?m)^---\n", template("--skip-tests", *(f"--set={setting}" for setting in SETTINGS))):
        if not document.strip():
            continue
        found = re.search(r"(?m)^# Source: podbridge/templates/(.*)\n", document)
        if found is None:
            raise ValueError(f"no source: {document[:200]}")
        name = FILES.get(found[1], REST)
        text = document.replace(found[0], "")
        text = re.sub(r"(?m)^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n|[ \t]+$", "", text).strip() + "\n"
        texts[name] = texts[name] + "---\n" + text if name in texts else NOTE + text
    return {FOLDER / name: text for name, text in texts.items()}
