"""The CPU cores and gres indices of a job on each of its nodes, read from ``GET resources/{job}`` (v0.0.44 and later).

Observed with slurmrestd 26.05.5, for v0.0.44 and v0.0.45::

    {"node": "node-0", "sockets_per_node": 128, "cores_per_socket": 1, "core_bitmap": "0x...F0",
     "gres": [{"name": "gpu", "type": "", "count": 3, "index": "2-4"}]}

The lowest bit of ``core_bitmap`` is core 0 of socket 0; ``scontrol show job -d`` shows the same cores as ``CPU_IDs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_BITMAP = re.compile(r"(?:0x)?([0-9a-fA-F]{1,65536})")
MOST_INDICES = 65536


@dataclass(frozen=True, slots=True)
class GresIndices:
    """The allocated devices of one gres on one node: its type (empty: none) and the numbers of the devices."""

    name: str
    type: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources of a job on one node. A core is a pair of the number of its socket and its number in the socket."""

    sockets: int
    cores_per_socket: int
    cores: tuple[tuple[int, int], ...]
    gres: tuple[GresIndices, ...]


def read(entry: Mapping[str, object]) -> NodeResources:
    """Read the entry of one node; raises ``ValueError`` or ``TypeError`` if a number cannot be read."""
    sockets, per_socket = count(entry.get("sockets_per_node")), count(entry.get("cores_per_socket"))
    numbers = bits(str(entry.get("core_bitmap") or "0"))
    if numbers and not (per_socket and numbers[-1] < sockets * per_socket):
        raise ValueError(f"core {numbers[-1]} is not one of {sockets} sockets of {per_socket} cores")
    gres_entries = entry.get("gres") or ()
    if not isinstance(gres_entries, list | tuple):
        raise TypeError("gres is not a list")
    return NodeResources(
        sockets,
        per_socket,
        tuple(divmod(number, per_socket) for number in numbers),
        tuple(
            GresIndices(str(item.get("name") or ""), str(item.get("type") or ""), indices(str(item.get("index") or "")))
            for item in gres_entries
            if isinstance(item, dict)
        ),
    )


def bits(text: str) -> tuple[int, ...]:
    """Return the numbers of the set bits of a hexadecimal mask, ascending; raises ``ValueError``."""
    match = _BITMAP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a hexadecimal mask")
    binary = f"{int(match[1], 16):b}"[::-1]
    return tuple(number for number, bit in enumerate(binary) if bit == "1")


def indices(text: str) -> tuple[int, ...]:
    """Return the numbers in Slurm's notation (``0-2,5``), ascending; empty for ``N/A``. Raises ``ValueError``."""
    if text.strip() in ("", "N/A", "(null)"):
        return ()
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text[:80]!r} is not a list of numbers")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if not first <= last < MOST_INDICES:
            raise ValueError(f"{text[:80]!r}: a range of more than {MOST_INDICES} numbers, or descending")
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def count(value: object) -> int:
    """Read a count, in the format of any version; raises ``ValueError``."""
    if isinstance(value, dict):
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value
