"""The numbers of the first page: pods by state and by reason, and the nodes that it shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bridge.apps.view.node_view import NODE_STATES, NodeUse
from bridge.apps.view.pod_view import STATES, WAITING, PodView

MOST_NODES = 50
"""Nodes on the overview, and pools."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why pods wait: the reason of their condition, their number, and the message of the pod that waits longest."""

    name: str
    count: int
    message: str
    oldest: PodView


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the overview. ``total`` counts all, ``states`` those of each of :data:`NODE_STATES`."""

    shown: list[NodeUse]
    total: int
    states: dict[str, int]


def counts(rows: Iterable[PodView]) -> dict[str, int]:
    """Return the number of pods in each of :data:`~bridge.apps.view.pod_view.STATES`."""
    numbers = dict.fromkeys(STATES, 0)
    for row in rows:
        numbers[row.state] += 1
    return numbers


def reasons(rows: Iterable[PodView]) -> list[Reason]:
    """Return why pods wait, the most frequent reason first."""
    groups: dict[str, list[PodView]] = {}
    for row in rows:
        if row.state == WAITING:
            groups.setdefault(row.reason, []).append(row)
    result = []
    for name, members in groups.items():
        oldest = min(members, key=lambda row: (row.times.created, row.namespace, row.name))
        result.append(Reason(name, len(members), oldest.message, oldest))
    return sorted(result, key=lambda reason: (-reason.count, reason.name))


def foremost(uses: Sequence[NodeUse]) -> Nodes:
    """Return the nodes of the overview: those with a problem, then the busiest of the others, each sorted by name."""
    numbers = dict.fromkeys(NODE_STATES, 0)
    for use in uses:
        numbers[use.state] += 1
    good = {use.name: not (use.problem or use.slurm) for use in uses}
    chosen = sorted(uses, key=lambda use: (good[use.name], -use.share, use.name))[:MOST_NODES]
    return Nodes(sorted(chosen, key=lambda use: (good[use.name], use.name)), len(uses), numbers)
