"""One kind of object, kept up to date: a list, then a watch, for as long as the process lives.

The loop never trusts a connection: a watch on which neither event nor bookmark came within ``idle_timeout`` is begun
again, and every answer but a healthy watch is followed by a back-off, since a tight loop against an API server in
trouble keeps it there.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable

from bridge.backoff import Backoff
from bridge.clock import Clock, SystemClock
from bridge.errors import KubeError, KubeGoneError
from bridge.kube.client import KubeClient
from bridge.kube.object_store import Change, Object, ObjectStore, number
from bridge.kube.resources import Resource
from bridge.kube.responses import IDLE
from bridge.logs import kv
from bridge.metrics import CACHE_OBJECTS, WATCH_RESTARTS

log = logging.getLogger(__name__)

Subscriber = Callable[[str, Object | None, Object | None], None]

PAGE = 500
# The server sends a bookmark about every minute, and one 2 s before the end of a watch. A watch that the server ends
# after this share of the idle time-out therefore never looks idle, however little happens.
WATCH_SHARE = 0.75
_BACKOFF = Backoff(first=0.5, limit=30.0, jitter=0.5)
_CLOCK = SystemClock()


class Cache:
    """A view of one kind, optionally of one namespace or selection. Objects in it are read-only and shared.

    ``prune`` gets every object and gives what is kept of it (``metadata.managedFields`` are gone already). ``pick``
    says which of these :meth:`picked` gives.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        name: str,
        prune: Callable[[Object], Object] = lambda obj: obj,
        pick: Callable[[Object], bool] = lambda _: False,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        idle_timeout: float = 60.0,
        clock: Clock = _CLOCK,
        backoff: Backoff = _BACKOFF,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self._client = client
        self._path = resource.path(namespace)
        self._prune = prune
        self._selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selectors = {key: value for key, value in self._selectors.items() if value}
        self.idle_timeout = idle_timeout
        self._clock = clock
        self._backoff = backoff
        self._rand = rand
        self._store = ObjectStore(pick)
        self._objects = CACHE_OBJECTS.labels(name)
        self._version = ""  # where the next watch begins; empty: list first
        self._highest = ""
        self._confirmed = -math.inf
        self._synced = threading.Event()
        self._subscribers: list[Subscriber] = []
        self._delivery = threading.RLock()  # a change and its announcement are one step for whoever subscribes

    @property
    def synced(self) -> bool:
        """Whether the first list is complete and announced."""
        return self._synced.is_set()

    def wait_synced(self, timeout: float) -> bool:
        """Wait for the first list, ``timeout`` seconds at most."""
        return self._synced.wait(timeout)

    def age(self) -> float:
        """Seconds since the API server last confirmed this view; infinite before it ever did.

        It does so with each event, bookmark and list, and by ending a quiet watch when its time is up: so this stays
        below the idle time-out while all is well.
        """
        return self._clock.monotonic() - self._confirmed

    def get(self, namespace: str, name: str) -> Object | None:
        """Give an object by name (``namespace`` is empty for cluster-scoped kinds)."""
        return self._store.get(namespace, name)

    def by_uid(self, uid: str) -> Object | None:
        """Give an object by UID."""
        return self._store.by_uid(uid)

    def items(self) -> list[Object]:
        """List all objects."""
        return self._store.items()

    def picked(self) -> dict[str, Object]:
        """Give the picked objects by UID, at no cost for the others."""
        return self._store.picked()

    def __len__(self) -> int:
        return len(self._store)

    def apply(self, obj: Object) -> None:
        """Take the answer to an own write, so that the next look sees it, if it is newer than what is known.

        Subscribers hear of it when the watch tells, so always from the cache's thread.
        """
        self._store.apply(self._kept(obj))

    def subscribe(self, fn: Subscriber) -> None:
        """Call ``fn(type, old, new)`` for each change from now on, and at once with "add" for what is there.

        ``type`` is "add", "update" or "delete". ``fn`` must be quick and must not raise: it runs in the cache's thread.
        """
        with self._delivery:
            for obj in self._store.items():
                fn("add", None, obj)
            self._subscribers.append(fn)

    def run(self, stop: threading.Event) -> None:
        """Keep the view up to date until ``stop`` is set (and the current watch has ended)."""
        failures = 0
        while not stop.is_set():
            begun = self._clock.monotonic()
            confirmed = self._confirmed
            least = 0.0
            try:
                if not self._version:
                    self._list(stop)
                    confirmed = self._confirmed
                self._watch(stop)
                reason = "ended"
            except KubeGoneError:
                self._version = ""
                reason = "gone"
            except KubeError as error:
                reason = "idle" if error.kube_reason == IDLE else "error"
                least = min(error.retry_after or 0.0, self._backoff.limit)
                if not stop.is_set():
                    log.warning("watch interrupted", extra=kv(cache=self.name, reason=reason, error=str(error)))
            if stop.is_set():
                return
            WATCH_RESTARTS.labels(self.name, reason).inc()
            if reason == "ended" and self._clock.monotonic() - begun >= self.idle_timeout * WATCH_SHARE / 2:
                self._confirm()  # where nothing at all happens, the server has no bookmark to send either
            failures = 0 if self._confirmed > confirmed else failures + 1
            # one failure is the rule when a server restarts; back-off begins with the second in a row
            pause = self._backoff.delay(failures - 1, self._rand) if failures > 1 else 0.0
            stop.wait(max(pause, least))

    def drop_metrics(self) -> None:
        """Remove what metrics say of this cache; for one whose ``run`` is to end before the process."""
        CACHE_OBJECTS.remove_by_labels({"kind": self.name})
        WATCH_RESTARTS.remove_by_labels({"kind": self.name})

    def _list(self, stop: threading.Event) -> None:
        objects: list[Object] = []
        token = ""
        while True:
            params: dict[str, str | int | bool] = {**self._selectors, "limit": PAGE}
            if token:
                params["continue"] = token
            page = self._client.get(self._path, params)
            if "resourceVersion" not in (page.get("metadata") or {}):
                raise KubeError(f"GET {self._path}: the answer is not a list")
            kind = {"apiVersion": page.get("apiVersion", ""), "kind": page.get("kind", "").removesuffix("List")}
            objects += [self._kept({**kind, **item}) for item in page.get("items") or ()]
            token = page["metadata"].get("continue") or ""
            if not token:
                break
            if stop.is_set():
                return
        version: str = page["metadata"]["resourceVersion"]
        rewritten = number(version) < number(self._highest)
        if rewritten:
            log.warning("the API server's history went back", extra=kv(cache=self.name, version=version))
        with self._delivery:
            self._announce(self._store.replace(objects, rewritten=rewritten))
        self._version = self._highest = version
        self._confirm()
        self._synced.set()
        log.info("listed", extra=kv(cache=self.name, objects=len(objects)))

    def _watch(self, stop: threading.Event) -> None:
        params: dict[str, str | int | bool] = {
            **self._selectors,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": max(1, int(self.idle_timeout * WATCH_SHARE)),
        }
        events = self._client.watch(self._path, params, idle_timeout=self.idle_timeout)
        for event in events:
            obj = event["object"]
            version = obj["metadata"]["resourceVersion"]
            if event["type"] == "BOOKMARK":
                if number(version) < number(self._version):
                    raise KubeGoneError(f"WATCH {self._path}: a bookmark from before the list: {version}")
            else:
                obj = self._kept(obj)
                with self._delivery:
                    self._announce(self._store.remove(obj) if event["type"] == "DELETED" else self._store.put(obj))
            if number(version) > number(self._version):
                self._version = self._highest = version
            self._confirm()
            if stop.is_set():
                events.close()
                return

    def _announce(self, changes: list[Change]) -> None:
        for change in changes:
            for fn in self._subscribers:
                fn(*change)
        self._objects.set(len(self._store))

    def _confirm(self) -> None:
        self._confirmed = self._clock.monotonic()

    def _kept(self, obj: Object) -> Object:
        if "managedFields" in obj["metadata"]:
            metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
            obj = {**obj, "metadata": metadata}
        return self._prune(obj)
