"""The objects of a cache, and what changes when the API server says something: no I/O, no waiting.

Each method gives the changes to announce, oldest first: ``("add", None, new)``, ``("update", old, new)``,
``("delete", last, None)``. Resource versions are compared as numbers, which Kubernetes guarantees for one kind in one
cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

Object = dict[str, Any]
Change = tuple[str, Object | None, Object | None]
Key = tuple[str, str]


class ObjectStore:
    """Objects by namespace and name, and by UID; safe for many threads.

    Those that ``pick`` says yes to can be had without looking at the others.
    """

    def __init__(self, pick: Callable[[Object], bool] = lambda _: False) -> None:
        self._pick = pick
        self._picked: dict[str, Object] = {}
        self._by_key: dict[Key, Object] = {}
        self._by_uid: dict[str, Object] = {}
        # what subscribers saw last of objects that were changed by an own write since
        self._announced: dict[str, Object] = {}
        self._lock = threading.Lock()

    def get(self, namespace: str, name: str) -> Object | None:
        """Give an object by name."""
        return self._by_key.get((namespace, name))

    def by_uid(self, uid: str) -> Object | None:
        """Give an object by UID."""
        return self._by_uid.get(uid)

    def items(self) -> list[Object]:
        """List all objects."""
        with self._lock:
            return list(self._by_key.values())

    def picked(self) -> dict[str, Object]:
        """Give the objects that were picked, by UID."""
        with self._lock:
            return self._picked.copy()

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, obj: Object) -> list[Change]:
        """Take a new state, unless a newer one is known; another UID under the same name means delete, then add."""
        with self._lock:
            return self._put(obj, force=False)

    def remove(self, obj: Object) -> list[Change]:
        """Take the news that ``obj`` is gone; news about a predecessor of the same name change nothing."""
        with self._lock:
            known = self._by_key.get(_key(obj))
            if known is None or _uid(known) != _uid(obj):
                return []
            self._drop(known)
            return [("delete", obj, None)]

    def replace(self, objects: list[Object], *, rewritten: bool = False) -> list[Change]:
        """Take a whole list: what is missing from it is gone.

        ``rewritten`` says that the server's history went back (etcd restored): then what it says wins, however old.
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
        """Take the answer to an own write, if the object is known and this is newer; announced when the watch says it.

        Gives whether it was taken.
        """
        with self._lock:
            known = self._by_uid.get(_uid(obj))
            if known is None or not older(known, obj):
                return False
            self._announced.setdefault(_uid(obj), known)
            self._set(obj)
            return True

    def _put(self, obj: Object, *, force: bool) -> list[Change]:
        known = self._by_key.get(_key(obj))
        if known is None:
            self._set(obj)
            return [("add", None, obj)]
        if _uid(known) != _uid(obj):
            if older(obj, known) and not force:
                return []
            self._drop(known)
            self._set(obj)
            return [("delete", known, None), ("add", None, obj)]
        if older(known, obj) or (force and older(obj, known)):
            self._set(obj)
            return [("update", self._announced.pop(_uid(obj), known), obj)]
        if older(obj, known):
            return []
        seen = self._announced.pop(_uid(obj), None)
        return [] if seen is None else [("update", seen, known)]

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
        self._announced.pop(_uid(obj), None)


def older(one: Object, other: Object) -> bool:
    """Whether ``one`` is an older state than ``other``."""
    return number(one["metadata"]["resourceVersion"]) < number(other["metadata"]["resourceVersion"])


def number(version: str) -> int:
    """Read a resource version; an empty one is older than all."""
    return int(version or 0)


def _key(obj: Object) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _uid(obj: Object) -> str:
    uid: str = obj["metadata"]["uid"]
    return uid
