"""The difference of two statuses of a pod as a strategic merge patch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Status = dict[str, Any]

_WHOLE = ("phase", "startTime", "hostIP", "podIP", "reason", "message", "containerStatuses", "initContainerStatuses")
_LISTS = ("hostIPs", "podIPs")


def patch(before: Mapping[str, Any], after: Status) -> Status:
    """Return the ``status`` of a strategic merge patch from one status to the other; empty if they are equal."""
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
            # a merge keeps fields that the patch does not have
            changed.append({**entry, **{key: None for key in fields if old.get(key) and not entry.get(key)}})
    return changed


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal in the API server, which stores no empty values."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_same(one.get(key), other.get(key)) for key in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or not (one or other))
