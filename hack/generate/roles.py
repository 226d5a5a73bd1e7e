"""bridge/apps/cli/roles.json, the permissions that ``podbridge check`` tests, from config/rbac*.yaml.

The file has the rules of each part: ``admission``, ``scheduler`` and ``controllers``, and four that the controllers
have too: ``queues`` and ``race`` if MasterQueues or late binding are enabled, ``policies`` beside the admission
policies, and ``pools`` in each namespace where the role is bound. A rule is one API group, resource and name with its
verbs; without a namespace it applies to all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "bridge/apps/cli/roles.json"
SOURCES = {
    "rbac.yaml": "",
    "rbac-pools.yaml": "pools",
    "rbac-queues.yaml": "queues",
    "rbac-race.yaml": "race",
    "policies.yaml": "policies",
}
"""File of config/ -> the part that gets its rules; empty: the part of the service account."""
ELSEWHERE = {
    "extension-apiserver-authentication-reader": [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["extension-apiserver-authentication"],
            "verbs": ["get"],
        }
    ]
}
"""Rules of roles that Kubernetes itself creates."""


def rules() -> dict[str, list[dict[str, Any]]]:
    """Return the rules of each part."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file, fixed in SOURCES.items():
        documents = [each for each in yaml.safe_load_all((ROOT / "config" / file).read_text()) if each]
        roles = {_key(each["kind"], each): each["rules"] for each in documents if "rules" in each}
        if file == "rbac-pools.yaml":  # its role is bound by podbridge rbac pools, or by the chart
            found[fixed] = [one for each in roles.values() for rule in each for one in _single(rule, "")]
        for binding in documents:
            if not binding["kind"].endswith("RoleBinding"):
                continue
            role, namespace = binding["roleRef"], binding["metadata"].get("namespace", "")
            where = namespace if role["kind"] == "Role" else ""
            content = ELSEWHERE.get(role["name"]) or roles[role["kind"], where, role["name"]]
            for account in binding["subjects"]:
                part = fixed or account["name"].partition("-")[2]
                target = found.setdefault(part, [])
                target += [one for rule in content for one in _single(rule, namespace) if one not in target]
    return {part: sorted(each, key=json.dumps) for part, each in sorted(found.items())}


def _key(kind: str, role: dict[str, Any]) -> tuple[str, str, str]:
    return kind, role["metadata"].get("namespace", ""), role["metadata"]["name"]


def _single(rule: dict[str, Any], namespace: str) -> Iterator[dict[str, Any]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for name in rule.get("resourceNames", [""]):
                plain, _, sub = resource.partition("/")
                entry = {"group": group, "resource": plain, "subresource": sub, "namespace": namespace, "name": name}
                yield {key: value for key, value in entry.items() if value} | {"verbs": rule["verbs"]}


def files() -> dict[Path, str]:
    """Return the file: one rule a line."""
    parts = []
    for part, found in rules().items():
        lines = ",\n".join(f"  {json.dumps(rule)}" for rule in found)
        parts.append(f' "{part}": [\n{lines}\n ]')
    return {TARGET: "{\n" + ",\n".join(parts) + "\n}\n"}
