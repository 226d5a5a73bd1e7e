"""A node that Slurm gave and that has no room yet: what it lacks, whose end it waits for, what the pod is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.workload import pods
from bridge.workload.eligibility import NodeView
from scheduler.occupancy import Occupancy, Occupant

NAMED = 3
"""Pods that a message names."""
RESERVE = "Slurm does not count all of them: reserve their room with CoreSpecCount and MemSpecLimit in slurm.conf"


@dataclass(frozen=True, slots=True)
class FullNode:
    """Why a node has no room: ``ending`` are those of its pods that are about to end, ``others`` the rest."""

    node: str
    lacking: tuple[str, ...]
    ending: tuple[Occupant, ...]
    others: tuple[Occupant, ...]

    @property
    def until(self) -> float:
        """When the last known grace period is over, in seconds since the epoch; 0 where nothing was deleted yet."""
        return max((occupant.until for occupant in self.ending), default=0)

    def lack(self) -> str:
        """Say of which resources there is too little."""
        return f"too little {', '.join(self.lacking)}"

    def names(self) -> str:
        """Name the pods whose end would make room, some of them where they are many."""
        waited = self.ending or self.others
        more = f" and {len(waited) - NAMED} more" if len(waited) > NAMED else ""
        return ", ".join(occupant.key for occupant in waited[:NAMED]) + more

    def message(self) -> str:
        """Tell the pod what it waits for."""
        if self.ending:
            return f"{self.lack()} until these pods have ended: {self.names()}"
        return f"{self.lack()} beside {self.names()}. {RESERVE}"


def find(pod: Mapping[str, Any], node: NodeView, occupancy: Occupancy, snapshot: Snapshot) -> FullNode | None:
    """Return why the kubelet of a node would reject the pod; ``None`` if it has room."""
    lacking = occupancy.lacking(pod, node.name, node.offered or {})
    if not lacking:
        return None
    uid = pods.uid(pod)
    there = [o for o in occupancy.of(node.name) if o.uid != uid and any(name in o.requests for name in lacking)]
    there.sort(key=lambda occupant: occupant.key)
    ending = tuple(occupant for occupant in there if _ends(occupant, snapshot))
    return FullNode(node.name, tuple(lacking), ending, tuple(o for o in there if o not in ending))


def _ends(occupant: Occupant, snapshot: Snapshot) -> bool:
    """Whether a pod is on its way out: deleted, or its Slurm job is over."""
    if occupant.until or not occupant.ours:
        return occupant.until > 0
    jobs = [snapshot.jobs[job_id] for job_id in snapshot.by_uid.get(occupant.uid, ())]
    return all(known.missing or states.end_of(known.job.states) is not None for known in jobs)
