"""The ranks of a group's members in its one job at a pool. Pure.

Only the members that are bound and have not ended tell which job this is, so a new leader, and a decision after a crash
between two Bindings, continue with the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.workload import places, pods, remote_gangs
from bridge.workload.remote_gangs import Place
from scheduler.group_states import Pod
from scheduler.pod_group import Group


@dataclass(frozen=True, slots=True)
class Gang:
    """The job of a group at ``pool``: its name and size, and its members that have not ended.

    While the group races, ``pool`` is empty. ``grant``: the annotation of the members that have won a race.
    """

    pool: str
    name: str
    size: int
    members: Mapping[int, Pod]
    grant: str = ""

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
    grants = (places.granted(pod) for pod in members.values())
    return Gang(oldest["spec"]["nodeName"], first.gang, first.size, members, next(filter(None, grants), ""))


def offered(waiting: Sequence[Pod]) -> Gang | None:
    """Return the job for which members that race have their places; ``None`` if they need another one.

    The Binding of the pod with rank 0 is the grant of the group, so another pod never gets this rank in the same job:
    two places could win. If there are fewer members than places, the job is for those that are present.
    """
    placed = [(pod, place) for pod in waiting if (place := remote_gangs.place_of(pod)) is not None]
    firsts = [(pod, place) for pod, place in placed if place.rank == 0]
    if not firsts:
        return None
    _, first = min(firsts, key=lambda each: pods.age(each[0]))
    return Gang("", first.gang, first.size, {}) if len(waiting) >= first.size else None


def assign(waiting: Sequence[Pod], slots: Mapping[str, int | None], gang: Gang) -> list[tuple[Pod, Place]]:
    """Return waiting members with free ranks, the oldest first; a member without a free rank is left out.

    A member keeps its rank in this job, gets the rank of its slot, or the lowest free one if that one is taken.
    """
    free = [rank for rank in range(gang.size) if rank not in gang.members]
    ranks: dict[str, int] = {}
    recorded = {pods.uid(pod): remote_gangs.place_of(pod) for pod in waiting}
    kept = {uid: place.rank for uid, place in recorded.items() if place is not None and place.gang == gang.name}
    for wanted in (kept, slots):
        for pod in sorted(waiting, key=pods.age) if wanted is kept else waiting:
            uid, rank = pods.uid(pod), wanted.get(pods.uid(pod))
            if uid not in ranks and rank is not None and rank in free:
                free.remove(rank)
                ranks[uid] = rank
    for pod in waiting:
        if free and pods.uid(pod) not in ranks:
            ranks[pods.uid(pod)] = free.pop(0)
    placed = sorted((pod for pod in waiting if pods.uid(pod) in ranks), key=pods.age)
    return [(pod, Place(gang.name, ranks[pods.uid(pod)], gang.size)) for pod in placed]
