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
        if not _is_equal(before.get(key), after.get(key)):
            result[key] = after.get(key)
    for key in _LISTS:
        if not _is_equal(before.get(key), after.get(key)):
            # a strategic patch merges these lists by IP: a former address would stay
            result[key] = [*(after.get(key) or ()), {"$patch": "replace"}]
    conditions = _changed_conditions(before.get("conditions") or (), after.get("conditions") or ())
    if conditions:
        result["conditions"] = conditions
    return result


def _changed_conditions(before: Iterable[Mapping[str, Any]], after: Iterable[Status]) -> list[Status]:
    conditions_by_type = {entry.get("type"): entry for entry in before}
    changed = []
    for entry in after:
        old = conditions_by_type.get(entry["type"], {})
        fields = ("status", "reason", "message", "lastTransitionTime")
        if any((old.get(key) or None) != (entry.get(key) or None) for key in fields):
            # a merge keeps fields that the patch does not have
            changed.append({**entry, **{key: None for key in fields if old.get(key) and not entry.get(key)}})
    return changed


def _is_equal(first: Any, second: Any) -> bool:
    """Whether two values are equal in the API server, which stores no empty values."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return all(_is_equal(first.get(key), second.get(key)) for key in first.keys() | second.keys())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    return bool(first == second or not (first or second))
