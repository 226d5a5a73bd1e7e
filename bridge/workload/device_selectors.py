"""The CEL expressions of DeviceClass selectors, in the subset that drivers use. Pure.

The subset is a conjunction (``&&``) of comparisons of a device's driver or of one of its attributes with a literal::

    device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"

podbridge has no CEL engine: an expression outside the subset is refused, because a wrong result would select a wrong
device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

Value = str | int | bool
Attributes = Mapping[str, Value]
"""Attributes of a device by their full name, ``domain/name``."""
Selector = Callable[[str, Attributes], bool]
LONGEST = 10 * 1024
"""Length of an expression that the API server allows."""

_STRING = r"\"[^\"\\]*\"|'[^'\\]*'"
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_TERM = re.compile(
    rf"\s*device\.(?:(driver)|attributes\[\s*({_STRING})\s*\](?:\.({_NAME})|\[\s*({_STRING})\s*\]))"
    rf"\s*(==|!=)\s*({_STRING}|-?\d{{1,18}}|true|false)\s*"
)


class UnsupportedSelectorError(ValueError):
    """An expression outside the subset."""


@lru_cache(maxsize=256)
def parse(expression: str) -> Selector:
    """Return the function that decides whether a device matches; it takes the driver and the attributes.

    A device without the named attribute does not match. Raises :class:`UnsupportedSelectorError`.
    """
    terms, position, text = [], 0, expression
    if len(text) > LONGEST:
        raise UnsupportedSelectorError(f"CEL expression of more than {LONGEST} characters")
    while True:
        match = _TERM.match(text, position)
        if match is None:
            raise UnsupportedSelectorError(
                f"CEL expression {text[:200]!r} is not supported at character {position}; allowed: comparisons "
                f'(==, !=) of device.driver or device.attributes["domain"].name with a literal, joined by &&'
            )
        terms.append(_term(match))
        position = match.end()
        if position == len(text):
            break
        if not text.startswith("&&", position):
            raise UnsupportedSelectorError(
                f"CEL expression {text[:200]!r} is not supported at character {position}; allowed: && between "
                f"comparisons"
            )
        position += 2
    return lambda driver, attributes: all(term(driver, attributes) for term in terms)


def attributes(driver: str, device: Mapping[str, Any]) -> dict[str, Value]:
    """Return the attributes of a device in a ResourceSlice; a name without a domain is in the domain of the driver."""
    found: dict[str, Value] = {}
    for name, value in (device.get("attributes") or {}).items():
        for kind in ("string", "int", "bool", "version"):
            if kind in (value or {}):
                found[name if "/" in name else f"{driver}/{name}"] = value[kind]
    return found


def _term(match: re.Match[str]) -> Selector:
    is_driver, domain, name, quoted, operator, literal = match.groups()
    wanted, equal = _literal(literal), operator == "=="
    if is_driver:
        return lambda driver, _: (driver == wanted) is equal
    key = f"{domain[1:-1]}/{name or quoted[1:-1]}"

    def attribute(_: str, values: Attributes) -> bool:
        value = values.get(key)
        # CEL reports an error for a comparison of different types; such a device does not match
        return value is not None and type(value) is type(wanted) and (value == wanted) is equal

    return attribute


def _literal(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if text[0] in "\"'" else int(text)
