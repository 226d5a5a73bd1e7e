"""The objects of a cache, and the changes that lists and events cause. No I/O.

Each method returns the changes for subscribers, oldest first: ``("add", None, new)``, ``("update", old, new)``,
``("delete", last, None)``. Resource versions are compared as numbers; Kubernetes allows this within one kind of object
in one cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

Object = dict[str, Any]
Change = tuple[str, Object | None, Object | None]
Key = tuple[str, str]


def is_repeated(old: Object | None, new: Object | None) -> bool:
    """Whether two states of an object differ at most in the resource version; false if there is no such object."""
    if old is None or new is None or old.keys() != new.keys():
        return False
    if any(old[field] != new[field] for field in old if field != "metadata"):
        return False
    return {**old["metadata"], "resourceVersion": ""} == {**new["metadata"], "resourceVersion": ""}


class ObjectStore:
    """Objects by namespace and name, and by UID; safe for many threads.

    :meth:`picked` returns the objects that ``pick`` selects, without iterating over the others.
    """

    def __init__(self, pick: Callable[[Object], bool] = lambda _: False) -> None:
        self._pick = pick
        self._picked: dict[str, Object] = {}
        self._by_key: dict[Key, Object] = {}
        self._by_uid: dict[str, Object] = {}
        # by UID: the state that subscribers have, of objects that apply() has changed since
        self._delivered: dict[str, Object] = {}
        self._lock = threading.Lock()

    def get(self, namespace: str, name: str) -> Object | None:
        """Return an object by name (``namespace`` is empty for cluster-scoped kinds)."""
        return self._by_key.get((namespace, name))

    def by_uid(self, uid: str) -> Object | None:
        """Return an object by UID."""
        return self._by_uid.get(uid)

    def items(self) -> list[Object]:
        """List all objects."""
        with self._lock:
            return list(self._by_key.values())

    def picked(self) -> dict[str, Object]:
        """Return the picked objects by UID."""
        with self._lock:
            return self._picked.copy()

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, obj: Object) -> list[Change]:
        """Store a state unless a newer one is stored. A different UID of the same name means delete, then add."""
        with self._lock:
            return self._put(obj, force=False)

    def remove(self, obj: Object) -> list[Change]:
        """Remove ``obj``; nothing changes if the stored object of this name has another UID."""
        with self._lock:
            stored = self._by_key.get(_key(obj))
            if stored is None or _uid(stored) != _uid(obj):
                return []
            self._drop(stored)
            return [("delete", obj, None)]

    def replace(self, objects: list[Object], *, rewritten: bool = False) -> list[Change]:
        """Store a complete list and remove all objects that are not in it.

        With ``rewritten``, resource versions have decreased (etcd was restored), so older states replace newer ones.
        """
        with self._lock:
            listed = {_uid(obj) for obj in objects}
            gone = [obj for uid, obj in self._by_uid.items() if uid not in listed]
            changes: list[Change] = []
            for obj in gone:
                self._drop(obj)
                changes.append(("delete", obj, None))
            for obj in objects:
                changes += self._put(obj, force=rewritten)
            return changes

    def apply(self, obj: Object) -> bool:
        """Store the answer to a write of this process, if the object is stored and older; return whether it was.

        The change is returned by :meth:`put` when the watch delivers it.
        """
        with self._lock:
            stored = self._by_uid.get(_uid(obj))
            if stored is None or not older(stored, obj):
                return False
            self._delivered.setdefault(_uid(obj), stored)
            self._set(obj)
            return True

    def _put(self, obj: Object, *, force: bool) -> list[Change]:
        stored = self._by_key.get(_key(obj))
        if stored is None:
            self._set(obj)
            return [("add", None, obj)]
        if _uid(stored) != _uid(obj):
            # a late state of the object that had this name before the stored one
            if older(obj, stored) and not force:
                return []
            self._drop(stored)
            self._set(obj)
            return [("delete", stored, None), ("add", None, obj)]
        if older(stored, obj) or (force and older(obj, stored)):
            self._set(obj)
            return [("update", self._delivered.pop(_uid(obj), stored), obj)]
        if older(obj, stored):
            return []
        # the watch delivers the state that apply() has stored: subscribers get the change now
        delivered = self._delivered.pop(_uid(obj), None)
        return [] if delivered is None else [("update", delivered, stored)]

    def _set(self, obj: Object) -> None:
        self._by_key[_key(obj)] = obj
        self._by_uid[_uid(obj)] = obj
        if self._pick(obj):
            self._picked[_uid(obj)] = obj
        else:
            self._picked.pop(_uid(obj), None)

    def _drop(self, obj: Object) -> None:
        del self._by_key[_key(obj)]
        del self._by_uid[_uid(obj)]
        self._picked.pop(_uid(obj), None)
        self._delivered.pop(_uid(obj), None)


def older(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether ``one`` is an older state than ``other``."""
    return number(one["metadata"]["resourceVersion"]) < number(other["metadata"]["resourceVersion"])


def number(version: str) -> int:
    """Convert a resource version to a number; the empty version is 0."""
    return int(version or 0)


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"]["uid"]
    return uid
