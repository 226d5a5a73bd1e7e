"""The nodes that the first page shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.apps.view.node_view import NODE_STATES, NodeUse

MOST_NODES = 50
"""Nodes on the overview, and pools."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the overview. ``total`` counts all, ``states`` those of each of :data:`NODE_STATES`."""

    shown: list[NodeUse]
    total: int
    states: dict[str, int]


def foremost(uses: Sequence[NodeUse]) -> Nodes:
    """Return the nodes of the overview: those with a problem, then the busiest of the others, each sorted by name."""
    numbers = dict.fromkeys(NODE_STATES, 0)
    for use in uses:
        numbers[use.state] += 1
    good = {use.name: not (use.problem or use.slurm) for use in uses}
    chosen = sorted(uses, key=lambda use: (good[use.name], -use.share, use.name))[:MOST_NODES]
    return Nodes(sorted(chosen, key=lambda use: (good[use.name], use.name)), len(uses), numbers)
