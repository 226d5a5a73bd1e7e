"""Validation of announcements: an invalid value is omitted and reported; the other values remain. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from bridge import names
from bridge.protocol.model.announcement import Announcement
from bridge.workload import quantity

Taint = dict[str, str]

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
DEFAULT_PODS = "10000"
"""Capacity for pods of a site that announces no limit: its batch system queues jobs."""
DEFAULT_STORAGE = "1Pi"
"""Ephemeral storage of a site that announces none: batch systems do not count it, so a request for it limits
nothing."""
MOST = 100
"""Labels, taints and resources of a site, at most, each."""

IN_USE = "others have set it on the node; allowed: a key that is not in use"
"""Why a value of the site is omitted that an administrator or another controller has set."""

_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SITES_OWN = frozenset(
    {
        "kubernetes.io/arch",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
"""Kubernetes' labels that a site may set, as a kubelet may (admission plugin NodeRestriction)."""
_SITES_DOMAINS = ("node.kubernetes.io", "kubelet.kubernetes.io")
_KUBERNETES = ("kubernetes.io", "k8s.io")
_OURS = ("bridge.vk.io", "virtual-node.interlink", "slinky.slurm.net")
_STANDARD = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class ValidAnnouncement:
    """Labels, taints and capacity that a Node can have. ``problems``: the omitted values and why."""

    labels: dict[str, str]
    taints: tuple[Taint, ...]
    capacity: dict[str, str]
    problems: tuple[str, ...]


def check(announce: Announcement) -> ValidAnnouncement:
    """Return the valid values of an announcement."""
    problems: list[str] = []
    labels = dict(_limited(announce.labels.items(), "labels", problems))
    labels = {key: text for key, text in labels.items() if not _add_problem(problems, "label", key, _label(key, text))}
    taints: dict[tuple[str, str], Taint] = {}
    for text in _limited(announce.taints, "taints", problems):
        taint = _taint(text)
        if isinstance(taint, str):
            _add_problem(problems, "taint", text, taint)
        else:
            taints[taint["key"], taint["effect"]] = taint
    capacity = {"pods": DEFAULT_PODS, "ephemeral-storage": DEFAULT_STORAGE}
    for name, text in _limited(announce.capacity.items(), "resources", problems):
        if not _add_problem(problems, "resource", name, _resource(name, text)):
            capacity[name] = text.strip()
    return ValidAnnouncement(labels, tuple(taints.values()), capacity, tuple(problems))


def _limited(entries: Iterable[Any], kind: str, problems: list[str]) -> list[Any]:
    listed = list(entries)
    if len(listed) > MOST:
        problems.append(f"more than {MOST} {kind}")
    return listed[:MOST]


def _add_problem(problems: list[str], kind: str, name: str, reason: str) -> bool:
    if reason:
        problems.append(f"{kind} {name[:100]!r}: {reason}")
    return bool(reason)


def _is_key(text: str) -> bool:
    domain, slash, name = text.rpartition("/")
    if slash and (len(domain) > 253 or not _DOMAIN.fullmatch(domain)):
        return False
    return _PART.fullmatch(name) is not None


def _is_in_domain(domain: str, domains: Iterable[str]) -> bool:
    return any(domain == parent or domain.endswith("." + parent) for parent in domains)


def _reserved(key: str) -> str:
    domain = key.rpartition("/")[0]
    if key == names.POOL_TAINT or _is_in_domain(domain, _OURS):
        return "podbridge's own"
    if key in _SITES_OWN or _is_in_domain(domain, _SITES_DOMAINS):
        return ""
    return "Kubernetes' own" if _is_in_domain(domain, _KUBERNETES) else ""


def _label(key: str, value: str) -> str:
    if not _is_key(key):
        return "not a valid label name"
    if value and not _PART.fullmatch(value):
        return f"{value[:100]!r} is not a valid label value"
    return _reserved(key)


def _taint(text: str) -> Taint | str:
    """Parse ``key=value:Effect`` or ``key:Effect``; return the reason if it is invalid."""
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if effect not in EFFECTS:
        return f"must be key=value:Effect with one of the effects {', '.join(EFFECTS)}"
    if not _is_key(key) or (value and not _PART.fullmatch(value)):
        return "not a valid taint key and value"
    # the node controller adds and removes taints in Kubernetes' domains according to the node's state
    if _is_in_domain(key.rpartition("/")[0], _KUBERNETES):
        return "Kubernetes' own"
    return _reserved(key) or {"key": key, "value": value, "effect": effect}


def _resource(name: str, text: str) -> str:
    domain, slash, _ = name.rpartition("/")
    if not (name in _STANDARD or (slash and _is_key(name) and not _is_in_domain(domain, _KUBERNETES))):
        return f"must be one of {', '.join(sorted(_STANDARD))}, or an extended resource such as example.com/device"
    try:
        value = quantity.parse(text)
    except ValueError as error:
        return str(error)[:200]
    if value < 0 or value >= 2**63:
        return f"{text[:100]!r} is out of range"
    if name != "cpu" and value != value.to_integral_value():
        return f"{text[:100]!r} is not a whole number"
    if name == "cpu" and value * 1000 != (value * 1000).to_integral_value():
        return f"{text[:100]!r} is not a multiple of 1m"
    return ""


def claimable(valid: ValidAnnouncement, node: Mapping[str, Any]) -> ValidAnnouncement:
    """Omit labels and taints that the node has and that the site has not announced before: others have set them."""
    site_keys, node_labels = recorded(node), node["metadata"].get("labels") or {}
    node_taints = (node.get("spec") or {}).get("taints") or ()
    if site_keys is None:  # equal values may be the site's own
        site_keys = (
            {key for key, value in valid.labels.items() if node_labels.get(key) == value},
            {_name(taint) for taint in node_taints if _value(taint) in map(_value, valid.taints)},
        )
    labels_of_others = node_labels.keys() - site_keys[0]
    taints_of_others = {_name(taint) for taint in node_taints} - site_keys[1]
    problems = list(valid.problems)

    def is_claimable(kind: str, name: str, foreign_keys: Set[str]) -> bool:
        return not _add_problem(problems, kind, name, IN_USE if name in foreign_keys else "")

    labels = {key: value for key, value in valid.labels.items() if is_claimable("label", key, labels_of_others)}
    taints = [taint for taint in valid.taints if is_claimable("taint", _name(taint), taints_of_others)]
    return replace(valid, labels=labels, taints=tuple(taints), problems=tuple(problems))


def _name(taint: Mapping[str, Any]) -> str:
    return f"{taint.get('key')}:{taint.get('effect')}"


def _value(taint: Mapping[str, Any]) -> tuple[str, str]:
    return _name(taint), taint.get("value") or ""


def recorded(node: Mapping[str, Any]) -> tuple[set[str], set[str]] | None:
    """Return the label keys, and the taints as ``key:Effect``, that the node records as those of its site.

    ``None``: there is no readable record.
    """
    text = (node["metadata"].get("annotations") or {}).get(names.SITE_ANNOUNCED)
    try:
        data = json.loads(text) if text else None
        return (set(data.get("labels") or ()), set(data.get("taints") or ())) if data is not None else None
    except (ValueError, TypeError, AttributeError):
        return None


def as_json(valid: ValidAnnouncement) -> dict[str, Any]:
    """Return the labels and taints of a site as JSON, from which values that it withdraws later are found."""
    return {"labels": sorted(valid.labels), "taints": sorted(map(_name, valid.taints))}
