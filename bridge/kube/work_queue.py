"""A queue of keys with the semantics of client-go's workqueue.

A key is queued at most once. No two workers process the same key. A key that is added while a worker processes it is
queued again after :meth:`WorkQueue.done`. So a worker always reads the newest state, and no added key is lost.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.retries import Backoff
from bridge.telemetry.metrics import QUEUE_DEPTH, QUEUE_RETRIES

K = TypeVar("K", bound=Hashable)

_BACKOFF = Backoff(first=0.05, limit=300.0)


class WorkQueue(Generic[K]):
    """A queue of keys; safe for many threads. ``len`` counts the keys that are ready."""

    def __init__(self, name: str, *, clock: Clock = SYSTEM_CLOCK, backoff: Backoff = _BACKOFF) -> None:
        self._clock = clock
        self._backoff = backoff
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()  # queued, or to be queued again after done()
        self._processing: set[K] = set()  # by a worker
        self._heap: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}  # the valid entry of each key in the heap
        self._count = itertools.count()
        self._failures: dict[K, int] = {}
        self._changed = threading.Condition()
        self._depth = QUEUE_DEPTH.labels(name)
        self._retries = QUEUE_RETRIES.labels(name)

    def add(self, key: K) -> None:
        """Queue ``key``."""
        with self._changed:
            self._add(key)

    def add_after(self, key: K, delay: float) -> None:
        """Queue ``key`` after ``delay`` seconds; of several delays for one key, the earliest end counts."""
        with self._changed:
            if delay <= 0:
                self._add(key)
                return
            due = self._clock.monotonic() + delay
            if due >= self._due.get(key, float("inf")):
                return
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._count), key))
            self._changed.notify()

    def retry(self, key: K) -> None:
        """Queue ``key`` again after its back-off, which grows until :meth:`forget`."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
        self._retries.inc()
        self.add_after(key, self._backoff.delay(failures))

    def forget(self, key: K) -> None:
        """Reset the back-off of ``key``, after a success or if the key is no longer needed."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self, timeout: float | None = None) -> K | None:
        """Return a key; ``None`` after ``timeout`` seconds.

        The caller must call :meth:`done` for the key in any case.
        """
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            while True:
                now = self._clock.monotonic()
                self._wake(now)
                if self._ready:
                    key = self._ready.popleft()
                    self._dirty.discard(key)
                    self._processing.add(key)
                    self._depth.set(len(self._ready))
                    if self._heap:
                        self._changed.notify()  # another worker must wait for the delayed keys
                    return key
                if deadline is not None and now >= deadline:
                    return None
                ends = [moment for moment in (deadline, self._heap[0][0] if self._heap else None) if moment is not None]
                self._changed.wait(min(ends) - now if ends else None)

    def done(self, key: K) -> None:
        """Mark a key as processed; it is queued again if it was added meanwhile."""
        with self._changed:
            self._processing.discard(key)
            if key in self._dirty:
                self._push(key)

    def __len__(self) -> int:
        return len(self._ready)

    def _add(self, key: K) -> None:
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._push(key)

    def _push(self, key: K) -> None:
        self._ready.append(key)
        self._depth.set(len(self._ready))
        self._changed.notify()

    def _wake(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:  # else a later add_after() has replaced it by an earlier time
                del self._due[key]
                self._add(key)
