"""A group: the pods that share one Slurm job, as the scheduler sees them. A bare pod is a group of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.core import isolation
from bridge.slurm.models import GroupRef, Job
from bridge.workload import links, pods
from bridge.workload.groups import Membership

Pod = Mapping[str, Any]
_NONE: list[Pod] = []
"""One list for all groups: a decision makes thousands of them, and the garbage collector visits each list."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """The object that has the name of a group, but another UID than the group: a user has created it again.

    ``minimum`` is 0 if it lets each pod start alone.
    """

    uid: str
    minimum: int


@dataclass  # never changed; not frozen, because a decision makes thousands of groups: 2 us each instead of 5
class Group:
    """A group and its pods that the cache has, ended ones included, in the order of their slots and names.

    ``key`` is that of the group's job, state and worker. ``ref`` names the object behind a group that may have more
    than one pod; a bare pod is a group of one, has none, and its key is its UID. The job starts with at least
    ``minimum`` of ``size`` members. ``slots`` are the slots of the pods by UID, ``None`` for a pod without one.
    ``completed`` is the number of members that had succeeded when the newest pods were created; their own pods may be
    deleted. ``alone`` are the members with a job of their own. ``present_since`` is the monotonic time since which this
    process knows the oldest of the members that have not ended. ``replacement`` is the object that the waiting members
    join.
    """

    key: str
    ref: GroupRef | None
    size: int
    minimum: int
    pods: tuple[Pod, ...]
    slots: Mapping[str, int | None]
    completed: int = 0
    present_since: float = -math.inf
    alone: tuple[Pod, ...] = ()
    replacement: Replacement | None = None

    open: list[Pod] = field(init=False, repr=False, compare=False)
    """The members that are neither bound nor ended, deleted ones included."""
    waiting: list[Pod] = field(init=False, repr=False, compare=False)
    """The members to be bound."""
    gated: list[Pod] = field(init=False, repr=False, compare=False)
    """The members that must not be scheduled yet."""
    deleted: list[Pod] = field(init=False, repr=False, compare=False)
    """The open members that are deleted."""
    running: list[Pod] = field(init=False, repr=False, compare=False)
    """The members that are bound and have not ended."""

    def __post_init__(self) -> None:
        present = [pod for pod in self.pods if not pods.is_finished(pod)]
        self.running = [pod for pod in present if pods.is_bound(pod)] or _NONE
        self.open = [pod for pod in present if not pods.is_bound(pod)] if self.running else present
        self.deleted = [pod for pod in self.open if pods.is_deleted(pod)] or _NONE
        kept = [pod for pod in self.open if not pods.is_deleted(pod)] if self.deleted else self.open
        self.gated = [pod for pod in kept if pods.is_gated(pod)] or _NONE
        self.waiting = [pod for pod in kept if not pods.is_gated(pod)] if self.gated else kept

    @property
    def first(self) -> Pod:
        """The pod that gets the Events about the group's job."""
        return (self.waiting or self.open or self.running or self.pods)[0]

    def succeeded(self, job: Job | None = None) -> int:
        """Return the number of members that have succeeded in another job than ``job``: not needed again.

        For a job, the members whose pods are deleted count if they had succeeded before its submission. Members that
        run in a job of their own count too.
        """
        before = self.completed if job is None else job.link.completed if job.link is not None else 0
        ended = [pod for pod in self.pods if (pod.get("status") or {}).get("phase") == "Succeeded"]
        others = [pod for pod in self.alone if _runs(pod) or (pod.get("status") or {}).get("phase") == "Succeeded"]
        elsewhere = ended if job is None else [pod for pod in ended if pods.job_id(pod) != job.job_id]
        return max(before, len(elsewhere) + len(others))

    def started(self, job_id: int) -> int:
        """Return the number of members that were bound to a node of the job, ended ones included."""
        return len(self._bound(job_id))

    def has_started(self, job_id: int, placed: Iterable[Pod]) -> bool:
        """Whether the waiting members with a place are successors of members that have run in the job.

        They are if all were created after a member was bound to a node of the job, which was submitted later than its
        first members were created. Times are in whole seconds, so a member with a job of its own tells, too: it gets
        one only when the minimum runs.
        """
        bound = self._bound(job_id)
        return bool(bound and self.alone) or pods.bound_before(bound, placed)

    def _bound(self, job_id: int) -> list[Pod]:
        return [pod for pod in self.pods if pods.is_bound(pod) and pods.job_id(pod) == job_id]


def _runs(pod: Pod) -> bool:
    return pods.is_bound(pod) and not pods.is_finished(pod) and not pods.is_deleted(pod)


def make(
    members: Iterable[tuple[Pod, Membership]], present_since: float = -math.inf, alone: Sequence[Pod] = ()
) -> Group:
    """Return the group of at least one member."""
    entries = list(members)
    size, minimum = links.size_and_minimum(entries)
    slots = {pods.uid(pod): member.slot for pod, member in entries}
    entries.sort(key=lambda entry: (entry[1].slot is None, entry[1].slot or 0, entry[0]["metadata"]["name"]))
    membership = entries[0][1]
    return Group(
        key=membership.key.key,
        ref=membership.key,
        size=size,
        minimum=minimum,
        pods=tuple(pod for pod, _ in entries),
        slots=slots,
        completed=max(member.completed for _, member in entries),
        present_since=present_since,
        alone=tuple(alone),
    )


def of_one(pod: Pod) -> Group:
    """Return the group of a bare pod, or of a member with a job of its own."""
    uid = pods.uid(pod)
    return Group(uid, None, 1, 1, (pod,), {uid: None})


def of_each(bare_pods: Iterable[Pod]) -> Iterator[Group]:
    """Yield the group of each pod; one that fails is reported and left out."""
    for pod in bare_pods:
        try:
            yield of_one(pod)
        except Exception as error:
            isolation.report("scheduler", pods.key(pod), error)


def without(group: Group, lost: Iterable[Pod]) -> Group:
    """Return the group without these pods."""
    uids = {pods.uid(pod) for pod in lost}
    return replace(group, pods=tuple([pod for pod in group.pods if pods.uid(pod) not in uids])) if uids else group


def may_join(pod: Pod, ref: GroupRef) -> bool:
    """Whether a member of the group ``ref`` may join the object that has taken its name.

    Not one that has a node or is deleted, and none whose owner references name the old object: its UID decides.
    """
    owners = pod["metadata"].get("ownerReferences") or ()
    member = links.membership(pod)
    ours = member is not None and member.key == ref and all(owner.get("uid") != ref.uid for owner in owners)
    return ours and pods.is_open(pod) and not pods.is_deleted(pod)


def is_replaced(group: Group) -> bool:
    """Whether another object has the name of the group, and an open member may join it."""
    ref = group.ref
    if ref is None or group.replacement is None or group.running:
        return False
    return any(may_join(pod, ref) for pod in group.open)


def joined(member: Membership, replacement: Replacement) -> Membership:
    """Return the place of a member in the object that has taken the name of its group.

    The size is the number of pods that the controller of the pod creates; if it is unknown, it is the minimum.
    """
    minimum = max(1, replacement.minimum)
    size = max(member.size, minimum) if member.size > member.minimum else minimum
    alone = size == 1 or not replacement.minimum
    key, completed = replace(member.key, uid=replacement.uid), min(member.completed, size)
    return replace(member, key=key, size=size, minimum=minimum, slot=None, completed=completed, alone=alone)
