"""Keeps a store in step with what this process knows, on a thread of its own: nobody ever waits for a store.

What has changed waits as a key, once however often it changes, and its value is asked for when it is written. After a
failure, and now and then without one, everything is compared: a store may have come back without what it was given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from bridge.backoff import Backoff
from bridge.clock import Clock
from bridge.logs import kv
from bridge.metrics import STORE_UP, STORE_WAITING
from bridge.store.port import KeyValueStore, StoreError
from bridge.threads import Supervisor

log = logging.getLogger(__name__)

COMPARE = 600.0
"""Seconds after which everything is compared."""
GATHER = 0.1
"""Seconds for which changes are gathered."""
BATCH = 500
_TICK = 1.0
_BACKOFF = Backoff(first=0.3, limit=10.0)
_MOST_WORDS = 10

Key = tuple[str, str]
"""Kind and key."""


class Source(Protocol):
    """What is to be kept; called on the synchronizer's thread."""

    @property
    def kinds(self) -> Sequence[str]:
        """Name all kinds."""

    def merge(self, stored: Mapping[str, Mapping[str, bytes]], changed: Collection[Key]) -> None:
        """Take from a store what is not known better; ``changed`` is what this process has said meanwhile."""

    def everything(self) -> Collection[Key]:
        """Name everything that is to be kept."""

    def value(self, kind: str, key: str) -> bytes | None:
        """Give what is to be kept; ``None``: nothing."""


class StoreSynchronizer:
    """One store and its source. Only the process that ``leads`` writes; every one reads once, at its start.

    ``loaded`` is set when the store has answered for the first time. ``name`` is for metrics. While it is not
    ``reachable``, for a reason that others look after, the store is not asked.
    """

    def __init__(
        self,
        store: KeyValueStore,
        source: Source,
        clock: Clock,
        leads: Callable[[], bool],
        name: str,
        reachable: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._source, self._clock, self._leads = store, source, clock, leads
        self._reachable = reachable
        self._lock = threading.Lock()
        self._changed: dict[Key, None] = {}
        self._woken = threading.Event()
        self._in_step = False
        self._doubted = threading.Event()
        self._compared_at = self._not_before = 0.0
        self._failures = 0
        self._told: set[str] = set()
        self._up = STORE_UP.labels(name)
        STORE_WAITING.labels(name).set_function(lambda: len(self._changed))
        self.loaded = threading.Event()

    def start(self, supervisor: Supervisor) -> None:
        """Start reading and writing."""
        supervisor.spawn("store", lambda: self._run(supervisor))

    def mark(self, kind: str, key: str) -> None:
        """Have a value written, or dropped, as the source says by then."""
        with self._lock:
            self._changed[kind, key] = None
        self._woken.set()

    def doubt(self) -> None:
        """Have everything compared soon: the store may have lost something."""
        self._doubted.set()
        self._woken.set()

    @property
    def waiting(self) -> int:
        """How many keys wait to be written."""
        return len(self._changed)

    def turn(self) -> None:
        """Do what is due, and wait for the store alone; a store that fails is asked again after a pause."""
        leads, now = self._leads(), self._clock.monotonic()
        if not leads:
            self._in_step = False
            with self._lock:
                self._changed.clear()  # a new leader compares everything
        if self._doubted.is_set():
            self._doubted.clear()
            self._in_step, self._not_before = False, 0.0
        if not self._reachable():
            self._up.set(0)
            return
        if now < self._not_before:
            return
        try:
            if not self.loaded.is_set() or (leads and (not self._in_step or now - self._compared_at >= COMPARE)):
                self._compare(leads)
            while leads and self._write():
                leads = self._leads()
        except StoreError as error:
            self._failed(error)
        else:
            self._succeeded()

    # --- inside -------------------------------------------------------------------------------------------------------
    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self.turn()
            pause = _TICK if self.loaded.is_set() else GATHER
            self._woken.wait(min(_TICK, max(pause, self._not_before - self._clock.monotonic())))
            self._woken.clear()
            supervisor.wait(GATHER)
        if self._in_step:
            self.turn()  # the last words
        self._store.close()

    def _compare(self, leads: bool) -> None:
        stored = {kind: self._store.load(kind) for kind in self._source.kinds}
        with self._lock:
            changed = set(self._changed)
        self._source.merge(stored, changed)
        if not self.loaded.is_set():
            log.info("the store was read", extra=kv(store=self._store, **{kind: len(v) for kind, v in stored.items()}))
            self.loaded.set()
        if leads:
            held = {(kind, key): value for kind, values in stored.items() for key, value in values.items()}
            wanted = {key: self._source.value(*key) for key in self._source.everything()}
            for key in held.keys() | wanted.keys():
                if held.get(key) != wanted.get(key):
                    self.mark(*key)
            self._in_step, self._compared_at = True, self._clock.monotonic()

    def _write(self) -> bool:
        """Write some of what waits; gives whether more does."""
        with self._lock:
            batch = list(self._changed)[:BATCH]
            for key in batch:
                del self._changed[key]
        try:
            for kind in self._source.kinds:
                values = {key: self._source.value(kind, key) for of, key in batch if of == kind}
                if new := {key: value for key, value in values.items() if value is not None}:
                    self._store.put(kind, new)
                if gone := [key for key, value in values.items() if value is None]:
                    self._store.delete(kind, gone)
        except StoreError:
            with self._lock:
                self._changed |= dict.fromkeys(batch)
            raise
        return bool(self._changed)

    def _failed(self, error: StoreError) -> None:
        self._store.close()
        self._in_step = False
        self._failures += 1
        self._not_before = self._clock.monotonic() + _BACKOFF.delay(self._failures)
        self._up.set(0)
        words = f"{error}{f' ({error.hint})' if error.hint else ''}"
        if words not in self._told and len(self._told) < _MOST_WORDS:
            self._told.add(words)
            log.warning("the store does not answer; it is tried again for ever", extra=kv(error=words))

    def _succeeded(self) -> None:
        if self._failures:
            log.info("the store answers again", extra=kv(store=self._store, attempts=self._failures))
        self._failures, self._not_before = 0, 0.0
        self._told.clear()
        self._up.set(1)
