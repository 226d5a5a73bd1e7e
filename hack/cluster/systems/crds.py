"""CustomResourceDefinitions of the projects whose objects the Helm chart can create, from their Go modules, pinned."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError


@dataclass(frozen=True)
class Source:
    """A Go module: its version, the digest of its files as in a go.sum, the CRDs that are taken from it."""

    version: str
    digest: str
    files: tuple[str, ...]


SOURCES = {
    "github.com/prometheus-operator/prometheus-operator": Source(
        "v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        tuple(
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            for kind in ("servicemonitors", "prometheusrules")
        ),
    ),
    "github.com/cert-manager/cert-manager": Source(
        "v1.21.2",
        "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        tuple(f"deploy/crds/cert-manager.io_{kind}.yaml" for kind in ("certificates", "issuers")),
    ),
}
"""Go module -> what is taken. A module is downloaded once, into Go's cache."""


def manifests() -> str:
    """Return the CRDs as one YAML text. Raises :class:`ClusterError` if a module cannot be downloaded, or differs."""
    texts = []
    for module, source in SOURCES.items():
        # not within a module of hack/tools: their go.mod must not require what no program imports
        done = subprocess.run(
            ["go", "mod", "download", "-json", f"{module}@{source.version}"],
            capture_output=True,
            text=True,
            cwd=places.CHECKOUT / "hack",
            timeout=300,
        )
        found = json.loads(done.stdout or "{}")
        if done.returncode or "Dir" not in found:
            raise ClusterError(f"go mod download {module}: {found.get('Error') or done.stderr.strip()}")
        if found["Sum"] != source.digest:
            raise ClusterError(f"{module} {source.version} has the digest {found['Sum']}, not {source.digest}")
        texts += [(Path(found["Dir"]) / file).read_text() for file in source.files]
    return "\n---\n".join(texts)
