"""Reads generic resources as Slurm writes them: ``gpu``, ``gpu:a100:2(IDX:0-1)``, ``gres/gpu=2``. Pure.

Sources: ``_get_gres_cnt`` of Slurm's ``gres.c`` for requests (a count has a factor of 1,024 for K, M, G, T or P), and
the answers of slurmctld 22.05, 24.11 and 26.05. A type may begin with a digit (``gpu:2080ti:1``, ``gpu:1g.10gb:2``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {unit: 1024 ** (power + 1) for power, unit in enumerate("kmgtp")}
_COUNT = r"[0-9]{1,20}[kmgtpKMGTP]?"
_MOST = 2**64 - 1
KIND = r"[A-Za-z][\w.-]*(?::\w[\w.-]*)?"
"""Pattern of ``name[:type]``."""
_GRES = re.compile(rf"(?:gres[/:])?([A-Za-z][\w.-]*)(?::(?!{_COUNT}\Z)(\w[\w.-]*?))?(?:[:=]({_COUNT}))?", re.ASCII)
_IN_PARENTHESES = re.compile(r"\((?:CNT:([^()]*)|[^()]*)\)")
_NOT_CONSUMED = ":no_consume"


@dataclass(frozen=True, slots=True)
class Gres:
    """A generic resource: its name, its type (empty: any), and its count."""

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        """Return ``name[:type]:count``."""
        return f"{self.kind}:{self.count}"

    @property
    def kind(self) -> str:
        """``name``, or ``name:type``."""
        return f"{self.name}:{self.type}" if self.type else self.name


def read(text: str) -> Gres:
    """Read ``name[:type][:count]``, with or without ``gres/`` or ``gres:`` before it; raises ``ValueError``.

    A number after the name is a count, as in Slurm: a type of digits only needs a count after it.
    """
    match = _GRES.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not name[:type][:count]")
    name, kind, count = match.groups()
    if count is None:
        return Gres(name, kind or "", 1)
    number = int(count.rstrip("kmgtpKMGTP")) * _UNITS.get(count[-1].lower(), 1)
    if number > _MOST:
        raise ValueError(f"{text[:80]!r} has a count above {_MOST}")
    return Gres(name, kind or "", number)


def listed(text: str) -> list[str]:
    """Return the parts of a list that Slurm prints, in the form of :func:`read`.

    Slurm adds the devices, the sockets or the count in parentheses: ``gpu:2(IDX:0,3)``, ``gpu:2(S:0-1)``,
    ``mps(CNT:50)``; and ``no_consume`` to a resource of a node that jobs do not use up. Devices in use without a type
    have the type ``(null)``.
    """
    if not text:
        return []
    bare = _IN_PARENTHESES.sub(lambda match: f":{match[1]}" if match[1] else "", text.replace(":(null)", ""))
    return [part for word in bare.split(",") if (part := word.strip().replace(_NOT_CONSUMED, ""))]


def counts(text: str) -> dict[str, int]:
    """Return the counts of a list by ``name`` or ``name:type``; empty if a part cannot be read."""
    result: dict[str, int] = {}
    try:
        for gres in map(read, listed(text)):
            result[gres.kind] = result.get(gres.kind, 0) + gres.count
    except ValueError:
        return {}
    return result
