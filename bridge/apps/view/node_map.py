"""The map of nodes: of each node and pool, how much podbridge's pods have, how much others, and what is idle. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.apps.view.node_view import NodeUse
from bridge.slurm import job_words
from bridge.slurm.cluster_sums import Amounts, NodeSums
from bridge.workload.quantity import MIB

USED, IDLE, CLOSED = CELL_STATES = ("used", "idle", "closed")
"""``closed``: drained, down or failing in Slurm; a pool that is not ready or cordoned."""
_QUIET = frozenset({"IDLE", "MIXED", "ALLOCATED"})
"""States of Slurm that say no more than the numbers do."""


@dataclass(frozen=True, slots=True)
class Fill:
    """Of one resource: what podbridge's pods have, what other jobs have, and what there is. Memory is in MiB."""

    name: str
    own: float
    others: float
    total: float

    @property
    def idle(self) -> float:
        """What nobody has."""
        return max(0.0, self.total - self.own - self.others)

    @property
    def own_share(self) -> float:
        """The share of podbridge's pods in percent, 0 to 100."""
        return _percent(self.own, self.total)

    @property
    def others_share(self) -> float:
        """The share of other jobs in percent; both shares are at most 100 together."""
        return min(_percent(self.others, self.total), 100 - self.own_share)

    @property
    def text(self) -> str:
        """All amounts in words."""
        whole = self._amount(self.total)
        parts = [f"{self._amount(self.own)} of {whole} for podbridge's pods"]
        parts += [f"{self._amount(self.others)} for other jobs"] if self.others else []
        return f"{self.name}: {', '.join(parts)}, {self._amount(self.idle)} idle"

    def _amount(self, value: float) -> str:
        return job_words.memory(value) if self.name == "memory" else f"{value:,.1f}".removesuffix(".0")


def _percent(part: float, whole: float) -> float:
    return min(100.0, 100 * part / whole) if whole > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A node or a pool on the map. ``fills`` are CPUs, devices and memory; ``state`` is one of :data:`CELL_STATES`.

    ``note`` is the state in Slurm with its reason, if it says more than the numbers. ``until`` is when the first time
    limit of podbridge's jobs there ends, in seconds since the epoch; 0: not known.
    """

    name: str
    state: str
    fills: tuple[Fill, ...]
    note: str = ""
    until: int = 0
    partitions: tuple[str, ...] = ()

    @property
    def cpu(self) -> Fill:
        """The CPUs."""
        return self.fills[0]

    @property
    def gpus(self) -> Fill | None:
        """The GPUs of all types together; ``None``: there are none. Other devices are in ``fills`` alone."""
        found = [fill for fill in self.fills[1:-1] if "gpu" in fill.name]
        return _sum(found, "GPUs") if found else None

    @property
    def label(self) -> str:
        """The cell in one line, for those who do not see it."""
        parts = [self.name, self.note or self.state, self.cpu.text]
        return "; ".join([*parts, *(fill.text for fill in self.fills[1:-1])])


def of_slurm(nodes: Iterable[NodeSums]) -> list[Cell]:
    """Return the cells of Slurm's nodes."""
    return [_of_node(node) for node in nodes]


def _of_node(node: NodeSums) -> Cell:
    used = _used(node.podbridge) or _used(node.others)
    state = CLOSED if node.closed else USED if used else IDLE
    note = "+".join(node.states) if node.closed or not _QUIET.issuperset(node.states) else ""
    note += f": {node.reason}" if node.reason else ""
    parts = (node.podbridge, node.others, node.total)
    kinds = {name: None for part in (node.total, node.podbridge, node.others) for name in _gres(part, node.total)}
    fills = (
        Fill("CPUs", *(part.cpus for part in parts)),
        *(Fill(kind, *(_gres(part, node.total).get(kind, 0) for part in parts)) for kind in kinds),
        Fill("memory", *(part.memory_mib for part in parts)),
    )
    return Cell(node.name, state, fills, note, node.until, node.partitions)


def _used(part: Amounts) -> bool:
    return bool(part.cpus or part.memory_mib or any(part.gres.values()))


def _gres(part: Amounts, total: Amounts) -> dict[str, int]:
    """Return the devices by the kinds of the node: a job may have asked for a device without its type."""
    result: dict[str, int] = {}
    for kind, count in part.gres.items():
        typed = next((name for name in total.gres if name.startswith(f"{kind}:")), kind)
        name = kind if kind in total.gres else typed
        result[name] = result.get(name, 0) + count
    return result


def of_pools(pools: Iterable[NodeUse]) -> list[Cell]:
    """Return the cells of the pools: what their virtual nodes offer, and what podbridge's pods there request."""
    return [_of_pool(pool) for pool in pools]


def _of_pool(pool: NodeUse) -> Cell:
    amounts = {amount.name: amount for amount in pool.amounts}
    cpu, memory = amounts.pop("cpu", None), amounts.pop("memory", None)
    amounts.pop("pods", None)
    fills = (
        Fill("CPUs", cpu.used if cpu else 0, 0, cpu.offered if cpu else 0),
        *(Fill(name, amount.used, 0, amount.offered) for name, amount in amounts.items()),
        Fill("memory", *((memory.used / MIB, 0, memory.offered / MIB) if memory else (0, 0, 0))),
    )
    state = CLOSED if pool.problem else USED if pool.pods else IDLE
    return Cell(pool.name, state, fills, pool.problem)


def _sum(fills: Iterable[Fill], name: str) -> Fill:
    chosen = list(fills)
    return Fill(name, *(sum(getattr(fill, part) for fill in chosen) for part in ("own", "others", "total")))


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums of a map: CPUs and GPUs of the nodes that are open, and the number of nodes in each state."""

    cpu: Fill
    gpus: Fill | None
    states: Mapping[str, int]


def totals(cells: Iterable[Cell]) -> Totals:
    """Return the sums of cells. A closed node offers nothing but what its jobs still have."""
    chosen = list(cells)
    states = dict.fromkeys(CELL_STATES, 0)
    for cell in chosen:
        states[cell.state] += 1
    gpus = [_open(cell, cell.gpus) for cell in chosen if cell.gpus is not None]
    cpu = _sum((_open(cell, cell.cpu) for cell in chosen), "CPUs")
    return Totals(cpu, _sum(gpus, "GPUs") if gpus else None, states)


def _open(cell: Cell, fill: Fill) -> Fill:
    return fill if cell.state != CLOSED else Fill(fill.name, fill.own, fill.others, fill.own + fill.others)
