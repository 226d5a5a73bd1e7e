"""A cache of answers. Concurrent requests for one key wait for the first of them, and share its answer.

They also share its error, because otherwise each would wait for the same error in turn. An error is not cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from bridge.clock import Clock
from bridge.errors import BridgeError

V = TypeVar("V")

MOST = 10_000


class _Entry(Generic[V]):
    __slots__ = ("error", "failed", "lock", "until", "value")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: V | None = None
        self.until = float("-inf")
        self.error: BridgeError | None = None
        self.failed = 0
        """Number of failed requests."""


class SingleFlightCache(Generic[V]):
    """Holds up to ``most`` answers; one more empties it."""

    def __init__(self, clock: Clock, most: int = MOST) -> None:
        self._clock = clock
        self._most = most
        self._entries: dict[Hashable, _Entry[V]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, ask: Callable[[], tuple[V, float]]) -> V:
        """Return the answer for ``key``. ``ask`` returns it and the seconds for which it is valid."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                if len(self._entries) >= self._most:
                    self._entries.clear()
                entry = self._entries[key] = _Entry()
            failed = entry.failed
        with entry.lock:
            if entry.value is not None and self._clock.monotonic() < entry.until:
                return entry.value
            if entry.error is not None and entry.failed != failed:
                raise entry.error.with_traceback(None)
            try:
                value, seconds = ask()
            except BridgeError as error:
                entry.error, entry.failed = error, entry.failed + 1
                raise
            entry.value, entry.until, entry.error = value, self._clock.monotonic() + seconds, None
            return value
