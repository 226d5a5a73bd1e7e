"""What follows from the values of the Helm chart.

- ``helm/podbridge/values.schema.json``: types from the defaults, and the schema of podbridge's configuration;
- the table of values in ``helm/podbridge/README.md``: the comments of ``values.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from bridge import names
from bridge.config.hub import Config
from generate.marked import ROOT, between

CHART = ROOT / "helm" / "podbridge"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"

_AMOUNT = {"type": ["integer", "string", "null"], "pattern": "^[0-9]+%?$", "minimum": 0}
_SECRET = {"type": "string", "pattern": f"^({names.DNS_LABEL}(\\.{names.DNS_LABEL})*)?$"}
_PULL = ["Always", "IfNotPresent", "Never"]
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_TIMES = r"[0-9A-Za-z*]+(-[0-9A-Za-z]+)?(/[0-9]+)?"
_SCHEDULE = (
    rf"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|{_TIMES}(,{_TIMES})*( {_TIMES}(,{_TIMES})*){{4}})$"
)
"""Five fields of a CronJob, or a macro; the API server checks the numbers."""
_REPLICAS = {"type": "integer", "minimum": 0}
RULES: dict[str, dict[str, Any]] = {
    "sharedConfig.slurmRestApi": {"type": ["string", "null"]},
    "sharedConfig.slurmJwtSecret": {
        "type": ["object", "string", "null"],
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    },
    "*.ingress.host": {"type": "string", "pattern": f"^({_LABEL}(\\.{_LABEL})*)?$"},
    "slurm.tokenRenewal.schedule": {"type": "string", "pattern": _SCHEDULE},
    "slurm.tokenRenewal.user": {"type": "string", "pattern": "^[a-zA-Z0-9_][-a-zA-Z0-9_.]*$"},
    "slurm.tokenRenewal.lifespan": {"type": "integer", "minimum": 3600, "maximum": 315360000},
    "schedulerConfig.*": {"type": ["string", "null"]},
    "admission.managedNamespaces": {"type": ["array", "null"], "items": {"type": "string"}},
    "admission.managedNamespaceSelector": {"type": ["object", "null"]},
    "rbac.queues": {"type": ["boolean", "null"]},
    "rbac.race": {"type": ["boolean", "null"]},
    "rbac.poolNamespaces": {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "string", "pattern": f"^{names.DNS_LABEL}$"},
    },
    "*.existingSecret": _SECRET,
    "*.*.existingSecret": _SECRET,
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
OPEN = ("*Probe", "*.*Probe", "*.strategy", "*.resources", "*.*.resources", "podSecurityContext", "securityContext")
"""Objects of Kubernetes: further keys are allowed, and the API server checks them."""


# --- the schema -------------------------------------------------------------------------------------------------------
def files() -> dict[Path, str]:
    """Return the schema of the values and the README."""
    return {SCHEMA: schema(), README: between(README, table())}


def schema() -> str:
    """Return the schema of the values: types from the defaults, and ``config`` from the code.

    No key of ``config`` is required and no default is applied: the chart merges it into what follows from the release.
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
        # Helm removes a key whose value is null, for example of a section without keys: templates would name no value
        sections = [key for key, each in below.items() if "properties" in each and each["type"] == "object"]
        required = {"required": sections} if sections else {}
        return text | {"type": "object", "additionalProperties": False, **required, "properties": below}
    if value is None:
        raise ValueError(f"values.yaml: {path}: null says no type; add a rule to hack/generate/chart.py")
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return text | {"type": kinds[type(value)]}


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern key by key."""
    keys, wanted = path.split("."), pattern.split(".")
    return len(keys) == len(wanted) and all(map(fnmatchcase, keys, wanted))


def _renamed(value: Any, *, named: bool = False) -> Any:
    """Return a schema whose references name definitions with the prefix ``config.``, without defaults.

    ``named``: the keys of ``value`` are names of fields, of which one is ``default``, too.
    """
    if isinstance(value, dict):
        return {
            key: each.replace("#/$defs/", "#/$defs/config.")
            if key == "$ref"
            else _renamed(each, named=not named and key == "properties")
            for key, each in value.items()
            if named or key != "default"
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


def table() -> str:
    """Return the table of values."""
    lines = ["| value | default | description |", "|---|---|---|"]
    lines += [f"| `{path}` | {default} | {text.replace('|', chr(92) + '|')} |" for path, default, text in values()]
    return "\n".join(lines) + "\n"
