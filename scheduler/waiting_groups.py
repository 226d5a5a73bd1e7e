"""The groups of pods in the cache, and the objects of those whose members wait.

Users correct ``minMember``, or delete a PodGroup and create it again, while its pods wait. Admission writes the minimum
and the UID of the object on a pod when it is created. The objects of groups of which no member runs are read again from
time to time. The present minimum counts until the job is submitted. If another object has the name of the group, its
members join that one (:class:`scheduler.group_actions.Join`): else they wait for members that are created for the other
object.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from bridge import names
from bridge.clock import Clock
from bridge.core import isolation
from bridge.core.workers import Workers
from bridge.errors import KubeForbiddenError
from bridge.kube.cache import Cache
from bridge.kube.discovery import get_if_served
from bridge.kube.kube_client import KubeClient
from bridge.logs import kv
from bridge.workload import links, pods
from bridge.workload.groups import InvalidGroupError, Membership
from bridge.workload.kinds import pod_group_kinds
from scheduler.group_states import GroupStates
from scheduler.pod_group import Group, Pod, Replacement, make

log = logging.getLogger(__name__)

T = TypeVar("T")

PERIOD = 10.0
"""Seconds between two readings of a group that lacks members."""
LONG_PERIOD = 60.0
"""Seconds between two readings of a group whose members wait for Slurm."""
GAP = 0.1
"""Least seconds between the readings of two groups: thousands of waiting ones cost the API server little."""
_KINDS = {kind.name: kind for kind in (pod_group_kinds.POD_GROUP, pod_group_kinds.WORKLOAD)}
_NO_POD: Mapping[str, Any] = {"metadata": {}, "spec": {}}


class WaitingGroups:
    """The groups, with the members that the cache has, bound ones included. Thread-safe, except for :meth:`idle`.

    :meth:`changed` is a subscriber of the cache. ``has_call`` returns whether a call of the workers for the key of a
    group or for a UID is queued or running: it alone writes the state.
    """

    def __init__(
        self, cache: Cache, kube: KubeClient, clock: Clock, states: GroupStates, has_call: Callable[[str], bool]
    ) -> None:
        self._cache, self._clock, self._states = cache, clock, states
        self.has_call, self._objects = has_call, GroupObjects(kube, clock)
        self._lock = threading.Lock()
        self._members: dict[str, dict[str, tuple[Membership, float]]] = {}
        self._alone: dict[str, dict[str, None]] = {}
        self.uids: dict[str, str] = {}
        """The key of the group of each member, by UID."""

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete.

        A member may get a job of its own, or join another group.
        """
        pod = new if new is not None else old
        if pod is None or (kind == "update" and old is not None and _group_text(old) == _group_text(pod)):
            return
        before = links.group_of(old) if old is not None else None
        member = links.group_of(pod)
        if before is None and member is None:
            return
        uid = pods.uid(pod)
        with self._lock:
            for former in (before, member):
                if former is not None:
                    self.uids.pop(uid, None)
                    _discard(self._members, former.key.key, uid)
                    _discard(self._alone, former.key.key, uid)
            if member is None or kind == "delete":
                return
            if member.alone:
                self._alone.setdefault(member.key.key, {})[uid] = None
            else:
                self.uids[uid] = member.key.key
                self._members.setdefault(member.key.key, {})[uid] = member, self._clock.monotonic()

    def members(self, keys: Iterable[str]) -> set[str]:
        """Return the UIDs of the members of the groups with these keys or with a pod of these UIDs."""
        with self._lock:
            members = (self._members.get(self.uids.get(key, key), ()) for key in keys)
            return {uid for uids in members for uid in uids}

    def is_binding(self, uid: str) -> bool:
        """Whether a bind of the pod, or of its group, is in progress or done."""
        key = self.uids.get(uid)
        has_call = self.has_call(uid) or (key is not None and self.has_call(key))
        return has_call or self._states.of(uid).bound_at is not None

    def idle(self, keys: Iterable[str], has_job: Callable[[str], bool], workers: Workers) -> list[Group]:
        """Return the groups with these keys without a call of the workers, as their objects are now.

        ``has_job``: whether a key has a job in Slurm. The workers read an object, if one is due. For the loop alone.
        """
        groups = [self._objects.applied(group) for group in self.groups(key for key in keys if not self.has_call(key))]
        self._objects.request(groups, has_job, workers)
        return [group for group in groups if not any(self.is_binding(pods.uid(pod)) for pod in group.open)]

    def forget_all_but_present(self) -> None:
        """Forget the objects of groups without pods. For the loop alone."""
        self._objects.forget_all_but(self.keys())

    def groups(self, keys: Iterable[str]) -> list[Group]:
        """Return the groups with these keys as the cache has them now."""
        groups = []
        with self._lock:
            chosen = [
                (list(self._members[key].items()), [*self._alone.get(key, ())]) for key in keys if key in self._members
            ]
        for entries, alone_uids in chosen:
            present = [(pod, member) for uid, (member, _) in entries if (pod := self._cache.by_uid(uid)) is not None]
            if present:
                arrivals = {uid: at for uid, (_, at) in entries}
                since = (arrivals[pods.uid(pod)] for pod, _ in present if not pods.is_finished(pod))
                alone = [pod for uid in alone_uids if (pod := self._cache.by_uid(uid)) is not None]
                try:
                    groups.append(make(present, min(since, default=-math.inf), alone))
                except Exception as error:
                    isolation.report("scheduler", present[0][1].key.key, error)
        return groups

    def keys(self) -> set[str]:
        """Return the keys of all groups that have a pod."""
        with self._lock:
            return set(self._members)


