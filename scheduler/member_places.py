"""The members of a group in its job: which job is theirs, who is in it, and which node each gets. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.slurm import states
from bridge.slurm.models import Job, JobPart, ObservedJob
from bridge.workload import groups, links, pods, resources
from scheduler import pod_group
from scheduler.pod_group import Group

Pod = Mapping[str, Any]
OTHERS = "Slurm job {} was submitted for pods that request something else than the pods that exist now"
"""All members of a heterogeneous job are present, but a component has none or too few of them."""


def job_of(group: Group, live: Sequence[ObservedJob]) -> ObservedJob:
    """Return the job of the running members, else that of a waiting one, else the oldest."""
    if len(live) == 1:
        return live[0]
    for pod in (*group.running, *group.waiting):
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
    return 1 if resources.host_ports(pod["spec"]) else groups.together(pod["metadata"].get("annotations") or {})


def assign(group: Group, nodes: Sequence[str], size: int, shared: int, exact: bool = False) -> dict[str, str]:
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
    for pod in group.running:  # bound before a crash, or by an earlier decision
        node = pods.slurm_node(pod)
        if node in free:
            free[node] -= 1
    assigned: dict[str, str] = {}
    for pod in group.waiting:
        slot = group.slots[pods.uid(pod)]
        if slot is not None and slot // shared < len(nodes) and free[nodes[slot // shared]] > 0:
            assigned[pods.uid(pod)] = nodes[slot // shared]
            free[nodes[slot // shared]] -= 1
    places = (node for node, room in free.items() for _ in range(room))
    unassigned = (uid for pod in group.waiting if (uid := pods.uid(pod)) not in assigned)
    return {**assigned, **dict(zip(unassigned, places, strict=False))}


def assign_places(group: Group, job: Job, first: Pod | None = None) -> dict[str, str]:
    """Return the Slurm node for each waiting member as :func:`assign`, also on the components of a heterogeneous job.

    ``first`` gets the place of another member if it would have none: without it, no member is bound.

    A member gets a place only in the component for its shape. Two components share no node, so a running member is in
    the component that has its node. The slot of a member in a component is the rank of its slot among those of its
    shape.
    """
    assigned = _assign_places(group, job)
    if first is None or pods.uid(first) in assigned:
        return assigned
    shape_of = shape_in(job)
    alike = [pods.uid(pod) for pod in group.waiting if pods.uid(pod) in assigned and shape_of(pod) == shape_of(first)]
    return {pods.uid(first): assigned.pop(alike[-1]), **assigned} if alike else {}


def _assign_places(group: Group, job: Job) -> dict[str, str]:
    if not job.parts:
        size = job.link.size if job.link is not None else group.size
        exact = group.minimum >= group.size  # as the request: else the number of tasks follows from the nodes
        return assign(group, job.nodes, size, _shared(job), exact)
    shape_of = shape_in(job)
    shapes = {pods.uid(pod): shape_of(pod) for pod in group.pods}
    assigned: dict[str, str] = {}
    for part in job.parts:
        component_uids = {uid for uid, shape in shapes.items() if shape == part.shape}
        component_slots = sorted(
            {slot for uid, slot in group.slots.items() if uid in component_uids and slot is not None}
        )
        ranks: dict[int | None, int] = {slot: rank for rank, slot in enumerate(component_slots)}
        slots = {uid: ranks.get(slot) for uid, slot in group.slots.items()}
        members = tuple([pod for pod in group.pods if pods.is_bound(pod) or pods.uid(pod) in component_uids])
        component_group = replace(group, pods=members, slots=slots)
        assigned |= assign(component_group, part.nodes, part.members, part.together, exact=True)
    return assigned


def choose_members(group: Group) -> tuple[Group, list[Pod]]:
    """Return the group with the waiting members for which the next job is submitted, and the other waiting pods.

    Any user of the namespace may label a pod as a member. If at least as many waiting members as the group needs
    request the same, the job is for these. Otherwise it is for members of different shapes: one for each slot, and no
    more than the group should have. Those of a shape that more members have come first, then the older ones.
    """
    waiting = group.waiting
    if len(waiting) == 1:
        return group, []
    shapes = [links.shape(pod) for pod in waiting]
    counts, succeeded = Counter(shapes), group.succeeded()
    common_shape, count = counts.most_common(1)[0]
    if count == len(waiting):
        return group, []
    if count >= group.minimum - succeeded:
        kept = {pods.uid(pod) for pod, shape in zip(waiting, shapes, strict=True) if shape == common_shape}
    else:
        by_uid = {pods.uid(pod): shape for pod, shape in zip(waiting, shapes, strict=True)}
        kept = _one_for_each_slot(group, by_uid, counts, group.size - succeeded)
    others = [pod for pod in waiting if pods.uid(pod) not in kept]
    return pod_group.without(group, others), others


def differ_without_slots(group: Group) -> bool:
    """Whether the waiting members request different resources, and any of them has no slot."""
    waiting = group.waiting
    if len(waiting) == 1:
        return False
    return any(group.slots[pods.uid(pod)] is None for pod in waiting) and len(links.by_shape(waiting)) > 1


def _one_for_each_slot(group: Group, shapes: Mapping[str, str], counts: Mapping[str, int], room: int) -> set[str]:
    """Return the UIDs of at most ``room`` waiting members; ``counts`` are the numbers of members of each shape."""

    def key(pod: Pod) -> tuple[int, str, str]:
        metadata = pod["metadata"]
        return -counts[shapes[pods.uid(pod)]], metadata.get("creationTimestamp") or "", metadata["name"]

    kept: set[str] = set()
    taken_slots: set[int] = set()
    for pod in sorted(group.waiting, key=key):
        slot = group.slots[pods.uid(pod)]
        if len(kept) < room and (slot is None or slot not in taken_slots):
            kept.add(pods.uid(pod))
            taken_slots |= {slot} if slot is not None else set()
    return kept


def parts(group: Group, job: Job) -> list[tuple[Job | JobPart, list[Pod]]]:
    """Return the components of a job with their waiting members, an ordinary job with all of them.

    Without any if the components have not been read yet.
    """
    if job.link is None or job.link.parts == 1:
        return [(job, group.waiting)]
    members = links.by_shape(group.waiting, shape_in(job))
    return [(part, [*members.get(part.shape, ())]) for part in job.parts]


def by_node(
    group: Group, job: Job, assigned: Mapping[str, str]
) -> Iterable[tuple[Job | JobPart, Mapping[str, Sequence[Pod]]]]:
    """Return the job, or each component, with its members by Slurm node: those assigned to one, and running ones."""
    running = [pod for pod in group.running if pods.job_id(pod) == job.job_id]
    for part, members in parts(group, job):
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


def matching_members(group: Group, job: Job) -> tuple[Group, list[Pod]]:
    """Return the group without the waiting pods that are not of a shape of the job, and these pods.

    No pod is a stranger while the shapes of the job are not known, and none with the id of a pending job: it got the
    id as a member, and cannot change any more.
    """
    job_shapes = {part.shape for part in job.parts}
    if job.link is not None and job.link.parts == 1:
        job_shapes = {job.link.shape}
    if not job_shapes or "" in job_shapes:
        return group, []
    allocated = states.is_allocated(job.states)
    candidates = [pod for pod in group.waiting if allocated or pods.job_id(pod) != job.job_id]
    shape_of = links.shape_for(job_shapes)
    strangers = [pod for pod in candidates if shape_of(pod) not in job_shapes]
    if not strangers:
        return group, []
    return pod_group.without(group, strangers), strangers
