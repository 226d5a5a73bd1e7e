"""Manifests of Kueue, taken from its Go module: its CRDs and webhook configurations, and those of a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import ClusterError
from cluster.processes import run
from cluster.systems.gang_manifests import WEBHOOKS, module_folder, replacing

MODULE = "sigs.k8s.io/kueue"
CRDS = "crds.json"


def take(tools: Path, folder: Path) -> None:
    """Write ``folder/crds.json`` and ``folder/webhooks.json`` from the module that ``tools/go.mod`` pins.

    ``crds.json`` is a list of CRDs, those with a conversion webhook named as a Service; ``webhooks.json`` is a list of
    webhook configurations.
    """
    components = module_folder(tools, MODULE) / "config" / "components"
    with replacing(folder) as aside:
        (aside / CRDS).write_text(json.dumps(custom_resources(components / "crd")) + "\n")
        (aside / WEBHOOKS).write_text(json.dumps(webhook_configurations(components / "webhook"), indent=1) + "\n")


def release(tools: Path, kubectl: Path, image: str) -> list[dict[str, Any]]:
    """Return the objects of a release with another image, which is not pulled if a node has it."""
    found = yaml.safe_load_all(
        run([str(kubectl), "kustomize", str(module_folder(tools, MODULE) / "config" / "default")])
    )
    objects = [item for item in found if item]
    (deployment,) = (item for item in objects if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
    return objects


def custom_resources(folder: Path) -> list[dict[str, Any]]:
    """Return the CRDs of a kustomization, with its patches, which set ``spec.conversion``."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = {item["metadata"]["name"]: item for item in (_read(folder / file) for file in kustomization["resources"])}
    for entry in kustomization.get("patches", []):
        patch = _read(folder / entry["path"])
        if set(patch["spec"]) != {"conversion"}:
            raise ClusterError(f"{folder / entry['path']}: only a patch of spec.conversion is supported")
        found[patch["metadata"]["name"]]["spec"]["conversion"] = patch["spec"]["conversion"]
    return list(found.values())


def webhook_configurations(folder: Path) -> list[dict[str, Any]]:
    """Return the webhook configurations of a kustomization, with its inline patches.

    A patch sets fields of webhooks by their name: others raise :class:`ClusterError`.
    """
    found = [item for item in yaml.safe_load_all((folder / "manifests.yaml").read_text()) if item]
    for entry in yaml.safe_load((folder / "kustomization.yaml").read_text()).get("patches", []):
        if "patch" not in entry:
            raise ClusterError(f"{folder / 'kustomization.yaml'}: only inline patches are supported")
        patch = yaml.safe_load(entry["patch"])
        target = next(item for item in found if item["kind"] == patch["kind"])
        hooks = {hook["name"]: hook for hook in target["webhooks"]}
        for hook in patch["webhooks"]:
            hooks[hook["name"]].update(hook)
    return found


def of_groups(configurations: list[dict[str, Any]], groups: frozenset[str]) -> list[dict[str, Any]]:
    """Return the configurations with the webhooks for objects of these API groups only."""

    def chosen(hook: dict[str, Any]) -> bool:
        return all(set(rule["apiGroups"]) <= groups for rule in hook["rules"])

    return [{**item, "webhooks": [hook for hook in item["webhooks"] if chosen(hook)]} for item in configurations]


def with_conversion_at(crd: dict[str, Any], server: str, authority: str) -> dict[str, Any]:
    """Return a CRD whose conversion webhook is called by URL (``server``: see :func:`gang_manifests.addressed`)."""
    conversion = crd["spec"].get("conversion", {})
    if conversion.get("strategy") != "Webhook":
        return crd
    webhook = conversion["webhook"]
    client = {"url": server + webhook["clientConfig"]["service"]["path"], "caBundle": authority}
    return {
        **crd,
        "spec": {**crd["spec"], "conversion": {**conversion, "webhook": {**webhook, "clientConfig": client}}},
    }


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(file.read_text())
    return content
