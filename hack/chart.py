"""Generate what follows from the Helm chart and from the code. ``--check`` only compares.

- ``config`` in ``helm/podbridge/values.schema.json``: the schema of podbridge's configuration;
- the table of values in ``helm/podbridge/README.md``: the comments of ``values.yaml``;
- ``config/``: the objects of the chart for ``kubectl apply`` and kustomize, by ``helm template``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from bridge.config.hub import Config
from cluster import install

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm" / "podbridge"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
MANIFESTS = ROOT / "config"
BEGIN, END = "<!-- begin: hack/chart.py -->\n", "<!-- end: hack/chart.py -->\n"
FILES = {
    "rbac/admission.yaml": "rbac.yaml",
    "rbac/scheduler.yaml": "rbac.yaml",
    "rbac/controllers.yaml": "rbac.yaml",
    "rbac/run.yaml": "rbac-run.yaml",
    "rbac/pools.yaml": "rbac-pools.yaml",
    "rbac/queues.yaml": "rbac-queues.yaml",
    "rbac/race.yaml": "rbac-race.yaml",
    "rbac/dashboard.yaml": "rbac-dashboard.yaml",
    "policies.yaml": "policies.yaml",
    "crds.yaml": "crds.yaml",
}
"""The file of ``config/`` for each template; the others are in :data:`REST`."""
REST = "podbridge.yaml"
SETTINGS = ("rbac.run=true", "rbac.queues=true", "rbac.race=true", "rbac.dashboard=true")
NOTE = "# Written by hack/chart.py from the Helm chart helm/podbridge.\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: podbridge}\n"
KUSTOMIZATION = (
    NOTE
    + "# rbac-run.yaml adds the account of `podbridge run`, rbac-queues.yaml the permissions for MasterQueues,\n"
    + "# rbac-race.yaml those for late binding, rbac-dashboard.yaml the account of the web page.\n"
    + "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n"
    + "".join(f"  - {name}\n" for name in ("rbac.yaml", "rbac-pools.yaml", "policies.yaml"))
    + "".join(f"  - {name}\n" for name in ("crds.yaml", REST))
)


_AMOUNT = {"type": ["integer", "string", "null"], "pattern": "^[0-9]+%?$", "minimum": 0}
_PULL = ["Always", "IfNotPresent", "Never"]
_REPLICAS = {"type": "integer", "minimum": 0}
RULES: dict[str, dict[str, Any]] = {
    "sharedConfig.slurmRestApi": {"type": ["string", "null"]},
    "sharedConfig.slurmJwtSecret": {
        "type": ["object", "string", "null"],
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    },
    "schedulerConfig.*": {"type": ["string", "null"]},
    "admission.managedNamespaces": {"type": ["array", "null"], "items": {"type": "string"}},
    "admission.managedNamespaceSelector": {"type": ["object", "null"]},
    "rbac.queues": {"type": ["boolean", "null"]},
    "rbac.race": {"type": ["boolean", "null"]},
    "rbac.poolNamespaces": {"type": "array", "items": {"type": "string"}},
    "image.pullPolicy": {"enum": _PULL},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "ipFamilyPolicy": {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
    "ipFamilies": {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}},
    "secretMounts": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name", "existingSecret"],
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"},
                "existingSecret": {"type": "string", "minLength": 1},
                "parts": {"type": "array", "items": {"enum": ["scheduler", "controllers", "plugin"]}},
            },
        },
    },
    "*.replicas": _REPLICAS,
    "*.imagePullPolicy": {"enum": ["", *_PULL]},
    "*.verbosity": {"type": ["integer", "string", "null"]},
    "*.leaderElect": {"type": ["boolean", "null"]},
    "*.pdb.minAvailable": _AMOUNT,
    "*.pdb.maxUnavailable": _AMOUNT,
    "*.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
}
"""The schema of values whose default does not determine it; ``*`` stands for one key."""
OPEN = (
    "*Probe",
    "*.*Probe",
    "*.strategy",
    "*.resources",
    "podSecurityContext",
    "securityContext",
)
"""Objects of Kubernetes: further keys are allowed, and the API server checks them."""


# --- the schema -------------------------------------------------------------------------------------------------------
def schema() -> str:
    """Return the schema of the values: types from the defaults, and ``config`` from the code.

    No key is required and no default is applied: the chart merges ``config`` into what follows from the release.
    """
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for part in defaults.values():
        if isinstance(part, dict) and part.get("image") == {}:
            part["image"] = defaults["image"]
    described = {path: text for path, _, text in values()}
    document = _inferred(defaults, "", described)
    document["properties"]["global"] = {"type": "object", "description": "Values of a parent chart; not used."}
    config = Config.model_json_schema(by_alias=True)
    definitions = {f"config.{name}": value for name, value in config.pop("$defs").items()}
    document["properties"]["config"] = _renamed(config) | {"description": "The configuration file of podbridge."}
    definitions = {name: _renamed(value) for name, value in sorted(definitions.items())}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart podbridge"}
    return json.dumps(head | document | {"$defs": definitions}, indent=2, ensure_ascii=False) + "\n"


def _inferred(value: Any, path: str, described: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of a value: its rule, else what its default says."""
    text = {"description": described[path]} if path in described else {}
    if rule := next((rule for pattern, rule in RULES.items() if _matches(path, pattern)), None):
        return text | rule
    if isinstance(value, dict) and value and not any(_matches(path, pattern) for pattern in OPEN):
        below = {key: _inferred(each, f"{path}.{key}" if path else key, described) for key, each in value.items()}
        return text | {"type": "object", "additionalProperties": False, "properties": below}
    if value is None:
        raise ValueError(f"values.yaml: {path}: null says no type; add a rule to hack/chart.py")
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return text | {"type": kinds[type(value)]}


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern key by key."""
    keys, wanted = path.split("."), pattern.split(".")
    return len(keys) == len(wanted) and all(map(fnmatchcase, keys, wanted))


def _renamed(value: Any) -> Any:
    """Return a schema whose references name definitions with the prefix ``config.``, without defaults."""
    if isinstance(value, dict):
        return {
            key: each.replace("#/$defs/", "#/$defs/config.") if key == "$ref" else _renamed(each)
            for key, each in value.items()
            if key != "default" or (isinstance(each, dict) and "type" in each)
        }
    return [_renamed(each) for each in value] if isinstance(value, list) else value


# --- the table of values ----------------------------------------------------------------------------------------------
def values() -> list[tuple[str, str, str]]:
    """Return path, default and description of each value; raise ValueError for a value without a comment."""
    rows: list[tuple[str, str, str]] = []
    path: list[str] = []
    comment: list[str] = []
    lines = (CHART / "values.yaml").read_text().splitlines()
    defaults = yaml.safe_load("\n".join(lines))
    deeper = -1
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if not line.strip() or (deeper >= 0 and indent > deeper):
            comment = [] if not line.strip() else comment
            continue
        deeper = -1
        text = line.strip()
        if text.startswith("#"):
            if text.startswith("# -- "):
                comment = [text[5:]]
            elif comment:
                comment.append(text[2:])
            continue
        if text.startswith("- ") or (indent > 0 and len(path) < indent // 2):
            raise ValueError(f"values.yaml: no comment above {line!r}")
        path = [*path[: indent // 2], text.partition(":")[0]]
        if comment:
            value = defaults
            for key in path:
                value = value[key]
            shown = json.dumps(value, ensure_ascii=False)
            rows.append((".".join(path), f"`{shown}`", " ".join(comment)))
            comment, deeper = [], indent
        elif text.partition(":")[2]:
            raise ValueError(f"values.yaml: no comment above {'.'.join(path)}")
    return rows


def readme(before: str) -> str:
    """Return the README with the current table of values."""
    top, _, rest = before.partition(BEGIN)
    table = ["| value | default | description |", "| --- | --- | --- |"]
    table += [f"| `{path}` | {default} | {text.replace('|', chr(92) + '|')} |" for path, default, text in values()]
    return top + BEGIN + "\n".join(table) + "\n" + END + rest.partition(END)[2]


# --- config/ ----------------------------------------------------------------------------------------------------------
def template(*args: str) -> str:
    """Return what ``helm template`` prints for the release podbridge in the namespace podbridge."""
    command = [str(install.binaries(install.HELM.packages)["helm"]), "template", "podbridge", str(CHART)]
    return subprocess.run(
        [*command, "--namespace=podbridge", *args], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def manifests() -> dict[str, str]:
    """Return the text of each file of ``config/``, by its name."""
    files = {"rbac.yaml": NOTE + NAMESPACE, "kustomization.yaml": KUSTOMIZATION}
    for document in re.split(r"(?m)^---\n", template("--skip-tests", *(f"--set={setting}" for setting in SETTINGS))):
        if not document.strip():
            continue
        found = re.search(r"(?m)^# Source: podbridge/templates/(.*)\n", document)
        if found is None:
            raise ValueError(f"no source: {document[:200]}")
        name = FILES.get(found[1], REST)
        text = document.replace(found[0], "")
        text = re.sub(r"(?m)^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n|[ \t]+$", "", text).strip() + "\n"
        files[name] = files[name] + "---\n" + text if name in files else NOTE + text
    return files


def main() -> int:
    """Write the files, or with ``--check`` print those that differ."""
    check = "--check" in sys.argv
    install.ensure(modules=[install.HELM])
    different = _compare({SCHEMA: schema(), README: readme(README.read_text())}, check)
    # Helm reads the new schema
    different += _compare({MANIFESTS / name: text for name, text in manifests().items()}, check)
    return 1 if different and check else 0


def _compare(wanted: Mapping[Path, str], check: bool) -> list[Path]:
    """Print the files that differ, and write them unless ``check``."""
    different = [file for file, text in wanted.items() if not file.exists() or file.read_text() != text]
    for file in different:
        print(f"{'differs' if check else 'written'}: {file.relative_to(ROOT)}")
        if not check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(wanted[file])
    return different


if __name__ == "__main__":
    sys.exit(main())
