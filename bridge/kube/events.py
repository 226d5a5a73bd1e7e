"""Events: what ``kubectl describe`` tells the user, written in the background.

The same event of the same object within ten minutes becomes a series (a count and a time), as client-go does; a bucket
of tokens bounds what is written; nobody ever waits for an Event, and losing one is no error.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bridge.backoff import Backoff
from bridge.clock import Clock, SystemClock, rfc3339
from bridge.errors import BridgeError, KubeConflictError, KubeNotFoundError
from bridge.kube.client import KubeClient, Object
from bridge.kube.rate_limit import TokenBucket
from bridge.kube.resources import EVENTS
from bridge.kube.work_queue import WorkQueue
from bridge.logs import kv
from bridge.metrics import EVENTS_DROPPED

log = logging.getLogger(__name__)

SERIES_LIFE = 600.0
SERIES_PERIOD = 10.0
"""Seconds between two writes of one series, however often it happens."""
NOTE_LIMIT = 1024
NAME_LIMIT = 200
FIELD_LIMIT = 128
GIVE_WAY = 0.5
"""Seconds between two Events while there is something more urgent to do."""
TRIES = 8
"""With the back-off below: a minute and a half without an API server loses nothing."""
CLUSTER_NAMESPACE = "default"
"""Where the Events of objects without a namespace live."""

_CLOCK = SystemClock()
_BACKOFF = Backoff(first=1.0, limit=30.0)
_REFERENCE = ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")

Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Series:
    body: Object
    count: int
    written: int  # how often it is told as having happened; 0: not created yet
    happened_at: float
    written_at: float
    tries: int = 0


class EventRecorder:
    """Takes events from everywhere, and writes them in :meth:`run`.

    At most ``limit`` different ones are remembered; beyond, the oldest is forgotten (counted when it was not written).
    While ``busy`` says so, they are written two a second: they share the API server with what matters more.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str = "podbridge",
        clock: Clock = _CLOCK,
        rate: float = 50.0,
        burst: int = 100,
        limit: int = 10_000,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = f"{component}-{socket.gethostname()}"[:FIELD_LIMIT]
        self._clock = clock
        self._limit = limit
        self._busy = busy
        self._bucket = TokenBucket(rate, burst, clock)
        self._queue: WorkQueue[Key] = WorkQueue(f"{component}-events", clock=clock, backoff=_BACKOFF)
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._lock = threading.Lock()
        self._number = itertools.count()

    def event(
        self,
        obj_or_ref: Mapping[str, Any],
        reason: str,
        message: str,
        *,
        warning: bool = False,
        action: str = "Scheduling",
    ) -> None:
        """Have an event written about an object, or about what an ObjectReference names. Never blocks, never raises.

        ``reason`` is CamelCase; ``message`` is cut to 1 kB.
        """
        try:
            self._take(reference(obj_or_ref), reason, message, "Warning" if warning else "Normal", action)
        except Exception:
            log.exception("event not taken", extra=kv(reason=reason))

    def run(self, stop: threading.Event) -> None:
        """Write events until ``stop`` is set."""
        while not stop.is_set():
            key = self._queue.get(timeout=0.5)
            if key is None:
                continue
            wait = max(self._bucket.take(), GIVE_WAY if self._busy() else 0.0)
            if wait and stop.wait(wait):
                self._queue.add(key)
            else:
                self._write(key)
            self._queue.done(key)

    def flush(self, timeout: float) -> bool:
        """Write what waits, once each, for ``timeout`` seconds at most; for the end, after :meth:`run`.

        Gives whether nothing is left.
        """
        deadline = self._clock.monotonic() + timeout
        with self._lock:
            keys = [key for key, series in self._series.items() if series.written < series.count]
        for key in keys:
            if self._clock.monotonic() >= deadline:
                return False
            self._write(key)
        with self._lock:
            return all(series.written >= series.count for series in self._series.values())

    def _take(self, regarding: Object, reason: str, message: str, kind: str, action: str) -> None:
        note = message.encode()[:NOTE_LIMIT].decode(errors="ignore")
        key = (regarding.get("uid") or regarding.get("name", ""), reason, note, kind)
        now = self._clock.monotonic()
        with self._lock:
            series = self._series.get(key)
            if series is not None and now - series.happened_at < SERIES_LIFE:
                series.count += 1
                series.happened_at = now
                delay = series.written_at + SERIES_PERIOD - now if series.written else 0.0
            else:
                body = self._body(regarding, reason, note, kind, action)
                series = self._series[key] = _Series(body, 1, 0, now, now)
                delay = 0.0
            self._series.move_to_end(key)
            while len(self._series) > self._limit:
                _, oldest = self._series.popitem(last=False)
                if oldest.written < oldest.count:
                    EVENTS_DROPPED.inc()
        if not series.tries:  # else it waits for another try already
            self._queue.add_after(key, delay)

    def _body(self, regarding: Object, reason: str, note: str, kind: str, action: str) -> Object:
        now = self._clock.time()
        name = f"{regarding.get('name', '')[:NAME_LIMIT]}.{int(now * 1e9) + next(self._number):x}"
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"namespace": regarding.get("namespace") or CLUSTER_NAMESPACE, "name": name},
            "eventTime": rfc3339(now, micro=True),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": action[:FIELD_LIMIT],
            "reason": reason[:FIELD_LIMIT],
            "type": kind,
            "note": note,
            "regarding": regarding,
        }

    def _write(self, key: Key) -> None:
        with self._lock:
            series = self._series.get(key)
            if series is None or series.written >= series.count:
                return
            count = series.count
        told = {"count": count, "lastObservedTime": rfc3339(self._clock.time(), micro=True)}
        metadata = series.body["metadata"]
        try:
            if series.written:
                self._client.patch(EVENTS.path(metadata["namespace"], metadata["name"]), {"series": told})
            else:
                body = {**series.body, "series": told} if count > 1 else series.body
                with suppress(
                    KubeConflictError
                ):  # an earlier try whose answer was lost; the name is this event's alone
                    self._client.create(EVENTS.path(metadata["namespace"]), body)
        except KubeNotFoundError:
            self._forget(key, series, "the namespace, or the event, is gone")
        except BridgeError as error:
            series.tries += 1
            if error.retryable and series.tries < TRIES:
                self._queue.retry(key)
            else:
                self._forget(key, series, str(error))
        else:
            self._queue.forget(key)
            with self._lock:
                series.written, series.written_at, series.tries = count, self._clock.monotonic(), 0
                series.body = {"metadata": metadata}  # all that is told from now on is how often
                again = series.count > count
            if again:
                self._queue.add_after(key, SERIES_PERIOD)

    def _forget(self, key: Key, series: _Series, why: str) -> None:
        log.warning("event not written", extra=kv(reason=key[1], why=why))
        EVENTS_DROPPED.inc()
        self._queue.forget(key)
        with self._lock:
            if self._series.get(key) is series:
                del self._series[key]


def reference(obj: Mapping[str, Any]) -> Object:
    """Make the ObjectReference that names an object; a reference comes back as it is."""
    metadata = obj.get("metadata")
    source = obj if metadata is None else {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), **metadata}
    return {field: source[field] for field in _REFERENCE if source.get(field)}
