"""The map of nodes: of each node and pool, how much podbridge's pods have, how much others, and what is idle. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bridge.apps.view.node_view import Amount, NodeUse
from bridge.slurm.cluster_sums import Amounts, NodeSums
from bridge.workload.quantity import MIB

USED, IDLE, CLOSED = CELL_STATES = ("used", "idle", "closed")
"""``closed``: drained, down or failing in Slurm; a pool that is not ready or cordoned."""
_QUIET = frozenset({"IDLE", "MIXED", "ALLOCATED"})
"""States of Slurm that say no more than the numbers do."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A node or a pool on the map. ``state`` is one of :data:`CELL_STATES`; ``amounts`` are as in :class:`NodeUse`.

    ``note`` is the state in Slurm with its reason, if it says more than the numbers. ``until`` is when the first time
    limit of podbridge's jobs there ends, in seconds since the epoch; 0: not known.
    """

    name: str
    state: str
    amounts: tuple[Amount, ...]
    note: str = ""
    until: int = 0
    partitions: tuple[str, ...] = ()

    @property
    def cpu(self) -> Amount:
        """The CPUs."""
        return self.amounts[0]

    @property
    def gpus(self) -> Amount | None:
        """The GPUs of all types together; ``None``: there are none. Other devices are in ``amounts`` alone."""
        found = [amount for amount in self.amounts[1:-1] if "gpu" in amount.name]
        return _sum(found, "GPUs") if found else None

    @property
    def label(self) -> str:
        """The cell in one line, for those who do not see it."""
        parts = [self.name, self.note or self.state, self.cpu.text]
        return "; ".join([*parts, *(amount.text for amount in self.amounts[1:-1])])


def of_slurm(nodes: Iterable[NodeSums]) -> list[Cell]:
    """Return the cells of Slurm's nodes."""
    return [_of_node(node) for node in nodes]


def _of_node(node: NodeSums) -> Cell:
    note = "+".join(node.states) if node.closed or not _QUIET.issuperset(node.states) else ""
    note += f": {node.reason}" if node.reason else ""
    parts = [_by_name(part, node.total) for part in (node.podbridge, node.total, node.others)]
    kinds = dict.fromkeys(("cpu", *parts[1], *parts[0], *parts[2]))
    kinds["memory"] = kinds.pop("memory")
    amounts = tuple(Amount(kind, *(part.get(kind, 0) for part in parts)) for kind in kinds)
    state = CLOSED if node.closed else USED if any(each.own or each.others for each in amounts) else IDLE
    return Cell(node.name, state, amounts, note, node.until, node.partitions)


def _by_name(part: Amounts, total: Amounts) -> dict[str, float]:
    """Return amounts, devices by the kinds of the node: a job may have asked for a device without its type."""
    result: Counter[str] = Counter()
    for kind, count in part.gres.items():
        typed = next((name for name in total.gres if name.startswith(f"{kind}:")), kind)
        result[kind if kind in total.gres else typed] += count
    return {**result, "cpu": part.cpus, "memory": part.memory_mib * MIB}


def of_pools(pools: Iterable[NodeUse]) -> list[Cell]:
    """Return the cells of the pools: what their virtual nodes offer, and what podbridge's pods there request."""
    return [
        Cell(pool.name, CLOSED if pool.problem else USED if pool.pods else IDLE, pool.amounts[:-1], pool.problem)
        for pool in pools
    ]


def _sum(amounts: Iterable[Amount], name: str) -> Amount:
    chosen = list(amounts)
    return Amount(name, *(sum(getattr(each, part) for each in chosen) for part in ("own", "total", "others")))


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a map: CPUs and GPUs of the nodes that are open, and the number of nodes in each state."""

    cpu: Amount
    gpus: Amount | None
    states: Mapping[str, int]


def totals(cells: Iterable[Cell]) -> Totals:
    """Return the sums of cells. A closed node offers nothing but what its jobs still have."""
    chosen = list(cells)
    states = dict.fromkeys(CELL_STATES, 0)
    for cell in chosen:
        states[cell.state] += 1
    gpus = [_open(cell, cell.gpus) for cell in chosen if cell.gpus is not None]
    cpu = _sum((_open(cell, cell.cpu) for cell in chosen), "cpu")
    return Totals(cpu, _sum(gpus, "GPUs") if gpus else None, states)


def _open(cell: Cell, amount: Amount) -> Amount:
    return amount if cell.state != CLOSED else replace(amount, total=amount.own + amount.others)
