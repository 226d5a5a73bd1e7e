"""Why a pod waits for its volumes, before its job is submitted and after Slurm has allocated the node. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.workload import pods
from scheduler.group_actions import Pod
from scheduler.group_states import Wait
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.rules import SchedulerView
from scheduler.volumes.volume_nodes import Write

NOT_READY, IN_USE, BINDING = "VolumeNotReady", "VolumeInUse", "VolumeBinding"
"""Reasons of the condition PodScheduled=False."""


@dataclass(frozen=True, slots=True)
class VolumeWait:
    """Why a pod waits for a volume, and the ``writes`` that bind its claims, if they are due."""

    wait: Wait
    writes: tuple[Write, ...] = ()


def before_submission(view: SchedulerView, members: Sequence[Pod], occupancy: PlannedOccupancy) -> Wait | None:
    """Return why no job may be submitted for the members of a group; ``None`` if one may be."""
    for pod in members:
        if problem := view.placements.needs(pod).problem:
            return Wait(NOT_READY, problem)
        if used := _in_use(view, pod, occupancy):
            return used
    shared = Counter(claim for pod in members for claim in view.placements.needs(pod).exclusive)
    for claim, count in shared.items():
        if count > 1:
            text = f"{count} pods of one group use PersistentVolumeClaim {claim}, whose access mode is ReadWriteOncePod"
            return Wait(IN_USE, text)
    return None


def before_bind(view: SchedulerView, pod: Pod, slurm_node: str, occupancy: PlannedOccupancy) -> VolumeWait | None:
    """Return what the pod waits for on the allocated node, which its claims allow; ``None`` if it can be bound."""
    needs = view.placements.needs(pod)
    if needs.problem:
        return VolumeWait(Wait(NOT_READY, needs.problem))
    if used := _in_use(view, pod, occupancy):
        return VolumeWait(used)
    names = (*(claim.key[1] for claim in needs.unbound), *needs.binding)
    if not names:
        return None
    node = view.placements.by_slurm_name[slurm_node].name
    text = f"waits until PersistentVolumeClaim {', '.join(sorted(names))} is bound to a volume on node {node}"
    return VolumeWait(Wait(BINDING, text), view.placements.volume_writes(pod, slurm_node))


def of_members(
    view: SchedulerView, members: Iterable[Pod], nodes: Mapping[str, str], occupancy: PlannedOccupancy
) -> list[tuple[Pod, VolumeWait]]:
    """Return the members of a group that wait for a volume; ``nodes`` are their Slurm nodes by UID."""
    waits = ((pod, before_bind(view, pod, nodes[pods.uid(pod)], occupancy)) for pod in members)
    return [(pod, wait) for pod, wait in waits if wait is not None]


def _in_use(view: SchedulerView, pod: Pod, occupancy: PlannedOccupancy) -> Wait | None:
    for claim in view.placements.needs(pod).exclusive:
        users = [occupant.key for occupant in occupancy.users(claim) if occupant.uid != pods.uid(pod)]
        if users:
            text = f"PersistentVolumeClaim {claim} is for one pod (ReadWriteOncePod), and {users[0]} uses it"
            return Wait(IN_USE, text)
    return None
