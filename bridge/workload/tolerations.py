"""Tolerations and taints, and the comparison of numbers in them and in selectors, by the rules of Kubernetes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Covers = Callable[[Mapping[str, Any]], bool]
"""Whether a pod tolerates a taint."""
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_CANONICAL = re.compile(r"0|-?[1-9][0-9]*")
"""A number that a toleration compares: without a plus sign or leading zeros."""


def tolerates_forever(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether a pod with these tolerations stays on a node with the taint.

    Kubernetes takes the first toleration that covers the taint, and evicts the pod after its ``tolerationSeconds``.
    """
    first = next((toleration for toleration in tolerations if tolerates([toleration], taint)), None)
    return first is not None and first.get("tolerationSeconds") is None


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether one of the tolerations covers the taint, by the rules of the Kubernetes API."""
    for toleration in tolerations:
        if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
            continue
        key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
        if not key:
            if operator == "Exists":
                return True
            continue
        if key == taint.get("key") and _covers(operator, toleration.get("value") or "", taint.get("value") or ""):
            return True
    return False


def remembered(tolerations: Iterable[Mapping[str, Any]]) -> Covers:
    """Return :func:`tolerates` of these tolerations, which compares each taint once: many nodes have the same ones."""
    known: dict[tuple[object, ...], bool] = {}

    def covers(taint: Mapping[str, Any]) -> bool:
        key = taint.get("key"), taint.get("value"), taint.get("effect")
        if key not in known:
            known[key] = tolerates(tolerations, taint)
        return known[key]

    return covers


def _covers(operator: str, value: str, of_taint: str) -> bool:
    if operator == "Exists":
        return True
    if operator in ("Gt", "Lt"):
        are_numbers = _CANONICAL.fullmatch(value) and _CANONICAL.fullmatch(of_taint)
        return bool(are_numbers) and exceeds(operator, of_taint, value)
    return operator == "Equal" and value == of_taint


def integer(text: str) -> int:
    """Return a number of 64 bits, by the rules of Go's ``strconv.ParseInt``; raises ``ValueError``."""
    match = _INTEGER.fullmatch(text)
    value = int(match[1] + match[2]) if match is not None else None
    if value is None or not -(2**63) <= value < 2**63:
        raise ValueError(f"{text[:80]!r} is not a number of 64 bits")
    return value


def exceeds(operator: str, value: str, bound: str) -> bool:
    """Whether ``value`` is greater (``Gt``) or less (``Lt``) than ``bound``; false if one of them is not a number."""
    try:
        left, right = integer(value), integer(bound)
    except ValueError:
        return False
    return left > right if operator == "Gt" else left < right
