"""The ranks of a group's members in its one job at a pool. Pure.

In a race, the Binding of rank 0 is the grant of the group, at the colocated Slurm too.

Only the members that are bound and have not ended tell which job this is, so a new leader, and a decision after a crash
between two Bindings, continue with the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.core.grouping import grouped
from bridge.workload import links, places, pods, remote_gangs
from bridge.workload.remote_gangs import Place
from scheduler.group_states import Pod
from scheduler.pod_group import Group


@dataclass(frozen=True, slots=True)
class Gang:
    """The job of a group at ``pool``: its name and size, and its members that have not ended.

    While the group races, ``pool`` is empty. ``grant``: the annotation of the members that have won a race.
    ``shapes``: see :class:`bridge.workload.remote_gangs.Place`.
    """

    pool: str
    name: str
    size: int
    members: Mapping[int, Pod]
    grant: str = ""
    shapes: tuple[str, ...] = ()

    @property
    def is_ending(self) -> bool:
        """Whether all members are deleted: a pod that takes the place of one would not run with the others."""
        return all(map(pods.is_deleted, self.members.values()))

    def fits(self, shape: str, rank: int) -> bool:
        """Whether a pod of a shape may have a rank."""
        return not self.shapes or self.shapes[rank] == shape


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
    grant = next(filter(None, grants), "")
    return Gang(oldest["spec"]["nodeName"], first.gang, first.size, members, grant, first.shapes)


def racing(group: Group) -> list[Pod] | None:
    """Return the members that the colocated Slurm may bind while pools can win too, rank 0 first; ``None``: any.

    They are of one gang, because the write of the gang makes earlier Bindings that are still on their way fail. Without
    rank 0, none may be bound: the next decision about the places makes another gang. A group with a member that runs
    here has won.
    """
    if group.ref is None or group.running or not any(map(places.recorded, group.waiting)):
        return None
    gang = _oldest_first(group.waiting)
    members = [pod for pod in group.waiting if gang is not None and remote_gangs.gang_of(pod) == gang.gang]
    return sorted(members, key=rank)


def rank(pod: Pod) -> int:
    """Return the rank of a pod in the job of its group; after all others without one."""
    place = remote_gangs.place_of(pod)
    return remote_gangs.MOST_MEMBERS if place is None else place.rank


def _oldest_first(waiting: Sequence[Pod]) -> Place | None:
    """Return the place of the oldest waiting pod with rank 0; ``None`` without one."""
    firsts = [pod for pod in waiting if rank(pod) == 0]
    return remote_gangs.place_of(min(firsts, key=pods.age)) if firsts else None


def offered(waiting: Sequence[Pod]) -> Gang | None:
    """Return the job for which members that race have their places; ``None`` if they need another one.

    The Binding of the pod with rank 0 is the grant of the group, so another pod never gets this rank in the same job:
    two places could win. If there are fewer members than places, the job is for those that are present.
    """
    first = _oldest_first(waiting)
    if first is None or len(waiting) < first.size:
        return None
    return Gang("", first.gang, first.size, {}, shapes=first.shapes)


def assign(waiting: Sequence[Pod], slots: Mapping[str, int | None], gang: Gang) -> list[tuple[Pod, Place]]:
    """Return waiting members with free ranks, the oldest first; a member without a free rank is left out.

    A member keeps its rank in this job, gets the rank of its slot, or the lowest free one if that one is taken. In a
    heterogeneous job, only the ranks of its shape are free for it.
    """
    free = {rank: None for rank in range(gang.size) if rank not in gang.members}
    ranks: dict[str, int] = {}
    shapes = {pods.uid(pod): links.shape(pod) for pod in waiting} if len(waiting) > 1 or gang.shapes else {}
    recorded = {pods.uid(pod): remote_gangs.place_of(pod) for pod in waiting}
    kept = {uid: place.rank for uid, place in recorded.items() if place is not None and place.gang == gang.name}
    for wanted in (kept, slots):
        for pod in sorted(waiting, key=pods.age) if wanted is kept else waiting:
            uid, rank = pods.uid(pod), wanted.get(pods.uid(pod))
            if uid not in ranks and rank is not None and rank in free and gang.fits(shapes.get(uid, ""), rank):
                del free[rank]
                ranks[uid] = rank
    free_of_shape = grouped((gang.shapes[rank] if gang.shapes else "", rank) for rank in reversed(free))
    for uid in map(pods.uid, waiting):
        if uid not in ranks and (left := free_of_shape.get(shapes[uid] if gang.shapes else "")):
            ranks[uid] = left.pop()
    known_shapes = gang.shapes or _shapes_of_new(gang, {rank: shapes.get(uid, "") for uid, rank in ranks.items()})
    placed = sorted((pod for pod in waiting if pods.uid(pod) in ranks), key=pods.age)
    return [(pod, Place(gang.name, ranks[pods.uid(pod)], gang.size, known_shapes)) for pod in placed]


def _shapes_of_new(gang: Gang, shapes: Mapping[int, str]) -> tuple[str, ...]:
    """Return the shapes of a new job by rank; none if they are equal, or have too many components."""
    if gang.members or len({*shapes.values()}) == 1:
        return ()
    ordered = tuple(shapes[rank] for rank in range(gang.size))
    return ordered if len([*itertools.groupby(ordered)]) <= remote_gangs.MOST_COMPONENTS else ()
