"""The members of each group of more than one pod in the cache of pods."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import TypeVar

from bridge import names
from bridge.clock import Clock
from bridge.core import isolation
from bridge.kube.cache import Cache
from bridge.workload import links, pods
from bridge.workload.groups import Membership
from scheduler.pod_group import Group, Pod, make

T = TypeVar("T")


class GroupIndex:
    """The members of each group in the cache, bound ones included. Thread-safe.

    :meth:`changed` is a subscriber of the cache.
    """

    def __init__(self, cache: Cache, clock: Clock) -> None:
        self._cache, self._clock = cache, clock
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