def _group_text(pod: Pod) -> str | None:
    return (pod["metadata"].get("annotations") or {}).get(names.GROUP)


def _discard(groups: dict[str, dict[str, T]], key: str, uid: str) -> None:
    """Remove a pod from the pods of a group, and the group with its last pod."""
    members = groups.get(key, {})
    members.pop(uid, None)
    if not members:
        groups.pop(key, None)


class GroupObjects:
    """Reads the objects with the workers of the loop, and changes groups. Used by the loop alone."""

    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._minimums: dict[str, int] = {}
        self._replaced: dict[str, Replacement] = {}
        self._read_at: dict[str, float] = {}
        self._next = -math.inf
        self._forbidden = False

    def request(self, groups: Collection[Group], has_job: Callable[[str], bool], workers: Workers) -> None:
        """Read the object of the next waiting group, if one is due; ``has_job``: whether a key has a job in Slurm."""
        now = self._clock.monotonic()
        if self._forbidden or now < self._next:
            return
        since = {group.key: now - self._read_at.get(group.key, -math.inf) for group in groups}
        due = [group for group in groups if self._is_due(group, since[group.key], has_job)]
        if due:
            # the longest unread one: else a user with hundreds of groups would keep those of others from their turn
            group = max(due, key=lambda group: since[group.key])
            self._read_at[group.key], self._next = now, now + GAP
            workers.submit(f"object of {group.key}", partial(self._read, group), 9, kind="read_group")

    @staticmethod
    def _is_due(group: Group, waited: float, has_job: Callable[[str], bool]) -> bool:
        """Whether the object of a group that was read ``waited`` seconds ago is to be read again."""
        if waited < PERIOD or group.ref is None or group.ref.kind not in _KINDS or not group.waiting or group.running:
            return False
        return waited >= LONG_PERIOD or (not has_job(group.key) and _lacks_members(group))

    def applied(self, group: Group) -> Group:
        """Return the group with the present minimum of its group, and with the object that has taken its name."""
        replacement = self._replaced.get(group.key)
        if replacement is not None:
            group = replace(group, replacement=replacement)
        minimum = self._minimums.get(group.key, group.minimum)
        if minimum == group.minimum:
            return group
        # without a controller that says how many pods it creates, the size is the minimum
        size = group.size if group.size > group.minimum else max(minimum, len(group.waiting) + group.succeeded())
        return replace(group, minimum=minimum, size=max(size, minimum))

    def forget_all_but(self, keys: Set[str]) -> None:
        """Forget the groups without pods."""
        for values_by_key in (self._minimums, self._replaced, self._read_at):
            for key in values_by_key.keys() - keys:
                values_by_key.pop(key, None)

    def _read(self, group: Group) -> None:
        if (ref := group.ref) is None:
            return
        kind = _KINDS[ref.kind]
        for resource in kind.resources:
            try:
                owner = get_if_served(self._kube, resource, ref.namespace, ref.name)
            except KubeForbiddenError as error:
                self._forbidden = True
                log.warning("PodGroups may not be read: their changes apply to new pods only", extra=kv(error=error))
                return
            if owner is None:
                continue
            try:
                place = kind.place(_NO_POD, owner, False, 0)
            except InvalidGroupError:
                return  # as for new pods of the group, which admission refuses
            uid = str(owner["metadata"].get("uid") or "")
            if uid == ref.uid:
                self._replaced.pop(ref.key, None)
                if place is not None:
                    self._minimums[ref.key] = place.minimum
            elif uid:
                self._replaced[ref.key] = Replacement(uid, place.minimum if place is not None else 0)
            return


def _lacks_members(group: Group) -> bool:
    """Whether a group waits for more members."""
    return len(group.waiting) + group.succeeded() < group.minimum
