"""From one status of a pod to another: a strategic merge patch that names what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Status = dict[str, Any]

_WHOLE = ("phase", "startTime", "hostIP", "podIP", "reason", "message", "containerStatuses", "initContainerStatuses")
_LISTS = ("hostIPs", "podIPs")


def patch(before: Mapping[str, Any], after: Status) -> Status:
    """Build what a strategic merge patch must say under ``status`` to come from one to the other; empty: nothing."""
    result: Status = {}
    for key in _WHOLE:
        if not _same(before.get(key), after.get(key)):
            result[key] = after.get(key)
    for key in _LISTS:
        if not _same(before.get(key), after.get(key)):
            result[key] = [*(after.get(key) or ()), {"$patch": "replace"}]
    conditions = _changed_conditions(before.get("conditions") or (), after.get("conditions") or ())
    if conditions:
        result["conditions"] = conditions
    return result


def _changed_conditions(before: Iterable[Mapping[str, Any]], after: Iterable[Status]) -> list[Status]:
    known = {entry.get("type"): entry for entry in before}
    changed = []
    for entry in after:
        old = known.get(entry["type"], {})
        fields = ("status", "reason", "message", "lastTransitionTime")
        if any((old.get(key) or None) != (entry.get(key) or None) for key in fields):
            # the merge keeps what a patch does not name
            changed.append({**entry, **{key: None for key in fields if old.get(key) and not entry.get(key)}})
    return changed


def _same(one: Any, other: Any) -> bool:
    """Compare as the API server stores: what is empty may as well be missing."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or not (one or other))
