"""Manifests of the gang controllers: their CRDs and webhook configurations, taken from their Go modules."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ClusterError


@dataclass(frozen=True)
class Source:
    """The Go module of a controller, and the folders of its manifests there."""

    module: str
    crds: str
    webhooks: str = ""
    """Folder of a kustomization; empty: the controller has no webhooks."""


SOURCES = {
    "jobset": Source("sigs.k8s.io/jobset", "config/components/crd/bases", "config/components/webhook"),
    "lws": Source("sigs.k8s.io/lws", "config/crd/bases", "config/webhook"),
    "scheduler-plugins": Source("sigs.k8s.io/scheduler-plugins", "config/crd/bases"),
}
"""Controller -> source; JobSet, LeaderWorkerSet, and the PodGroups of scheduler-plugins."""
CRDS = "crds.yaml"
WEBHOOKS = "webhooks.json"


def take(tools: Path, folder: Path) -> None:
    """Write ``folder/crds.yaml`` and ``folder/webhooks.json`` from the modules that ``tools/go.mod`` pins.

    ``webhooks.json`` is an object: controller -> list of webhook configurations.
    """
    crds, webhooks = [], {}
    for name, source in SOURCES.items():
        there = module_folder(tools, source.module)
        crds += [file.read_text() for file in sorted((there / source.crds).glob("*.yaml"))]
        webhooks[name] = webhook_configurations(there / source.webhooks) if source.webhooks else []
    with replacing(folder) as aside:
        (aside / CRDS).write_text("\n---\n".join(crds))
        (aside / WEBHOOKS).write_text(json.dumps(webhooks, indent=1) + "\n")


def webhook_configurations(folder: Path) -> list[dict[str, Any]]:
    """Return the webhook configurations of a kustomization, with its patches.

    A patch must replace whole webhooks: other operations raise :class:`ClusterError`.
    """
    found = [item for item in yaml.safe_load_all((folder / "manifests.yaml").read_text()) if item]
    for patch in yaml.safe_load((folder / "kustomization.yaml").read_text()).get("patches", []):
        target = next(item for item in found if item["kind"] == patch["target"]["kind"])
        for step in yaml.safe_load((folder / patch["path"]).read_text()):
            number = re.fullmatch(r"/webhooks/(\d+)", step["path"])
            if step["op"] != "replace" or number is None or int(number[1]) >= len(target["webhooks"]):
                raise ClusterError(
                    f"{folder / patch['path']}: {step['op']} {step['path']}: only replace of /webhooks/N is supported"
                )
            target["webhooks"][int(number[1])] = step["value"]
    return found


def addressed(
    configuration: dict[str, Any], controller: str, server: str, authority: str
) -> tuple[str, dict[str, Any]]:
    """Return the API path of a webhook configuration, and the object with a URL in place of each Service.

    ``server`` is the URL of the controller's webhook server, ``authority`` its CA certificate in base64.
    """
    webhooks = [
        {**hook, "clientConfig": {"url": server + hook["clientConfig"]["service"]["path"], "caBundle": authority}}
        for hook in configuration["webhooks"]
    ]
    kind = configuration["kind"]
    name = f"{controller}-{configuration['metadata']['name']}"
    path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s"
    return path, {**configuration, "metadata": {"name": name}, "webhooks": webhooks}


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces ``folder`` at the end: an interrupted run leaves no half of one."""
    aside = folder.with_name(f"{folder.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    yield aside
    shutil.rmtree(folder, ignore_errors=True)
    aside.replace(folder)


def module_folder(tools: Path, module: str) -> Path:
    """Return the folder of a module in Go's module cache."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", module]
    done = subprocess.run(command, cwd=tools, capture_output=True, text=True, timeout=120)
    if done.returncode or not done.stdout.strip():
        raise ClusterError(f"no folder of the Go module {module}: {done.stderr.strip()}")
    return Path(done.stdout.strip())
