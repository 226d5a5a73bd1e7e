"""A cache with a time to live for each value, which loads a missing value only once at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from bridge.clock import Clock
from bridge.errors import BridgeError

V = TypeVar("V")

MAX_ENTRIES = 10_000
_LEAST_PURGED = 64
"""Entries from which on those that have expired are removed."""


class _Entry(Generic[V]):
    __slots__ = ("error", "failed", "lock", "until", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: V
        self.until = float("-inf")
        self.error: BridgeError | None = None
        self.failed = 0
        """Number of failed loads."""


class SingleFlightCache(Generic[V]):
    """Caches at most ``limit`` values; a further one clears the cache. Safe for many threads.

    Threads that request the same missing value wait for the first of them. If its load fails, all of them get its
    error, because otherwise they would wait for one failing load after the other. Errors are not cached.
    """

    def __init__(self, clock: Clock, limit: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._limit = limit
        self._entries: dict[Hashable, _Entry[V]] = {}
        self._lock = threading.Lock()
        self._purge_at = _LEAST_PURGED

    def get(self, key: Hashable, load: Callable[[], tuple[V, float]]) -> V:
        """Return the value of ``key``. ``load`` returns the value and its time to live in seconds."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                if len(self._entries) >= self._purge_at:
                    self._purge()
                if len(self._entries) >= self._limit:
                    self._entries.clear()
                entry = self._entries[key] = _Entry()
            failed = entry.failed
        with entry.lock:
            if self._clock.monotonic() < entry.until:
                return entry.value
            if entry.error is not None and entry.failed != failed:
                # the error is shared: each thread that raises it would make its traceback longer
                raise entry.error.with_traceback(None)
            try:
                value, seconds = load()
            except BridgeError as error:
                entry.error, entry.failed = error, entry.failed + 1
                raise
            entry.error = None
            if seconds > 0:  # else the value would stay in memory for nothing
                entry.value, entry.until = value, self._clock.monotonic() + seconds
            else:
                entry.until = float("-inf")
                self._forget(key, entry)
            return value

    def _purge(self) -> None:
        """Remove values that have expired. The next time is when there are twice as many entries as remain."""
        now = self._clock.monotonic()
        for key, entry in list(self._entries.items()):
            has_ended = entry.error is not None or entry.until > float("-inf")  # else its first load begins
            if has_ended and entry.until <= now and not entry.lock.locked():
                del self._entries[key]
        self._purge_at = max(_LEAST_PURGED, 2 * len(self._entries))

    def _forget(self, key: Hashable, entry: _Entry[V]) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]
