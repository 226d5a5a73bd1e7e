"""The numbers of the first page: pods by state and by reason, and the use of pools and nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.apps.dashboard.rows import STATES, WAITING, PodRow
from bridge.workload import eligibility, pool_selection, resources

READY, CORDONED, NOT_READY = NODE_STATES = ("ready", "cordoned", "not ready")
MOST_NODES = 50
"""Nodes on the overview, and pools."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why pods wait: the reason of their condition, their number, and the message of the pod that waits longest."""

    name: str
    count: int
    message: str
    oldest: PodRow


@dataclass(frozen=True, slots=True)
class Amount:
    """A resource of a node: what the pods of podbridge's scheduler request there, and what the node offers.

    Memory is in bytes, the others are counts.
    """

    name: str
    used: float
    offered: float

    @property
    def share(self) -> float:
        """Use in percent of the offer, 0 to 100."""
        return min(100.0, 100 * self.used / self.offered) if self.offered > 0 else 100.0 if self.used else 0.0


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node or a pool. ``problem`` is empty if it accepts pods; ``slurm`` is Slurm's reason for a drain."""

    name: str
    ready: bool
    problem: str
    slurm: str
    amounts: tuple[Amount, ...]

    @property
    def state(self) -> str:
        """One of :data:`NODE_STATES`."""
        return NOT_READY if not self.ready else CORDONED if self.problem else READY

    @property
    def share(self) -> float:
        """The largest share of its resources."""
        return max((amount.share for amount in self.amounts), default=0.0)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of the overview. ``total`` counts all, ``states`` those of each of :data:`NODE_STATES`."""

    shown: list[NodeUse]
    total: int
    states: dict[str, int]


@dataclass(slots=True)
class _Sum:
    pods: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)


def counts(rows: Iterable[PodRow]) -> dict[str, int]:
    """Return the number of pods in each of :data:`~bridge.apps.dashboard.rows.STATES`."""
    numbers = dict.fromkeys(STATES, 0)
    for row in rows:
        numbers[row.state] += 1
    return numbers


def reasons(rows: Iterable[PodRow]) -> list[Reason]:
    """Return why pods wait, the most frequent reason first."""
    groups: dict[str, list[PodRow]] = {}
    for row in rows:
        if row.state == WAITING:
            groups.setdefault(row.reason, []).append(row)
    result = []
    for name, members in groups.items():
        oldest = min(members, key=lambda row: (row.times.created, row.namespace, row.name))
        result.append(Reason(name, len(members), oldest.message, oldest))
    return sorted(result, key=lambda reason: (-reason.count, reason.name))


def nodes(objects: Iterable[Mapping[str, Any]], rows: Iterable[PodRow]) -> tuple[list[NodeUse], list[NodeUse]]:
    """Return the pools and the other nodes, each sorted by name, with the requests of the pods that have not ended."""
    sums: dict[str, _Sum] = {}
    for row in rows:
        if row.node and row.open:
            total = sums.setdefault(row.node, _Sum())
            total.pods += 1
            total.cpu += row.cpu
            total.memory += row.memory
            for name, amount in row.devices:
                total.devices[name] = total.devices.get(name, 0.0) + amount
    pools: list[NodeUse] = []
    others: list[NodeUse] = []
    for node in sorted(objects, key=lambda node: str(node["metadata"]["name"])):
        use = _use(node, sums.get(node["metadata"]["name"], _Sum()))
        (pools if pool_selection.is_virtual(node) else others).append(use)
    return pools, others


def foremost(uses: Sequence[NodeUse]) -> Nodes:
    """Return the nodes of the overview: those with a problem, then the busiest of the others, each sorted by name."""
    numbers = dict.fromkeys(NODE_STATES, 0)
    for use in uses:
        numbers[use.state] += 1
    good = {use.name: not (use.problem or use.slurm) for use in uses}
    chosen = sorted(uses, key=lambda use: (good[use.name], -use.share, use.name))[:MOST_NODES]
    return Nodes(sorted(chosen, key=lambda use: (good[use.name], use.name)), len(uses), numbers)


def _use(node: Mapping[str, Any], total: _Sum) -> NodeUse:
    offered = {name: float(value) for name, value in resources.allocatable(node).items()}
    used = {"pods": float(total.pods), "cpu": total.cpu, "memory": total.memory, **total.devices}
    shown = ["cpu", "memory", *resources.extended({**offered, **total.devices}), "pods"]
    ready = eligibility.readiness(node)
    is_ready = ready.get("status") == "True"
    problem = "" if is_ready else ": ".join(filter(None, (ready.get("reason", "unknown"), ready.get("message", ""))))
    if is_ready and (node.get("spec") or {}).get("unschedulable"):
        problem = "cordoned"
    return NodeUse(
        name=node["metadata"]["name"],
        ready=is_ready,
        problem=problem,
        slurm=str((node["metadata"].get("annotations") or {}).get(names.SLURM_REASON, "")),
        amounts=tuple(Amount(name, used.get(name, 0.0), offered.get(name, 0.0)) for name in shown),
    )
