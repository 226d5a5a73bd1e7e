"""A node or a pool as users see it: its state, and what the pods there request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.apps.view.pod_view import PodView
from bridge.apps.view.records import Usage
from bridge.workload import eligibility, pool_selection, resources

READY, CORDONED, NOT_READY = NODE_STATES = ("ready", "cordoned", "not ready")


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
    """A node or a pool. ``problem`` is empty if it accepts pods; ``slurm`` is Slurm's reason for a drain.

    ``status`` and ``reason`` are those of the condition Ready.
    """

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
        amount = next((each for each in self.amounts if each.name == name), Amount(name, 0.0, 0.0))
        return {"used": amount.used, "total": amount.offered}

    @property
    def pods(self) -> int:
        """The number of pods of podbridge's scheduler there that have not ended."""
        return int(next((each.used for each in self.amounts if each.name == "pods"), 0))

    @property
    def share(self) -> float:
        """The largest share of its resources."""
        return max((amount.share for amount in self.amounts), default=0.0)


@dataclass(slots=True)
class _Sum:
    pods: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    devices: dict[str, float] = field(default_factory=dict)


def nodes(objects: Iterable[Mapping[str, Any]], pods: Iterable[PodView]) -> tuple[list[NodeUse], list[NodeUse]]:
    """Return the pools and the other nodes, each sorted by name, with the requests of the pods that have not ended."""
    sums: dict[str, _Sum] = {}
    for pod in pods:
        if pod.node and pod.open:
            total = sums.setdefault(pod.node, _Sum())
            total.pods += 1
            total.cpu += pod.cpu
            total.memory += pod.memory
            for name, amount in pod.devices:
                total.devices[name] = total.devices.get(name, 0.0) + amount
    pools: list[NodeUse] = []
    others: list[NodeUse] = []
    for node in sorted(objects, key=lambda node: str(node["metadata"]["name"])):
        use = _use(node, sums.get(node["metadata"]["name"], _Sum()))
        (pools if pool_selection.is_virtual(node) else others).append(use)
    return pools, others


def _use(node: Mapping[str, Any], total: _Sum) -> NodeUse:
    offered = {name: float(value) for name, value in resources.allocatable(node).items()}
    used = {"pods": float(total.pods), "cpu": total.cpu, "memory": total.memory, **total.devices}
    shown = ["cpu", "memory", *resources.extended({**offered, **total.devices}), "pods"]
    ready = eligibility.readiness(node)
    status = str(ready.get("status", "Unknown"))
    is_ready = status == "True"
    problem = "" if is_ready else ": ".join(filter(None, (ready.get("reason", "unknown"), ready.get("message", ""))))
    if is_ready and (node.get("spec") or {}).get("unschedulable"):
        problem = "cordoned"
    return NodeUse(
        name=node["metadata"]["name"],
        status=status,
        reason=str(ready.get("reason", "")),
        problem=problem,
        slurm=str((node["metadata"].get("annotations") or {}).get(names.SLURM_REASON, "")),
        amounts=tuple(Amount(name, used.get(name, 0.0), offered.get(name, 0.0)) for name in shown),
    )
