"""The groups of more than one pod that share a Slurm job, as the scheduler sees them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bridge.slurm import states
from bridge.slurm.models import GroupRef, Job, JobPart, ObservedJob
from bridge.workload import groups, host_ports, links, pods
from bridge.workload.groups import Membership

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The object that has the name of a group, but another UID than the group: a user has created it again.

    ``minimum`` is 0 if it lets each pod start alone.
    """

    uid: str
    minimum: int


@dataclass(frozen=True)
class Gang:
    """A group and its pods that the cache has, ended ones included, in the order of their slots and names.

    The job starts with at least ``minimum`` of ``size`` members. ``slots`` are the slots of the pods by UID, ``None``
    for a pod without one. ``completed`` is the number of members that had succeeded when the newest pods were created;
    their own pods may be deleted. ``alone`` are the members with a job of their own. ``present_since`` is the
    monotonic time since which this process knows the oldest of the members that have not ended. ``replacement`` is the
    object that the waiting members join.
    """

    ref: GroupRef
    size: int
    minimum: int
    pods: tuple[Pod, ...]
    slots: Mapping[str, int | None]
    completed: int = 0
    present_since: float = -math.inf
    alone: tuple[Pod, ...] = ()
    replacement: Replacement | None = None

    @property
    def key(self) -> str:
        """The key of the group's job, state and worker."""
        return self.ref.key

    @cached_property
    def open(self) -> list[Pod]:
        """The members that are neither bound nor ended, deleted ones included."""
        return [pod for pod in self.pods if pods.is_open(pod)]

    @cached_property
    def waiting(self) -> list[Pod]:
        """The members to be bound."""
        return [pod for pod in self.open if not pods.is_deleted(pod) and not pods.is_gated(pod)]

    @cached_property
    def gated(self) -> list[Pod]:
        """The members that must not be scheduled yet."""
        return [pod for pod in self.open if pods.is_gated(pod) and not pods.is_deleted(pod)]

    @cached_property
    def running(self) -> list[Pod]:
        """The members that are bound and have not ended."""
        return [pod for pod in self.pods if pods.is_bound(pod) and not pods.is_finished(pod)]

    def succeeded(self, job: Job | None = None) -> int:
        """Return the number of members that have succeeded in another job than ``job``: not needed again.

        For a job, the members whose pods are deleted count if they had succeeded before its submission. Members that
        run in a job of their own count too.
        """
        before = self.completed if job is None else job.link.completed if job.link is not None else 0
        job_id = None if job is None else job.job_id
        ended = [pod for pod in self.pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
        others = [pod for pod in self.alone if _runs(pod) or (pod.get("status") or {}).get("phase") == "Succeeded"]
        return max(before, sum(pods.job_id(pod) != job_id for pod in ended) + len(others))

    def started(self, job_id: int) -> int:
        """Return the number of members that were bound to a node of the job, ended ones included."""
        return len(self._bound(job_id))

    def has_started(self, job_id: int, placed: Iterable[Pod]) -> bool:
        """Whether the waiting members with a place were all created after a member was bound to a node of the job.

        They are then successors of members that have run: a job is submitted after its members were created.
        """
        return pods.bound_before(self._bound(job_id), placed)

    def _bound(self, job_id: int) -> list[Pod]:
        return [pod for pod in self.pods if pods.is_bound(pod) and pods.job_id(pod) == job_id]


def _runs(pod: Pod) -> bool:
    return pods.is_bound(pod) and not pods.is_finished(pod) and not pods.is_deleted(pod)


def make(
    members: Iterable[tuple[Pod, Membership]], present_since: float = -math.inf, alone: Sequence[Pod] = ()
) -> Gang:
    """Return the gang of at least one member."""
    entries = list(members)
    size, minimum = links.size_and_minimum(entries)
    slots = {pods.uid(pod): member.slot for pod, member in entries}
    entries.sort(key=lambda entry: (entry[1].slot is None, entry[1].slot or 0, entry[0]["metadata"]["name"]))
    membership = entries[0][1]
    return Gang(
        ref=membership.key,
        size=size,
        minimum=minimum,
        pods=tuple(pod for pod, _ in entries),
        slots=slots,
        completed=max(member.completed for _, member in entries),
        present_since=present_since,
        alone=tuple(alone),
    )


def job_of(gang: Gang, live: Sequence[ObservedJob]) -> ObservedJob:
    """Return the job of the running members, else that of a waiting one, else the oldest."""
    for pod in (*gang.running, *gang.waiting):
        for observed in live:
            if observed.job.job_id == pods.job_id(pod):
                return observed
    return live[0]


def together(members: Iterable[Pod]) -> int:
    """Return how many of these members may share a node: the smallest number that one of them states.

    Members with a host port, which alike members have too, share none.
    """
    return min(map(_together, members), default=1)


def _together(pod: Pod) -> int:
    return 1 if host_ports.of(pod["spec"]) else groups.together(pod["metadata"].get("annotations") or {})


def assign(gang: Gang, nodes: Sequence[str], size: int, shared: int, exact: bool = False) -> dict[str, str]:
    """Return the Slurm node for each waiting member by UID; a member without a free place is left out.

    The job was submitted for ``size`` members, of which ``shared`` share a node: the last node may have fewer places.
    ``exact``: the job got CPUs for ``size`` members and no more, so this holds also after it has lost other nodes.
    A pure function of the pods and the nodes of the job, so that a successor continues after a crash in the middle of
    the bindings: running members keep their places. A member with a slot gets the place of its slot, or any free
    place if that one is taken; the others get the free places in the order of their names.
    """
    free = {node: min(shared, size - number * shared) for number, node in enumerate(nodes)}
    # after the loss of nodes, the last one may be that with CPUs only for the rest of the members
    if exact and nodes and len(nodes) * shared < size:
        free[nodes[-1]] = size % shared or shared
    for pod in gang.running:  # bound before a crash, or by an earlier decision
        node = pods.slurm_node(pod)
        if node in free:
            free[node] -= 1
    assigned: dict[str, str] = {}
    for pod in gang.waiting:
        slot = gang.slots[pods.uid(pod)]
        if slot is not None and slot // shared < len(nodes) and free[nodes[slot // shared]] > 0:
            assigned[pods.uid(pod)] = nodes[slot // shared]
            free[nodes[slot // shared]] -= 1
    for pod in gang.waiting:
        if pods.uid(pod) in assigned:
            continue
        node = next((node for node in nodes if free[node] > 0), "")
        if node:
            assigned[pods.uid(pod)] = node
            free[node] -= 1
    return assigned


def assign_places(gang: Gang, job: Job) -> dict[str, str]:
    """Return the Slurm node for each waiting member as :func:`assign`, also on the components of a heterogeneous job.

    A member gets a place only in the component for its shape. Two components share no node, so a running member is in
    the component that has its node. The slot of a member in a component is the rank of its slot among those of its
    shape.
    """
    if not job.parts:
        size = job.link.size if job.link is not None else gang.size
        exact = gang.minimum >= gang.size  # as the request: else the number of tasks follows from the nodes
        return assign(gang, job.nodes, size, _shared(job), exact)
    shape_of = shape_in(job)
    shapes = {pods.uid(pod): shape_of(pod) for pod in gang.pods}
    assigned: dict[str, str] = {}
    for part in job.parts:
        component_uids = {uid for uid, shape in shapes.items() if shape == part.shape}
        component_slots = sorted(
            {slot for uid, slot in gang.slots.items() if uid in component_uids and slot is not None}
        )
        ranks: dict[int | None, int] = {slot: rank for rank, slot in enumerate(component_slots)}
        slots = {uid: ranks.get(slot) for uid, slot in gang.slots.items()}
        members = tuple([pod for pod in gang.pods if pods.is_bound(pod) or pods.uid(pod) in component_uids])
        component_gang = replace(gang, pods=members, slots=slots)
        assigned |= assign(component_gang, part.nodes, part.members, part.together, exact=True)
    return assigned


def choose_members(gang: Gang) -> tuple[Gang, list[Pod]]:
    """Return the gang with the waiting members for which the next job is submitted, and the other waiting pods.

    Any user of the namespace may label a pod as a member. If at least as many waiting members as the gang needs request
    the same, the job is for these. Otherwise it is for members of different shapes: one for each slot, and no more than
    the gang should have. Those of a shape that more members have come first, then the older ones.
    """
    waiting = gang.waiting
    shapes = [links.shape(pod) for pod in waiting]
    counts, succeeded = Counter(shapes), gang.succeeded()
    common_shape, count = counts.most_common(1)[0]
    if count == len(waiting):
        return gang, []
    if count >= gang.minimum - succeeded:
        kept = {pods.uid(pod) for pod, shape in zip(waiting, shapes, strict=True) if shape == common_shape}
    else:
        by_uid = {pods.uid(pod): shape for pod, shape in zip(waiting, shapes, strict=True)}
        kept = _one_for_each_slot(gang, by_uid, counts, gang.size - succeeded)
    others = [pod for pod in waiting if pods.uid(pod) not in kept]
    return replace(gang, pods=tuple([pod for pod in gang.pods if pod not in others])), others


def differ_without_slots(gang: Gang) -> bool:
    """Whether the waiting members request different resources, and any of them has no slot."""
    waiting = gang.waiting
    return any(gang.slots[pods.uid(pod)] is None for pod in waiting) and len(links.by_shape(waiting)) > 1


def _one_for_each_slot(gang: Gang, shapes: Mapping[str, str], counts: Mapping[str, int], room: int) -> set[str]:
    """Return the UIDs of at most ``room`` waiting members; ``counts`` are the numbers of members of each shape."""

    def key(pod: Pod) -> tuple[int, str, str]:
        metadata = pod["metadata"]
        return -counts[shapes[pods.uid(pod)]], metadata.get("creationTimestamp") or "", metadata["name"]

    kept: set[str] = set()
    taken_slots: set[int] = set()
    for pod in sorted(gang.waiting, key=key):
        slot = gang.slots[pods.uid(pod)]
        if len(kept) < room and (slot is None or slot not in taken_slots):
            kept.add(pods.uid(pod))
            taken_slots |= {slot} if slot is not None else set()
    return kept


def parts(gang: Gang, job: Job) -> list[tuple[Job | JobPart, list[Pod]]]:
    """Return the components of a job with their waiting members, an ordinary job with all of them.

    Without any if the components have not been read yet.
    """
    if job.link is None or job.link.parts == 1:
        return [(job, gang.waiting)]
    members = links.by_shape(gang.waiting, shape_in(job))
    return [(part, [*members.get(part.shape, ())]) for part in job.parts]


def by_node(
    gang: Gang, job: Job, assigned: Mapping[str, str]
) -> Iterable[tuple[Job | JobPart, Mapping[str, Sequence[Pod]]]]:
    """Return the job, or each component, with its members by Slurm node: those assigned to one, and running ones."""
    running = [pod for pod in gang.running if pods.job_id(pod) == job.job_id]
    for part, members in parts(gang, job):
        placed: dict[str, list[Pod]] = {}
        for pod in members:
            if node := assigned.get(pods.uid(pod)):
                placed.setdefault(node, []).append(pod)
        for pod in running:
            if isinstance(part, Job) or links.shape(pod) == part.shape:
                node = pods.slurm_node(pod)
                placed.setdefault(node, []).append(pod)
        yield part, placed


def sharing(job: Job, members: Sequence[Pod]) -> dict[str, int]:
    """Return for each of these members how many members may share its node, itself included, by UID."""
    if not job.parts:
        return dict.fromkeys(map(pods.uid, members), _shared(job))
    together_by_shape, shape_of = {part.shape: part.together for part in job.parts}, shape_in(job)
    return {pods.uid(pod): together_by_shape.get(shape_of(pod), 1) for pod in members}


def shape_in(job: Job) -> Callable[[Pod], str]:
    """Return the function that makes shapes like those of the components of a job."""
    return links.shape_for(part.shape for part in job.parts)


def _shared(job: Job) -> int:
    """Return how many members share a node of a job that is not heterogeneous."""
    return job.link.together if job.link is not None else 1


def without(gang: Gang, lost: Iterable[Pod]) -> Gang:
    """Return the gang without these pods."""
    uids = {pods.uid(pod) for pod in lost}
    return replace(gang, pods=tuple([pod for pod in gang.pods if pods.uid(pod) not in uids])) if uids else gang


def matching_members(gang: Gang, job: Job) -> tuple[Gang, list[Pod]]:
    """Return the gang without the waiting pods that are not of a shape of the job, and these pods.

    No pod is a stranger while the shapes of the job are not known, and none with the id of a pending job: it got the
    id as a member, and cannot change any more.
    """
    job_shapes = {part.shape for part in job.parts}
    if job.link is not None and job.link.parts == 1:
        job_shapes = {job.link.shape}
    if not job_shapes or "" in job_shapes:
        return gang, []
    allocated = states.is_allocated(job.states)
    candidates = [pod for pod in gang.waiting if allocated or pods.job_id(pod) != job.job_id]
    shape_of = links.shape_for(job_shapes)
    strangers = [pod for pod in candidates if shape_of(pod) not in job_shapes]
    if not strangers:
        return gang, []
    return replace(gang, pods=tuple([pod for pod in gang.pods if pod not in strangers])), strangers


def may_join(pod: Pod, ref: GroupRef) -> bool:
    """Whether a member of the group ``ref`` may join the object that has taken its name.

    Not one that has a node or is deleted, and none whose owner references name the old object: its UID decides.
    """
    owners = pod["metadata"].get("ownerReferences") or ()
    member = links.membership(pod)
    ours = member is not None and member.key == ref and all(owner.get("uid") != ref.uid for owner in owners)
    return ours and pods.is_open(pod) and not pods.is_deleted(pod)


def joined(member: Membership, replacement: Replacement) -> Membership:
    """Return the place of a member in the object that has taken the name of its group.

    The size is the number of pods that the controller of the pod creates; if it is unknown, it is the minimum.
    """
    minimum = max(1, replacement.minimum)
    size = max(member.size, minimum) if member.size > member.minimum else minimum
    alone = size == 1 or not replacement.minimum
    key, completed = replace(member.key, uid=replacement.uid), min(member.completed, size)
    return replace(member, key=key, size=size, minimum=minimum, slot=None, completed=completed, alone=alone)
