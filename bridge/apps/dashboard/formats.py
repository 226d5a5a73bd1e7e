"""Times and amounts as short texts. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def duration(seconds: float) -> str:
    """Return a duration as kubectl prints it: ``5s``, ``12m``, ``3h``, ``2d``."""
    whole = max(0, int(seconds))
    for size, unit in _UNITS:
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def moment(at: float) -> str:
    """Return a time as ``2026-11-23 20:38:04`` in UTC."""
    return _utc(at).strftime("%Y-%m-%d %H:%M:%S")


def machine(at: float) -> str:
    """Return a time for the attribute ``datetime``."""
    return _utc(at).strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(name: str, value: float) -> str:
    """Return an amount of a resource: memory in GiB or TiB, others as numbers with at most one decimal."""
    if name != "memory":
        return f"{value:,.1f}".removesuffix(".0")
    gib = value / 2**30
    return f"{gib / 1024:,.1f} TiB" if gib >= 10 * 1024 else f"{gib:,.1f}".removesuffix(".0") + " GiB"


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(min(max(at, 0.0), 253402300799.0), UTC)
