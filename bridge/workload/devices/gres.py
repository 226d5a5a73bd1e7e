"""Generic resources in the format of Slurm (``gpu:a100:2``), and their comparison with a pod's requests. Pure.

Observed with slurmctld 22.05 and 26.05: of ``gpu:3,gpu:1`` the last one counts; the same name with and without a type
is refused; a type that begins with a digit needs a count after it in 22.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bridge import gres_text
from bridge.gres_text import Gres
from bridge.workload import quantity, resources
from bridge.workload.resources import Resources

LONGEST = 1024


def parse(text: str) -> tuple[Gres, ...]:
    """Read a comma list of ``name[:type][:count]``; raises ``ValueError``, also if Slurm would ignore a part of it."""
    if len(text) > LONGEST:
        raise ValueError
    return of_parts(text.split(","))


def of_parts(parts: Iterable[str]) -> tuple[Gres, ...]:
    """Read generic resources one by one; raises ``ValueError`` like :func:`parse`, but for any length."""
    parsed = tuple(gres_text.read(part.strip()) for part in parts)
    types_by_name: dict[str, set[str]] = {}
    for gres in parsed:
        types = types_by_name.setdefault(gres.name, set())
        if gres.type in types or (types and not gres.type) or "" in types:
            raise ValueError
        types.add(gres.type)
    return parsed


def times(text: str, count: int) -> str:
    """Return the gres of ``count`` pods on one node; raises ``ValueError`` as :func:`parse`."""
    return ",".join(str(Gres(gres.name, gres.type, gres.count * count)) for gres in parse(text))


def of_requests(requests: Resources, table: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Return the counts of a pod's extended resources by name and type of gres; ``table`` maps resources to gres."""
    counted: dict[tuple[str, str], int] = {}
    for resource in resources.extended(requests):
        if resource in table:
            name, _, kind = table[resource].partition(":")
            counted[name, kind] = counted.get((name, kind), 0) + quantity.whole(requests[resource])
    return counted


def missing(annotated: Iterable[Gres], requested: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Return the ``requested`` counts whose gres is ``annotated`` with a lower count or with other types."""
    have: dict[tuple[str, str], int] = {}
    for gres in annotated:
        have[gres.name, gres.type] = gres.count
    short = {}
    for (name, kind), count in requested.items():
        if not any(other == name for other, _ in have):
            continue  # not in the annotation: the pod's own requests go to Slurm
        typed = have.get((name, kind), 0) if kind else count
        total = sum(number for (other, _), number in have.items() if other == name)
        if typed < count or total < sum(number for (other, _), number in requested.items() if other == name):
            short[name, kind] = count
    return short


def beyond(gres_of_pod: Iterable[Gres], most: Mapping[str, int], pods: int = 1) -> dict[str, int]:
    """Return the counts of ``pods`` pods on a node that exceed ``most``, by ``name`` or ``name:type``.

    A gres counts for its name and for its type. One that ``most`` does not name is not allowed.
    """
    counts: dict[str, int] = {}
    for gres in gres_of_pod:
        limited = [key for key in dict.fromkeys((gres.name, gres.kind)) if key in most]
        for key in limited or [gres.kind]:
            counts[key] = counts.get(key, 0) + gres.count * pods
    return {key: count for key, count in sorted(counts.items()) if count > most.get(key, 0)}


def limits_text(most: Mapping[str, int]) -> str:
    """Return the limits as a text: ``fpga:1, gpu:4``, or ``none``."""
    return ", ".join(f"{name}:{limit}" for name, limit in sorted(most.items())) or "none"
