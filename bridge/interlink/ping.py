"""The resources and taints of a pool in the form of interLink's ping, in both directions."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from bridge.interlink.messages import Accelerator, PingResources, PingResponse, PingTaint
from bridge.workload import quantity

_PLAIN = ("cpu", "memory", "pods")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MOST_ENTRIES = 1000
"""Accelerators and taints that are read, each; a virtual node has at most 100."""
_MOST = 2**63 - 1
"""The largest Kubernetes quantity."""


def ping_response(capacity: Mapping[str, str], taints: Iterable[str] | None) -> PingResponse:
    """Return the answer of a plugin with these resources (Kubernetes quantities) and taints (``key=value:Effect``).

    ``taints`` ``None``: the taints of the virtual node do not change. An accelerator is a whole number on the wire; a
    resource that is not is left out.
    """
    others = {name: _count(value) for name, value in sorted(capacity.items()) if name not in _PLAIN}
    return PingResponse(
        resources=PingResources(
            cpu=capacity.get("cpu"),
            memory=capacity.get("memory"),
            pods=None if _count(capacity.get("pods")) is None else str(_count(capacity.get("pods"))),
            accelerators=[
                Accelerator(resource_type=name, available=str(count))
                for name, count in others.items()
                if count is not None
            ],
        ),
        taints=None if taints is None else [_taint(text) for text in taints],
    )


def capacity(answer: PingResponse) -> dict[str, str]:
    """Return the resources of an answer as Kubernetes quantities. Invalid, negative and huge values are left out."""
    resources = answer.resources or PingResources()
    stated = {"cpu": resources.cpu, "memory": resources.memory, "pods": resources.pods}
    quantities = {name: value for name, value in stated.items() if value and _quantity(value) is not None}
    for entry in resources.accelerators:
        if entry.resource_type and _count(str(entry.available)) is not None:
            quantities[entry.resource_type] = str(_count(str(entry.available)))
    return quantities


def taints(answer: PingResponse) -> list[str] | None:
    """Return the taints of an answer as ``key=value:Effect``; ``None`` if it has none to set.

    As in interLink's virtual kubelet, an unknown effect counts as NoSchedule, and a taint without a key is left out.
    """
    if answer.taints is None:
        return None
    return [
        f"{taint.key}={taint.value or ''}:{taint.effect if taint.effect in _EFFECTS else _EFFECTS[0]}"
        for taint in answer.taints
        if taint.key
    ]


def response(content: Mapping[str, Any]) -> tuple[PingResponse, str]:
    """Return an answer without its invalid values, and the first of them in words; an empty text: there is none.

    The rest of a list of more than :data:`MOST_ENTRIES` is cut off.
    """
    content = _shortened(content)
    if isinstance(found := content.get("resources"), dict):
        content["resources"] = _shortened(found)
    try:
        return PingResponse.model_validate(content), ""
    except ValidationError as error:
        first = error.errors()[0]
        text = f"{'.'.join(str(step) for step in first['loc'])}: {first['msg']}"[:200]
        return PingResponse.model_validate(_valid(content, error)), text


def _shortened(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value[:MOST_ENTRIES] if isinstance(value, list) else value for key, value in content.items()}


def total(capacities: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the sum of resources, as plain numbers."""
    sums: dict[str, Decimal] = {}
    for resources in capacities:
        for name, value in resources.items():
            if (number := _quantity(value)) is not None:
                sums[name] = sums.get(name, Decimal(0)) + number
    return {name: f"{value.normalize():f}" for name, value in sums.items()}


def _valid(content: Mapping[str, Any], error: ValidationError) -> Any:
    """Return an answer without the values that the error names; an entry of a list is left out as a whole."""
    valid = copy.deepcopy(content)
    entries = {_up_to_index(problem["loc"]) for problem in error.errors()}
    for *parents, last in sorted(entries, reverse=True):  # from the end of a list: the indexes before it stay
        part: Any = valid
        for step in parents:
            part = part[step]
        del part[last]
    return valid


def _up_to_index(loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    index = next((position for position, step in enumerate(loc) if isinstance(step, int)), len(loc))
    return loc[: index + 1]


def _taint(text: str) -> PingTaint:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    return PingTaint(key=key, value=value, effect=effect)


def _quantity(text: str) -> Decimal | None:
    try:
        number = quantity.parse(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MOST else None


def _count(text: str | None) -> int | None:
    """Return a quantity as a whole number, rounded down; ``None`` if it is none, negative or huge."""
    number = None if text is None else _quantity(text)
    return None if number is None else int(number)
