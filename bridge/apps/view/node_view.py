"""A node or a pool as users see it: its state, and what the pods there request. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.apps.view.pod_view import PodView
from bridge.apps.view.records import Usage
from bridge.slurm import job_words
from bridge.workload import eligibility, pool_selection, resources
from bridge.workload.quantity import MIB

NODE, POOL = KINDS = ("node", "pool")
READY, CORDONED, NOT_READY = NODE_STATES = ("ready", "cordoned", "not ready")


@dataclass(frozen=True, slots=True)
class Amount:
    """A resource of a node: what podbridge's pods have, what there is, and what other jobs of Slurm have.

    Memory is in bytes, the others are counts.
    """

    name: str
    own: float
    total: float
    others: float = 0

    @property
    def idle(self) -> float:
        """What nobody has."""
        return max(0.0, self.total - self.own - self.others)

    @property
    def share(self) -> float:
        """The share of podbridge's pods in percent, 0 to 100; 100 if there is nothing but what they have."""
        return min(100.0, 100 * self.own / self.total) if self.total > 0 else 100.0 if self.own else 0.0

    @property
    def others_share(self) -> float:
        """The share of other jobs in percent; both shares are at most 100 together."""
        return min(100 * self.others / self.total if self.total > 0 else 0.0, 100 - self.share)

    def words(self, value: float) -> str:
        """Return a part of the amount as people read it."""
        return job_words.memory(value / MIB) if self.name == "memory" else f"{value:,.1f}".removesuffix(".0")

    @property
    def text(self) -> str:
        """All parts in words."""
        parts = [f"{self.words(self.own)} of {self.words(self.total)} for podbridge's pods"]
        parts += [f"{self.words(self.others)} for other jobs"] if self.others else []
        return f"{'CPUs' if self.name == 'cpu' else self.name}: {', '.join(parts)}, {self.words(self.idle)} idle"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """A node or a pool. ``problem`` is empty if it accepts pods; ``slurm`` is Slurm's reason for a drain.

    ``status`` and ``reason`` are those of the condition Ready. ``amounts`` are those of ``cpu``, of devices, of
    ``memory`` and of ``pods``.
    """

    kind: str
    name: str
    status: str
    reason: str
    problem: str
    slurm: str
    amounts: tuple[Amount, ...]

    @property
    def ready(self) -> bool:
        """Whether its kubelet or its site says that it is ready."""
        return self.status == "True"

    @property
    def state(self) -> str:
        """One of :data:`NODE_STATES`."""
        return NOT_READY if not self.ready else CORDONED if self.problem else READY

    def usage(self, name: str) -> Usage:
        """Return used and offered amount of a resource."""
        amount = next(each for each in self.amounts if each.name == name)
        return {"used": amount.own, "total": amount.total}

    @property
    def pods(self) -> int:
        """The number of pods of podbridge's scheduler there that have not ended."""
        return int(self.amounts[-1].own)

    @property
    def share(self) -> float:
        """The largest share of its resources."""
        return max((amount.share for amount in self.amounts), default=0.0)


def nodes(objects: Iterable[Mapping[str, Any]], pods: Iterable[PodView]) -> tuple[list[NodeUse], list[NodeUse]]:
    """Return the pools and the other nodes, each sorted by name, with the requests of the pods that have not ended."""
    used: dict[str, Counter[str]] = {}
    for pod in pods:
        if pod.node and pod.open:
            requests = {"pods": 1, "cpu": pod.cpu, "memory": pod.memory, **dict(pod.devices)}
            used.setdefault(pod.node, Counter()).update(requests)
    uses = [_use(node, used.get(node["metadata"]["name"], Counter())) for node in objects]
    uses.sort(key=lambda use: use.name)
    return [use for use in uses if use.kind == POOL], [use for use in uses if use.kind == NODE]


def _use(node: Mapping[str, Any], used: Mapping[str, float]) -> NodeUse:
    offered = {name: float(value) for name, value in resources.allocatable(node).items()}
    shown = ("cpu", *resources.extended({**offered, **used}), "memory", "pods")
    ready = eligibility.readiness(node)
    status = str(ready.get("status", "Unknown"))
    problem = "cordoned" if (node.get("spec") or {}).get("unschedulable") else ""
    if status != "True":
        problem = ": ".join(filter(None, (ready.get("reason", "unknown"), ready.get("message", ""))))
    return NodeUse(
        kind=POOL if pool_selection.is_virtual(node) else NODE,
        name=str(node["metadata"]["name"]),
        status=status,
        reason=str(ready.get("reason", "")),
        problem=problem,
        slurm=str((node["metadata"].get("annotations") or {}).get(names.SLURM_REASON, "")),
        amounts=tuple(Amount(name, used.get(name, 0.0), offered.get(name, 0.0)) for name in shown),
    )
