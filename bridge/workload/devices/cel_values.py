"""Values of CEL, of devices in ResourceSlices and semantic versions (https://semver.org) too; for ``cel.py``. Pure.

Also the functions of values that selectors of devices may use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import total_ordering
from typing import Any, Protocol

from bridge.workload import quantity

_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_PART = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A version. Its build metadata is left out: they do not count in comparisons."""

    core: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Read a version; raises ``ValueError``."""
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:80]!r} is not a semantic version such as 1.2.3")
        major, minor, patch, pre = match.groups()
        return cls((int(major), int(minor), int(patch)), tuple(pre.split(".")) if pre else ())

    def __lt__(self, other: Semver) -> bool:
        """Whether this version precedes ``other``; a version precedes its release while it has a pre-release part."""
        if self.core != other.core:
            return self.core < other.core
        if not self.pre or not other.pre:
            return bool(self.pre) and not other.pre
        return [_rank(part) for part in self.pre] < [_rank(part) for part in other.pre]


def _rank(part: str) -> tuple[int, int, str]:
    """Return the order of an identifier: numbers first, by value, then texts."""
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


Value = str | int | bool | Semver
"""The value of an attribute."""


class Described(Protocol):
    """A device. The names of attributes and capacities are full, ``domain/name``."""

    @property
    def driver(self) -> str:
        """Name of the driver."""

    @property
    def attributes(self) -> Mapping[str, Value]:
        """Values by name."""

    @property
    def capacity(self) -> Mapping[str, Decimal]:
        """Quantities by name."""


class EvaluationError(Exception):
    """An error of CEL for one device."""


class AbortedError(Exception):
    """An error that ends the evaluation, whatever the other side of ``&&`` and ``||`` is."""


Selector = Callable[[Described], bool]
"""Whether a device matches an expression."""
Term = Callable[[Described], Any]
"""A part of an expression: returns its value for a device, or raises :class:`EvaluationError`."""


def join(terms: Sequence[Term], device: Described, decides: bool) -> bool:
    """Return ``decides`` if a term is, its opposite if no term is; an error counts only if no term decides."""
    failed = False
    for term in terms:
        try:
            if boolean(term(device)) is decides:
                return decides
        except EvaluationError:
            failed = True
    if failed:
        raise EvaluationError
    return not decides


def call(function: Callable[[Any, Any], Any], subject: Term, argument: Term) -> Term:
    """Return the term that calls a method of ``subject``."""
    return lambda device: function(subject(device), argument(device))


def equal(left: Any, right: Any) -> bool:
    """Whether two values are equal. Values of different types are not, but a version or a quantity on the left
    compares only with its own type.
    """
    if isinstance(left, Semver | Decimal) and type(left) is not type(right):
        raise EvaluationError
    return not unequal(left, right)


def member(value: Any, listed: Sequence[Value]) -> bool:
    """Whether a list of constants contains a value. cel-go looks them up by hash, and a version has none."""
    if isinstance(value, Semver):
        raise AbortedError
    return not all(unequal(value, element) for element in listed)


def unequal(left: Any, right: Any) -> bool:
    """Whether two values are unequal, of whatever types."""
    return type(left) is not type(right) or left != right


def ordered(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two values that ``<`` compares: numbers, strings or booleans. Others have ``compareTo``."""
    if type(left) is not type(right) or not isinstance(left, str | int):
        raise EvaluationError
    return left, right


def _compared(left: Any, right: Any) -> int:
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return (left > right) - (left < right)
    if isinstance(left, Semver) and isinstance(right, Semver):
        return (left > right) - (left < right)
    raise EvaluationError


def boolean(value: Any) -> bool:
    """Return a value that must be true or false."""
    if not isinstance(value, bool):
        raise EvaluationError
    return value


def as_text(value: Any) -> str:
    """Return a value that must be a string."""
    if not isinstance(value, str):
        raise EvaluationError
    return value


def _ascii(value: Any, change: Callable[[str], str]) -> str:
    return "".join(change(char) if char.isascii() else char for char in as_text(value))


METHODS: Mapping[str, Callable[[Any, Any], Any]] = {
    "compareTo": _compared,
    "isGreaterThan": lambda a, b: _compared(a, b) > 0,
    "isLessThan": lambda a, b: _compared(a, b) < 0,
    "startsWith": lambda a, b: as_text(a).startswith(as_text(b)),
    "endsWith": lambda a, b: as_text(a).endswith(as_text(b)),
    "contains": lambda a, b: as_text(b) in as_text(a),
    "matches": lambda a, b: b.search(as_text(a)) is not None,
    "lowerAscii": lambda a, _: _ascii(a, str.lower),
    "upperAscii": lambda a, _: _ascii(a, str.upper),
}
"""A method's subject and argument -> its value."""
UNARY = ("lowerAscii", "upperAscii")
"""Methods without an argument."""
ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


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
