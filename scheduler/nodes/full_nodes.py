"""An allocated node without room for the pod: what it lacks, which pods have to end, the message on the pod."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.workload import host_ports, pods
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.nodes.occupancy import Occupant, PlannedOccupancy, Pod

NAMED = 3
"""Largest number of pods in a message."""
RESERVE = (
    "Slurm counts more room than Kubernetes: for CPUs and memory, set CoreSpecCount and MemSpecLimit in slurm.conf"
)


@dataclass(frozen=True, slots=True)
class FullNode:
    """A node without room for a pod.

    ``lacking`` are resources and host ports, with what the pods there take of them. ``ending`` are the pods on the node
    that are about to end, ``others`` the other pods there that request any of these resources.
    """

    node: str
    lacking: Resources
    ending: tuple[Occupant, ...]
    others: tuple[Occupant, ...]

    @property
    def until(self) -> float:
        """The end of the last grace period in seconds since the epoch; 0 if no pod is deleted."""
        return max((occupant.until for occupant in self.ending), default=0)

    def lack(self) -> str:
        """Return what the node lacks as text, e.g. ``too little cpu, pods``."""
        ports = [f"{name} in use" for name in self.lacking if host_ports.is_port(name)]
        little = ", ".join(name for name in self.lacking if not host_ports.is_port(name))
        return ", ".join([f"too little {little}", *ports] if little else ports)

    def names(self) -> str:
        """Return the names of the pods whose end would make room, at most ``NAMED`` of them."""
        named = self.ending or self.others
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        return ", ".join(occupant.key for occupant in named[:NAMED]) + more

    def message(self) -> str:
        """Return the message of the pod's condition."""
        if self.ending:
            return f"{self.lack()} until these pods have ended: {self.names()}"
        return f"{self.lack()} beside {self.names()}. {RESERVE}"

    def is_full_without(self, members: Iterable[Pod]) -> bool:
        """Whether other pods than these are on the node too."""
        return bool({occupant.uid for occupant in (*self.ending, *self.others)} - set(map(pods.uid, members)))

    def refusal(self) -> str:
        """Return why the job of a pod is cancelled although no pod of the node is about to end."""
        return f"node {self.node} has {self.lack()} beside {self.names()}"


def find(pod: Occupant, node: NodeView, occupancy: PlannedOccupancy, snapshot: Snapshot) -> FullNode | None:
    """Return the node as full if its kubelet would reject the pod; ``None`` if the pod fits."""
    lacking = occupancy.lacking(pod.node, pod.requests, node.offered or {})
    if not lacking:
        return None
    occupants = [
        occupant
        for occupant in occupancy.of(node.name)
        if occupant.uid != pod.uid and any(name in occupant.requests for name in lacking)
    ]
    occupants.sort(key=lambda occupant: occupant.key)
    ending = tuple(occupant for occupant in occupants if _ends(occupant, snapshot))
    return FullNode(node.name, lacking, ending, tuple(occupant for occupant in occupants if occupant not in ending))


def _ends(occupant: Occupant, snapshot: Snapshot) -> bool:
    """Whether a pod is about to end: it is deleted, or its Slurm job is over."""
    if occupant.until or not occupant.ours:
        return occupant.until > 0
    jobs = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(occupant.link_key, ())]
    # true without any job: Slurm forgets ended ones after MinJobAge
    return all(observed.missing or states.end_of(observed.job.states) is not None for observed in jobs)
