"""A cache of one kind of object: a list, then watches, until the process stops.

Before a watch that follows another one, a small list shows whether the resource version has decreased: etcd was
restored from a backup, and the cache lists all objects again. The API server itself sends nothing on a watch from a
future version, not even a bookmark.

A watch without an event or bookmark for ``idle_timeout`` seconds is started again, because the connection may be half
open. After every failure the cache waits for a back-off, so that it does not overload an API server in trouble.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable
from typing import TypeVar

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core import isolation
from bridge.core.retries import Backoff
from bridge.errors import KubeError, KubeGoneError
from bridge.kube.kube_client import KubeClient
from bridge.kube.object_store import Change, Object, ObjectStore, number
from bridge.kube.paging import pages
from bridge.kube.resources import Resource
from bridge.kube.responses import IDLE
from bridge.logs import kv
from bridge.telemetry.metrics import CACHE_OBJECTS, WATCH_RESTARTS

log = logging.getLogger(__name__)

T = TypeVar("T")
Subscriber = Callable[[str, Object | None, Object | None], None]

# The server sends a bookmark about every minute, and one 2 s before it ends a watch. A watch that the server ends after
# this share of the idle time-out therefore has an event before the time-out, even if no object changes.
WATCH_SHARE = 0.75
_BACKOFF = Backoff(first=0.5, limit=30.0, jitter=0.5)


class Cache(ObjectStore):
    """The objects of one kind, optionally those of one namespace or of selectors. They are shared and read-only.

    ``prune`` gets each object (already without ``metadata.managedFields``) and returns the part to keep. ``pick``
    selects the objects that :meth:`picked` returns. If ``prune`` raises, the whole object is kept; if ``pick`` raises,
    the object is not picked.
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
        clock: Clock = SYSTEM_CLOCK,
        backoff: Backoff = _BACKOFF,
        rand: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(lambda obj: self._isolated("pick", pick, obj, False))
        self.name = name
        self._client = client
        self._path = resource.path(namespace)
        self._prune = prune
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selectors = {key: selector for key, selector in selectors.items() if selector}
        self.idle_timeout = idle_timeout
        self._clock = clock
        self._backoff = backoff
        self._rand = rand
        self._objects = CACHE_OBJECTS.labels(name)
        self._version = ""  # resource version of the next watch; empty: list first
        self._highest = ""
        self._confirmed = -math.inf
        self._synced = threading.Event()
        self._subscribers: list[Subscriber] = []
        self._delivery = threading.RLock()  # subscribers see each change and its delivery as one step
        self.listing = False
        """Whether the changes that subscribers get now come from a list; for the cache's thread."""

    @property
    def synced(self) -> bool:
        """Whether the first list is complete and delivered to the subscribers."""
        return self._synced.is_set()

    def wait_synced(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for the first list; return whether it is complete."""
        return self._synced.wait(timeout)

    def age(self) -> float:
        """Return the seconds since the API server last confirmed the cache; infinite before the first list.

        Each event, bookmark and list confirms it, and so does the regular end of a quiet watch. Without failures, the
        age is below the idle time-out.
        """
        return self._clock.monotonic() - self._confirmed

    def request_version(self) -> int:
        """Request the current resource version: every object that exists now has at most this one.

        Raises :class:`KubeError`.
        """
        # without selectors: the server would search for an object that matches
        page = self._client.get(self._path, {"limit": 1})
        return number((page.get("metadata") or {}).get("resourceVersion", ""))

    def apply(self, obj: Object) -> bool:
        """Store the answer to a write of this process, if it is newer than the cached object; return whether it was.

        Subscribers get the change with the event of the watch, always in the cache's thread.
        """
        return super().apply(self._pruned(obj))

    def subscribe(self, fn: Subscriber) -> None:
        """Call ``fn(type, old, new)`` with "add" for each existing object now, and for each later change.

        ``type`` is "add", "update" or "delete". ``fn`` must not block: it runs in the cache's thread. If it raises, it
        misses this change alone.
        """
        with self._delivery:
            for obj in self.items():
                self._notify(fn, ("add", None, obj))
            self._subscribers.append(fn)

    def run(self, stop: threading.Event) -> None:
        """Keep the cache up to date until ``stop`` is set and the current watch has ended."""
        failures = 0
        while not stop.is_set():
            begun = self._clock.monotonic()
            confirmed = self._confirmed
            least = 0.0
            try:
                if self._version:
                    self._check_version()
                else:
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
                self._confirm()  # without any change, the server sends no bookmark
            failures = 0 if self._confirmed > confirmed else failures + 1
            # a restart of the server causes one failure; the back-off begins with the second one in a row
            pause = self._backoff.delay(failures - 1, self._rand) if failures > 1 else 0.0
            stop.wait(max(pause, least))

    def drop_metrics(self) -> None:
        """Remove the metrics of this cache, if its ``run`` ends before the process."""
        CACHE_OBJECTS.remove_by_labels({"kind": self.name})
        WATCH_RESTARTS.remove_by_labels({"kind": self.name})

    def _list(self, stop: threading.Event) -> None:
        objects: list[Object] = []
        version = ""
        # no resourceVersion means the most recent state; with 0, an API server may answer from an old cache
        for page in pages(self._client, self._path, self._selectors):
            if "resourceVersion" not in (page.get("metadata") or {}):
                raise KubeError(f"GET {self._path}: the answer is not a list")
            # the API server leaves apiVersion and kind out of the items of a list
            kind = {"apiVersion": page.get("apiVersion", ""), "kind": page.get("kind", "").removesuffix("List")}
            objects += [self._pruned({**kind, **item}) for item in page.get("items") or ()]
            version = page["metadata"]["resourceVersion"]
            if stop.is_set():
                return
        rewritten = number(version) < number(self._highest)
        if rewritten:
            log.warning("resource version of the API server decreased", extra=kv(cache=self.name, version=version))
        with self._delivery:
            self.listing = True
            self._deliver(self.replace(objects, rewritten=rewritten))
            self.listing = False
        self._version = self._highest = version
        self._confirm()
        self._synced.set()
        log.info("listed", extra=kv(cache=self.name, objects=len(objects)))

    def _check_version(self) -> None:
        """Raise :class:`KubeGoneError` if the resource version of the API server is lower than that of the cache."""
        current = self.request_version()
        if current < number(self._version):
            raise KubeGoneError(f"GET {self._path}: resource version {current} is lower than {self._version}")

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
            if event["type"] != "BOOKMARK":
                obj = self._pruned(obj)
                with self._delivery:
                    self._deliver(self.remove(obj) if event["type"] == "DELETED" else self.put(obj))
            if number(version) > number(self._version):
                self._version = self._highest = version
            self._confirm()
            if stop.is_set():
                events.close()
                return

    def _deliver(self, changes: list[Change]) -> None:
        for change in changes:
            for fn in self._subscribers:
                self._notify(fn, change)
        self._objects.set(len(self))

    def _notify(self, fn: Subscriber, change: Change) -> None:
        try:
            fn(*change)
        except Exception as error:
            isolation.report("subscriber", self._subject(change[2] or change[1] or {}), error)

    def _isolated(self, part: str, call: Callable[[Object], T], obj: Object, otherwise: T) -> T:
        try:
            return call(obj)
        except Exception as error:
            isolation.report(part, self._subject(obj), error)
            return otherwise

    def _subject(self, obj: Object) -> str:
        metadata = obj.get("metadata") or {}
        return f"{self.name} {metadata.get('namespace', '')}/{metadata.get('name', '')}"

    def _confirm(self) -> None:
        self._confirmed = self._clock.monotonic()

    def _pruned(self, obj: Object) -> Object:
        if "managedFields" in obj["metadata"]:
            metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
            obj = {**obj, "metadata": metadata}
        return self._isolated("prune", self._prune, obj, obj)
