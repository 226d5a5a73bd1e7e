"""The PersistentVolumeClaims, PersistentVolumes and StorageClasses of the cluster, indexed. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from bridge.kube.object_store import older

Object = Mapping[str, Any]

T = TypeVar("T")

CLAIM, VOLUME, CLASS = "PersistentVolumeClaim", "PersistentVolume", "StorageClass"


class Storage:
    """The objects as caches and this process's writes show them; the objects are read-only.

    :meth:`changed` is a subscriber of the three caches; it calls ``on_change``. ``version`` increases with each change.
    """

    def __init__(self, objects: Iterable[Object] = (), on_change: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._on_change: Callable[[], None] = lambda: None
        self._claims: dict[tuple[str, str], Object] = {}
        self._volumes: dict[str, Object] = {}
        self._classes: dict[str, Object] = {}
        self._of_class: dict[str, dict[str, Object]] = {}
        self._of_claim: dict[tuple[str, str], dict[str, Object]] = {}
        self._derived: dict[str, tuple[Object, Any]] = {}
        self.version = 0
        for obj in objects:
            self.changed("add", None, obj)
        self._on_change = on_change

    def changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        """Apply a change of a cache: ``kind`` is add, update or delete."""
        obj = new if new is not None else old
        if obj is None:
            return
        # a cache reports an older state than before if etcd was restored from a backup
        is_restored = old is not None and new is not None and older(new, old)
        with self._lock:
            stored = self._stored(obj)
            if kind == "delete":
                if stored is None or stored["metadata"].get("uid") != obj["metadata"].get("uid"):
                    return
                self._remove(stored)
            elif stored is not None and older(obj, stored) and not is_restored:
                return  # the answer to a write of this process is newer than this event
            else:
                if stored is not None:
                    self._remove(stored)
                self._add(obj)
            self.version += 1
        self._on_change()

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a PersistentVolumeClaim."""
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> Object | None:
        """Return a PersistentVolume."""
        return self._volumes.get(name)

    def storage_class(self, name: str) -> Object | None:
        """Return a StorageClass."""
        return self._classes.get(name)

    def derived(self, obj: Object, make: Callable[[Object], T]) -> T:
        """Return ``make(obj)``, computed once for each state of the object; one ``make`` for each kind of object."""
        uid = obj["metadata"]["uid"]
        cached = self._derived.get(uid)
        if cached is None or cached[0] is not obj:
            cached = (obj, make(obj))
            with self._lock:
                self._derived[uid] = cached
        value: T = cached[1]
        return value

    def volumes_of_class(self, name: str) -> list[Object]:
        """Return the PersistentVolumes of a StorageClass; an empty name stands for those without a class."""
        with self._lock:
            return list(self._of_class.get(name, {}).values())

    def volumes_of_claim(self, namespace: str, name: str) -> list[Object]:
        """Return the PersistentVolumes whose ``spec.claimRef`` names the claim."""
        with self._lock:
            return list(self._of_claim.get((namespace, name), {}).values())

    # --- under the lock -----------------------------------------------------------------------------------------------
    def _stored(self, obj: Object) -> Object | None:
        metadata = obj["metadata"]
        if obj["kind"] == CLAIM:
            return self._claims.get((metadata["namespace"], metadata["name"]))
        return (self._volumes if obj["kind"] == VOLUME else self._classes).get(metadata["name"])

    def _add(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if obj["kind"] == CLAIM:
            self._claims[obj["metadata"]["namespace"], name] = obj
        elif obj["kind"] == CLASS:
            self._classes[name] = obj
        else:
            self._volumes[name] = obj
            self._of_class.setdefault(class_name(obj), {})[name] = obj
            if (key := _claim_key(obj)) is not None:
                self._of_claim.setdefault(key, {})[name] = obj

    def _remove(self, obj: Object) -> None:
        self._derived.pop(obj["metadata"].get("uid", ""), None)
        name = obj["metadata"]["name"]
        if obj["kind"] == CLAIM:
            del self._claims[obj["metadata"]["namespace"], name]
        elif obj["kind"] == CLASS:
            del self._classes[name]
        else:
            del self._volumes[name]
            _discard(self._of_class, class_name(obj), name)
            if (key := _claim_key(obj)) is not None:
                _discard(self._of_claim, key, name)


def class_name(obj: Object) -> str:
    """Return the StorageClass of a claim or of a volume, empty for none; the annotation is that of Kubernetes 1.5."""
    from_annotation = (obj["metadata"].get("annotations") or {}).get("volume.beta.kubernetes.io/storage-class")
    return from_annotation if from_annotation is not None else obj["spec"].get("storageClassName") or ""


def _claim_key(volume: Object) -> tuple[str, str] | None:
    ref = volume["spec"].get("claimRef")
    return (ref.get("namespace", ""), ref.get("name", "")) if ref else None


def _discard(index: dict[Any, dict[str, Object]], key: object, name: str) -> None:
    index[key].pop(name, None)
    if not index[key]:
        del index[key]
