"""Events (``kubectl describe`` shows them), written in the background.

Equal events of one object within ten minutes become a series (a count and a time), as in client-go. A token bucket
limits the writes, and each object has a limit of its own: users and sites cause Events with any text. No caller waits
for an Event, and a lost one is not an error.
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

from bridge.clock import SYSTEM_CLOCK, Clock, rfc3339
from bridge.core.retries import Backoff, TokenBucket
from bridge.errors import BridgeError, KubeConflictError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient, Object
from bridge.kube.resources import EVENTS
from bridge.kube.work_queue import WorkQueue
from bridge.logs import kv
from bridge.telemetry.metrics import EVENTS_DROPPED

log = logging.getLogger(__name__)

SERIES_LIFE = 600.0
SERIES_PERIOD = 10.0
"""Seconds between two writes of one series."""
OBJECT_BURST, OBJECT_PERIOD = 50, 60.0
"""Different events of one object at once, and seconds until one more; others are dropped, as in client-go."""
NOTE_LIMIT = 1024
NAME_LIMIT = 200
FIELD_LIMIT = 128
BUSY_PAUSE = 0.5
"""Seconds between two Events while other calls wait."""
TRIES = 8
"""With the back-off below, no Event is lost in 90 s without an API server."""
CLUSTER_NAMESPACE = "default"
"""Namespace of the Events of objects without a namespace."""

_BACKOFF = Backoff(first=1.0, limit=30.0)
_REFERENCE = ("apiVersion", "kind", "namespace", "name", "uid", "resourceVersion", "fieldPath")

Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Series:
    body: Object
    count: int
    written: int  # the count in the API server; 0: not created yet
    happened_at: float
    written_at: float
    tries: int = 0


def _is_over(series: _Series, now: float) -> bool:
    """Return whether all of a series is written and its next occurrence begins a new one."""
    return series.written >= series.count and now - series.happened_at >= SERIES_LIFE


class EventRecorder:
    """Accepts events from any thread, and writes them in :meth:`run`.

    An event is kept until its series is over, and at most ``limit`` different ones are kept. Beyond that, the oldest is
    dropped (and counted if it was not written).
    While ``busy`` returns true, two are written per second, because other calls to the API server have priority.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        component: str = "podbridge",
        clock: Clock = SYSTEM_CLOCK,
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
        self._used_until: OrderedDict[str, float] = OrderedDict()
        """Object -> the time from which on all of its :data:`OBJECT_BURST` events are possible again."""
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
        """Queue an event about an object or an ObjectReference. Never blocks and never raises.

        ``reason`` is CamelCase; ``message`` is cut to 1 kB.
        """
        try:
            self._queue_event(reference(obj_or_ref), reason, message, "Warning" if warning else "Normal", action)
        except Exception:
            log.exception("event not queued", extra=kv(reason=reason))

    def run(self, stop: threading.Event) -> None:
        """Write events until ``stop`` is set."""
        while not stop.is_set():
            key = self._queue.get(timeout=0.5)
            if key is None:
                continue
            wait = max(self._bucket.take(), BUSY_PAUSE if self._busy() else 0.0)
            if wait and stop.wait(wait):
                self._queue.add(key)
            else:
                self._write(key)
            self._queue.done(key)

    def flush(self, timeout: float) -> bool:
        """Write each queued event once, for at most ``timeout`` seconds. Call it after :meth:`run` has ended.

        Returns whether all events are written.
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

    def _queue_event(self, regarding: Object, reason: str, message: str, kind: str, action: str) -> None:
        note = message.encode()[:NOTE_LIMIT].decode(errors="ignore")
        subject = str(regarding.get("uid") or regarding.get("name", ""))
        key = (f"{subject}{regarding.get('fieldPath', '')}", reason, note, kind)
        now = self._clock.monotonic()
        with self._lock:
            series = self._series.get(key)
            if series is not None and now - series.happened_at < SERIES_LIFE:
                series.count += 1
                series.happened_at = now
                delay = series.written_at + SERIES_PERIOD - now if series.written else 0.0
            elif not self._has_room(subject, now):
                log.debug("event dropped: its object has too many", extra=kv(object=subject, reason=reason))
                return
            else:
                body = self._body(regarding, reason, note, kind, action)
                series = self._series[key] = _Series(body, 1, 0, now, now)
                delay = 0.0
            self._series.move_to_end(key)
            # in the order of the last occurrence
            while len(self._series) > self._limit or _is_over(next(iter(self._series.values())), now):
                _, oldest = self._series.popitem(last=False)
                if oldest.written < oldest.count:
                    EVENTS_DROPPED.inc()
        if not series.tries:  # else it already waits for a retry
            self._queue.add_after(key, delay)

    def _has_room(self, subject: str, now: float) -> bool:
        until = max(self._used_until.get(subject, 0.0), now) + OBJECT_PERIOD
        if until > now + OBJECT_BURST * OBJECT_PERIOD:
            return False
        self._used_until[subject] = until
        self._used_until.move_to_end(subject)
        if len(self._used_until) > self._limit:
            self._used_until.popitem(last=False)
        return True

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
        series_fields = {"count": count, "lastObservedTime": rfc3339(self._clock.time(), micro=True)}
        metadata = series.body["metadata"]
        try:
            if series.written:
                self._client.patch(EVENTS.path(metadata["namespace"], metadata["name"]), {"series": series_fields})
            else:
                body = {**series.body, "series": series_fields} if count > 1 else series.body
                with suppress(KubeConflictError):  # an earlier try succeeded without an answer; the name is unique
                    self._client.create(EVENTS.path(metadata["namespace"]), body)
        except KubeNotFoundError:
            self._forget(key, series, "the namespace or the event does not exist")
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
                series.body = {"metadata": metadata}  # later writes only change the count
                again = series.count > count
            if again:
                self._queue.add_after(key, SERIES_PERIOD)

    def _forget(self, key: Key, series: _Series, cause: str) -> None:
        log.warning("event not written", extra=kv(reason=key[1], why=cause))
        EVENTS_DROPPED.inc()
        self._queue.forget(key)
        with self._lock:
            if self._series.get(key) is series:
                del self._series[key]


def reference(obj: Mapping[str, Any]) -> Object:
    """Return the ObjectReference of an object; a reference is returned unchanged."""
    metadata = obj.get("metadata")
    source = obj if metadata is None else {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), **metadata}
    return {field: source[field] for field in _REFERENCE if source.get(field)}
