"""The devices that are allocated to the ResourceClaims of the cluster. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.kube.cache import Cache
from bridge.kube.object_store import Object, number, older
from bridge.kube.prune import IDENTITY, pick
from bridge.workload.devices import claimed_devices

DeviceKey = tuple[str, str, str]
STALE = 60.0
"""Seconds without a confirmation of the API server after which the cache is not used."""


class TakenDevices:
    """An index of the allocations, from a cache of all claims and from the writes of this process.

    Without it, each bind of a pod with claims would list all claims of the cluster. :meth:`changed` is a subscriber of
    the cache. Of a write and an event about one claim, the newer one counts.
    """

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._versions: dict[str, int] = {}
        self._keys: dict[str, tuple[DeviceKey, ...]] = {}
        self._owners: dict[DeviceKey, str] = {}
        if cache is not None:
            cache.subscribe(self.changed)

    @property
    def is_current(self) -> bool:
        """Whether the index shows all claims."""
        return self._cache is not None and self._cache.synced and self._cache.age() < STALE

    def changed(self, kind: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete."""
        claim = new if new is not None else old
        if claim is None:
            return
        with self._lock:
            if kind == "delete":
                uid = str(claim["metadata"]["uid"])
                self._set(uid, ())
                self._versions.pop(uid, None)
            else:
                # lower than before: etcd was restored from a backup
                self._apply(claim, restored=old is not None and older(claim, old))

    def written(self, claim: Mapping[str, Any]) -> None:
        """Apply the answer to a write of this process, which the cache shows later."""
        with self._lock:
            self._apply(claim)

    def of(self, keys: Iterable[DeviceKey]) -> dict[DeviceKey, str]:
        """Return those of the devices that are allocated, with the UIDs of their claims."""
        with self._lock:
            return {key: self._owners[key] for key in keys if key in self._owners}

    # --- under the lock -----------------------------------------------------------------------------------------------
    def _apply(self, claim: Mapping[str, Any], *, restored: bool = False) -> None:
        uid, version = str(claim["metadata"]["uid"]), number(claim["metadata"].get("resourceVersion", ""))
        if version < self._versions.get(uid, 0) and not restored:
            return  # a write of this process is newer
        self._versions[uid] = version
        self._set(uid, tuple(claimed_devices.results(claim)))

    def _set(self, uid: str, keys: tuple[DeviceKey, ...]) -> None:
        for key in self._keys.pop(uid, ()):
            # the event of the claim that has the device now may have come first
            if self._owners.get(key) == uid:
                del self._owners[key]
        if keys:
            self._keys[uid] = keys
            self._owners.update(dict.fromkeys(keys, uid))


def prune(claim: Object) -> Object:
    """Keep the identity of a ResourceClaim and the devices that are allocated to it."""
    kept: Object = {"metadata": pick(claim["metadata"], IDENTITY)}
    allocated = (((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results")
    return {**kept, "status": {"allocation": {"devices": {"results": allocated}}}} if allocated else kept
