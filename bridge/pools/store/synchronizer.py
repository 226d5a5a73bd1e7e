"""Synchronizes a store with the state of this process, on a thread of its own. No other thread waits for a store.

A store may be down, empty or wrong; no decision depends on it. A change adds its key to the set of keys to be written.
The value is read when the key is written. After a failure, and every ten minutes, all values are compared, because a
store may have lost its data.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from bridge.clock import Clock
from bridge.core.retries import Backoff
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.telemetry.metrics import STORE_UP, STORE_WAITING

log = logging.getLogger(__name__)

COMPARE = 600.0
"""Seconds between two comparisons of all values."""
GATHER = 0.1
"""Seconds for which changes are collected before they are written."""
BATCH = 500
_TICK = 1.0
_BACKOFF = Backoff(first=0.3, limit=10.0)
_MOST_LOGGED = 10

Key = tuple[str, str]
"""Kind and key."""


class StoreError(BridgeError):
    """The store refused a request or did not answer. The request may have been carried out."""

    reason = "StoreError"
    retryable = True


class KeyValueStore(Protocol):
    """One store, used by one thread. Every method waits for the answer for some seconds, and may raise StoreError.

    A kind matches ``[a-z]+``. A key is any text of up to 300 characters. A value is not empty.
    """

    def load(self, kind: str) -> dict[str, bytes]:
        """Return all values of a kind by key."""

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        """Store these values; each replaces the previous value of its key."""

    def delete(self, kind: str, keys: Collection[str]) -> None:
        """Delete these keys. A missing key is no error."""

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""


class RecordSource(Protocol):
    """The values to be stored. All methods are called on the synchronizer's thread."""

    @property
    def kinds(self) -> Sequence[str]:
        """All kinds."""

    def merge(self, stored: Mapping[str, Mapping[str, bytes]], changed: Collection[Key]) -> None:
        """Restore stored values that are not older than those of this process. ``changed``: keys to be written."""

    def all_keys(self) -> Collection[Key]:
        """Return the keys of all values."""

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the value of a key; ``None`` if it has none."""


class StoreSynchronizer:
    """Synchronizes one store with one source. Every process reads at its start; only the leader writes.

    ``leads`` returns whether this process is the leader, ``reachable`` whether requests to the store can succeed: while
    it returns false, no request is sent. ``name`` is the label of the metrics. The event ``loaded`` is set when the
    store has answered for the first time.
    """

    def __init__(
        self,
        store: KeyValueStore,
        source: RecordSource,
        clock: Clock,
        leads: Callable[[], bool],
        name: str,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._source, self._clock, self._leads = store, source, clock, leads
        self._reachable = reachable
        self._lock = threading.Lock()
        self._changed: dict[Key, None] = {}
        self._wake_up = threading.Event()
        self._is_in_step = False
        self._compare_requested = threading.Event()
        self._compared_at = self._not_before = 0.0
        self._failures = 0
        self._logged: set[str] = set()
        self._up_gauge = STORE_UP.labels(name)
        STORE_WAITING.labels(name).set_function(lambda: len(self._changed))
        self.loaded = threading.Event()

    def start(self, supervisor: Supervisor) -> None:
        """Start the synchronization."""
        supervisor.spawn("store", lambda: self._run(supervisor))

    def mark(self, kind: str, key: str) -> None:
        """Write the value of this key soon, or delete the key if the source has no value for it then."""
        with self._lock:
            self._changed[kind, key] = None
        self._wake_up.set()

    def compare_soon(self) -> None:
        """Compare all values soon. To be called if the store may have lost data."""
        self._compare_requested.set()
        self._wake_up.set()

    @property
    def waiting(self) -> int:
        """The number of keys to be written."""
        return len(self._changed)

    def step(self) -> None:
        """Do the work that is due. After a failure of the store, the next attempt follows a back-off."""
        leads, now = self._leads(), self._clock.monotonic()
        if not leads:
            self._is_in_step = False
            with self._lock:
                self._changed.clear()  # a new leader compares everything
        if self._compare_requested.is_set():
            self._compare_requested.clear()
            self._is_in_step, self._not_before = False, 0.0
        if not self._reachable():
            self._up_gauge.set(0)
            return
        if now < self._not_before:
            return
        try:
            if not self.loaded.is_set() or (leads and (not self._is_in_step or now - self._compared_at >= COMPARE)):
                self._compare(leads)
            # before each batch: a former leader must not overwrite what the new one writes
            while leads and self._write():
                leads = self._leads()
        except StoreError as error:
            self._failed(error)
        else:
            self._succeeded()

    # --- internal -----------------------------------------------------------------------------------------------------
    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self.step()
            pause = _TICK if self.loaded.is_set() else GATHER
            self._wake_up.wait(min(_TICK, max(pause, self._not_before - self._clock.monotonic())))
            self._wake_up.clear()
            supervisor.wait(GATHER)
        if self._is_in_step:
            self.step()  # writes the last changes
        self._store.close()

    def _compare(self, leads: bool) -> None:
        stored = {kind: self._store.load(kind) for kind in self._source.kinds}
        with self._lock:
            # after the load: what was marked until now is newer in this process than in the store
            changed = set(self._changed)
        self._source.merge(stored, changed)
        if not self.loaded.is_set():
            log.info("store loaded", extra=kv(store=self._store, **{kind: len(v) for kind, v in stored.items()}))
            self.loaded.set()
        if leads:
            stored_values = {(kind, key): value for kind, values in stored.items() for key, value in values.items()}
            current_values = {key: self._source.value(*key) for key in self._source.all_keys()}
            for key in stored_values.keys() | current_values.keys():
                if stored_values.get(key) != current_values.get(key):
                    self.mark(*key)
            self._is_in_step, self._compared_at = True, self._clock.monotonic()

    def _write(self) -> bool:
        """Write a batch of keys; return whether more are to be written."""
        with self._lock:
            batch = list(self._changed)[:BATCH]
            for key in batch:
                # before its value is read: a change during the write marks the key again
                del self._changed[key]
        try:
            for kind in self._source.kinds:
                values = {key: self._source.value(kind, key) for key_kind, key in batch if key_kind == kind}
                if new_values := {key: value for key, value in values.items() if value is not None}:
                    self._store.put(kind, new_values)
                if deleted_keys := [key for key, value in values.items() if value is None]:
                    self._store.delete(kind, deleted_keys)
        except StoreError:
            with self._lock:
                self._changed |= dict.fromkeys(batch)
            raise
        return bool(self._changed)

    def _failed(self, error: StoreError) -> None:
        self._store.close()
        self._is_in_step = False
        self._failures += 1
        self._not_before = self._clock.monotonic() + _BACKOFF.delay(self._failures)
        self._up_gauge.set(0)
        message = error.with_hint
        if message not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(message)
            log.warning("the store does not answer; the requests are repeated until it does", extra=kv(error=message))

    def _succeeded(self) -> None:
        if self._failures:
            log.info("the store answers again", extra=kv(store=self._store, attempts=self._failures))
        self._failures, self._not_before = 0, 0.0
        self._logged.clear()
        self._up_gauge.set(1)
