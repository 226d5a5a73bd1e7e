"""Kubernetes quantities (``500m``, ``1.5Gi``, ``2e3``) as exact decimals.

Every text that the API server accepts is read, with the same value: ``1e0003`` is 1000, and ``Ki`` without digits is 0.
Like there, a value is rounded away from zero to a whole number of billionths, one with a binary suffix is at most
2**63-1, and a decimal exponent is read as an integer of 32 bits. ``tests/contract/kube`` compares both.
"""

from __future__ import annotations

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_UP, Context, Decimal
from functools import lru_cache

_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:([numkKMGTPE]?i?)|[eE]([+-]?)0*([0-9]{1,19}))")
_LARGEST_EXPONENT = 100
LARGEST = Decimal(10) ** _LARGEST_EXPONENT
"""A larger value is read as this one: no machine has it, and integers of any length would cost time."""
_LARGEST_BINARY = Decimal(2**63 - 1)
_PLACES = 9
_BILLIONTH = Decimal(10) ** -_PLACES
_UP = Context(prec=_LARGEST_EXPONENT + 30, rounding=ROUND_UP, Emax=MAX_EMAX, Emin=MIN_EMIN)
MIB = 2**20
_SHORT = 32
"""Length of the longest text whose value is cached."""


def parse(text: str | int | float) -> Decimal:
    """Read a quantity; raises ``ValueError`` if the text is not one."""
    written = str(text).strip()
    try:
        return _cached(written) if len(written) <= _SHORT else _read(written)
    except ValueError:
        shown = repr(text) if len(written) <= 2 * _SHORT else f"{written[: 2 * _SHORT]!r}..."
        raise ValueError(f"{shown} is not a quantity such as 2, 500m or 4Gi") from None


def _read(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None or not text:
        raise ValueError
    sign, whole_part, fraction, suffix, exponent_sign, exponent_text = match.groups()
    fraction = fraction or ""
    bits, exponent = _BINARY.get(suffix, 0), 0
    if not bits:
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else _exponent(suffix, exponent_sign, exponent_text)
    if not (whole_part or fraction):
        # the API server reads a number without digits as 0, but not on its slower path for extreme suffixes
        if exponent < -9 or bits > 40:
            raise ValueError
        return Decimal(0)
    number = Decimal(f"{sign}{whole_part or 0}.{fraction}")
    if bits:
        # before it is rounded: a number of many digits has no billionths in the precision
        value = max(-_LARGEST_BINARY, min(_LARGEST_BINARY, _UP.multiply(number, 2**bits)))
        return _rounded(value) if fraction else value
    magnitude = number.adjusted() + exponent
    if number and magnitude >= _LARGEST_EXPONENT:
        return LARGEST.copy_sign(number)
    if number and magnitude < _BILLIONTH.adjusted():
        return _BILLIONTH.copy_sign(number)
    value = number.scaleb(exponent, _UP) if exponent and number else number
    return value if len(fraction) - exponent <= _PLACES else _rounded(value)


def _exponent(suffix: str | None, sign: str, digits: str) -> int:
    """Return a decimal exponent as an integer of 32 bits, as the API server stores it."""
    if suffix is not None:
        raise ValueError
    exponent = -int(digits) if sign == "-" else int(digits)
    if not -(2**63) <= exponent < 2**63:
        raise ValueError
    return (exponent + 2**31) % 2**32 - 2**31


def _rounded(value: Decimal) -> Decimal:
    rounded = value.quantize(_BILLIONTH, context=_UP)
    return value if rounded == value else rounded


_cached = lru_cache(maxsize=8192)(_read)  # thousands of nodes and pods have the same few texts; errors are not cached


def whole(value: Decimal) -> int:
    """Return the value rounded up to a whole number: Slurm allocates whole CPUs."""
    return math.ceil(value)


def mebibytes(value: Decimal) -> int:
    """Return bytes in MiB, rounded up: the job must have at least the memory that the pod requests."""
    return math.ceil(value / MIB)
