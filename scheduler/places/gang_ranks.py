"""The ranks of a group's members in its one job at a pool. Pure.

Only the members that are bound and have not ended tell which job this is, so a new leader, and a decision after a crash
between two Bindings, continue with the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.workload import pods, remote_gangs
from bridge.workload.remote_gangs import Place
from scheduler.group_states import Pod
from scheduler.pod_group import Group


@dataclass(frozen=True, slots=True)
class Gang:
    """The job of a group at ``pool``: its name and size, and its members that have not ended."""

    pool: str
    name: str
    size: int
    members: Mapping[int, Pod]

    @property
    def is_ending(self) -> bool:
        """Whether all members are deleted: a pod that takes the place of one would not run with the others."""
        return all(map(pods.is_deleted, self.members.values()))


def present(group: Group) -> Gang | None:
    """Return the job that the bound members have; ``None`` if none of them has one.

    If they have different jobs, that of the oldest member counts.
    """
    placed = [(pod, place) for pod in group.running if (place := remote_gangs.place_of(pod)) is not None]
    if not placed:
        return None
    oldest, first = min(placed, key=lambda each: pods.age(each[0]))
    members = {place.rank: pod for pod, place in placed if place.gang == first.gang}
    return Gang(oldest["spec"]["nodeName"], first.gang, first.size, members)


def assign(waiting: Sequence[Pod], slots: Mapping[str, int | None], gang: Gang) -> list[tuple[Pod, Place]]:
    """Return waiting members with free ranks, the oldest first; a member without a free rank is left out.

    A member gets the rank of its slot, or the lowest free one if that one is taken.
    """
    free = [rank for rank in range(gang.size) if rank not in gang.members]
    ranks: dict[str, int] = {}
    for pod in waiting:
        slot = slots[pods.uid(pod)]
        if slot is not None and slot in free:
            free.remove(slot)
            ranks[pods.uid(pod)] = slot
    for pod in waiting:
        if free and pods.uid(pod) not in ranks:
            ranks[pods.uid(pod)] = free.pop(0)
    placed = sorted((pod for pod in waiting if pods.uid(pod) in ranks), key=pods.age)
    return [(pod, Place(gang.name, ranks[pods.uid(pod)], gang.size)) for pod in placed]
