"""The pods that were created under this leadership: no former leader can have submitted a job for them."""

from __future__ import annotations

import logging
import math
from collections.abc import Set

from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.object_store import Object, number
from bridge.logs import kv
from bridge.workload import pods

log = logging.getLogger(__name__)


class NewPods:
    """Collects the UIDs of new pods. :meth:`changed` is a subscriber of ``cache``, the cache of pods.

    The API server increases the resource version with each write. So an event that adds a pod with a higher version
    than an answer that was requested under this leadership is about a pod created after this request. A pod from a list
    does not count, because its version is that of its last change.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._from = math.inf
        self._uids: set[str] = set()

    def begin(self) -> None:
        """Run when this process becomes the leader. If the API server does not answer, no pod counts as new."""
        try:
            self._from = self._cache.request_version() or math.inf
        except BridgeError as error:
            log.warning("resource version of pods cannot be read", extra=kv(error=error))

    def changed(self, kind: str, old: Object | None, new: Object | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete."""
        if kind == "add" and new is not None and not self._cache.listing:
            if number(new["metadata"].get("resourceVersion", "")) > self._from:
                self._uids.add(pods.uid(new))
        elif kind == "delete" and old is not None:
            self._uids.discard(pods.uid(old))

    @property
    def uids(self) -> Set[str]:
        """The UIDs of the new pods that still exist. The set changes with the cache."""
        return self._uids
