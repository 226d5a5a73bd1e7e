"""The selectors of DeviceClasses, and the values of a device in a ResourceSlice that they compare. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

from bridge.workload import quantity
from bridge.workload.devices import cel
from bridge.workload.devices.cel_values import Described, Semver, Value

Selector = Callable[[Described], bool]


@lru_cache(maxsize=256)
def parse(expression: str) -> Selector:
    """Return the function that decides whether a device matches; raises ``cel.UnsupportedExpressionError``."""
    return cel.parse(expression)


def attributes(driver: str, device: Mapping[str, Any]) -> dict[str, Value]:
    """Return the attributes of a device in a ResourceSlice; a name without a domain is in the domain of the driver.

    A version that is none is left out.
    """
    values: dict[str, Value] = {}
    for name, value in (device.get("attributes") or {}).items():
        key = _full(driver, name)
        for kind in ("string", "int", "bool"):
            if kind in (value or {}):
                values[key] = value[kind]
        if "version" in (value or {}):
            try:
                values[key] = Semver.parse(str(value["version"]))
            except ValueError:
                continue
    return values


def capacity(driver: str, device: Mapping[str, Any]) -> dict[str, Decimal]:
    """Return the capacities of a device in a ResourceSlice, by their full names; one that is none is left out."""
    amounts = {}
    for name, value in (device.get("capacity") or {}).items():
        try:
            amounts[_full(driver, name)] = quantity.parse((value or {}).get("value") or "")
        except ValueError:
            continue
    return amounts


def _full(driver: str, name: str) -> str:
    return name if "/" in name else f"{driver}/{name}"
