"""A bounded pool of threads for calls to outside systems, with priorities and one call per key at a time."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core import isolation
from bridge.core.retries import Reports, Retries
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError, LostLeadershipError
from bridge.logs import kv

log = logging.getLogger(__name__)

POLL = 0.5
"""Seconds after which an idle thread looks whether the process stops."""
IDLE = 10.0
"""Seconds without a call after which a thread ends, so that a pool at rest costs no CPU time."""


class Workers:
    """Runs calls on at most ``count`` threads, which are started on demand and end after :data:`IDLE` seconds.

    ``submit`` refuses a call for a key while another one for it is queued or running, so that two decisions from the
    same view do not act twice. A :class:`BridgeError` of a call is logged, and calls of the same kind for the key are
    refused until a back-off has passed. Any other exception is a defect, and has the same effect for this key.
    ``done`` is called in the worker's thread after each call, with its key, to trigger the next decision.
    """

    def __init__(
        self, name: str, count: int, done: Callable[[str], None] = lambda _: None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.name = name
        self.count = count
        self._done, self._clock = done, clock
        self._queue: queue.PriorityQueue[tuple[int, int, str, str, Callable[[], None]]] = queue.PriorityQueue()
        self._retries, self._reports = Retries(clock=clock), Reports(clock=clock)
        self._order = itertools.count()
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._started = 0

    def start(self, supervisor: Supervisor) -> None:
        """Start to run calls, on threads of ``supervisor``."""
        self._supervisor = supervisor
        self._grow()

    def busy(self, key: str) -> bool:
        """Whether a call for the key is queued or running."""
        return key in self._busy

    @property
    def backlog(self) -> bool:
        """Whether calls wait for a thread."""
        return not self._queue.empty()

    def submit(self, key: str, call: Callable[[], None], urgency: int = 5, kind: str = "") -> bool:
        """Queue a call (smaller ``urgency`` first); return ``False`` if the key is busy or in its back-off.

        Without a ``kind`` there is no back-off: the caller has its own.
        """
        with self._lock:
            if key in self._busy or (kind and self._retries.resting(key, kind)):
                return False
            self._busy.add(key)
        # the number keeps the order of equal urgencies; without it, the queue would compare the calls
        self._queue.put((urgency, next(self._order), key, kind, call))
        self._grow()
        return True

    def _grow(self) -> None:
        """Start threads until there is one for each call, at most ``count``."""
        if self._supervisor is None:
            return
        stopping = self._supervisor.stopping
        with self._lock:
            first, self._started = self._started, max(self._started, min(len(self._busy), self.count))
        for number in range(first, self._started):
            self._supervisor.spawn(f"{self.name}-{number}", lambda: self._run(stopping), writes=True, ends=True)

    def _run(self, stopping: threading.Event) -> None:
        idle_since = self._clock.monotonic()
        while not stopping.is_set():
            try:
                _, _, key, kind, call = self._queue.get(timeout=POLL)
            except queue.Empty:
                if self._clock.monotonic() - idle_since >= IDLE and self._leave():
                    return
                continue
            try:
                call()
                self._retries.succeeded(key, kind)
            except LostLeadershipError as error:
                log.warning("not sent: this process is not the leader", extra=kv(key=key, error=error))
            except BridgeError as error:
                self._failed(key, kind, error)
            except Exception as error:
                if kind:
                    self._retries.failed(key, kind)
                isolation.report("worker", key, error)
            finally:
                with self._lock:
                    self._busy.discard(key)
            # after the key is free: the decision that this triggers leaves out busy keys
            self._done(key)
            idle_since = self._clock.monotonic()

    def _leave(self) -> bool:
        """Whether an idle thread may end: the others are enough for all calls.

        A later call is in ``_busy`` before it is in the queue, and :meth:`_grow` runs after that.
        """
        with self._lock:
            if len(self._busy) >= self._started or not self._queue.empty():
                return False
            self._started -= 1
            return True

    def _failed(self, key: str, kind: str, error: BridgeError) -> None:
        if kind:
            self._retries.failed(key, kind)
        unreported = self._reports.due(f"{kind} {error.reason}")
        if unreported is not None:
            extra = kv(pool=self.name, call=kind, key=key, error=error, unreported=unreported)
            log.warning("call failed; it will be retried", extra=extra)
