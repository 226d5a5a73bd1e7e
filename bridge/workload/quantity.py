"""Kubernetes quantities (``500m``, ``1.5Gi``, ``2e3``) as exact decimals."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i)|[eE]([+-]?[0-9]{1,3})|([numkMGTPE]?))")
MIB = 2**20
_SHORT = 32
"""Length of the longest text whose value is cached."""


def parse(text: str | int | float) -> Decimal:
    """Read a quantity; raises ``ValueError`` if the text is not one."""
    written = str(text).strip()
    try:
        return _cached(written) if len(written) <= _SHORT else _read(written)
    except ValueError:
        raise ValueError(f"{text!r} is not a quantity such as 2, 500m or 4Gi") from None


def _read(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError
    number, binary, exponent, suffix = match.groups()
    value = Decimal(number)
    if binary:
        return value * _BINARY[binary]
    return value.scaleb(int(exponent) if exponent else _DECIMAL[suffix or ""])


_cached = lru_cache(maxsize=8192)(_read)  # thousands of nodes and pods have the same few texts; errors are not cached


def whole(value: Decimal) -> int:
    """Return the value rounded up to a whole number: Slurm allocates whole CPUs."""
    return math.ceil(value)


def mebibytes(value: Decimal) -> int:
    """Return bytes in MiB, rounded up: the job must have at least the memory that the pod requests."""
    return math.ceil(value / MIB)
