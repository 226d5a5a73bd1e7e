"""A bounded pool of threads for calls to outside systems: most urgent first, one call a key at a time."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable

from bridge.errors import BridgeError, LostLeadershipError
from bridge.logs import kv
from bridge.threads import Supervisor

log = logging.getLogger(__name__)


class Workers:
    """Runs calls on ``count`` threads at most; each is started when it is needed first.

    ``submit`` takes a call for a key unless one is queued or running for it, so that two decisions taken from the same
    view never act twice. A :class:`BridgeError` that escapes a call is logged; any other exception is a bug and ends
    the process. ``done`` is called (in the worker's thread) after each call, to have the next decision taken.
    """

    def __init__(self, name: str, count: int, done: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.count = count
        self._done = done
        self._queue: queue.PriorityQueue[tuple[int, int, str, Callable[[], None]]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._started = 0

    def start(self, supervisor: Supervisor) -> None:
        """Carry calls out from now on, on threads under ``supervisor``."""
        self._supervisor = supervisor
        self._grow()

    def busy(self, key: str) -> bool:
        """Whether a call for the key is queued or running."""
        return key in self._busy

    @property
    def backlog(self) -> bool:
        """Whether calls wait for a thread."""
        return not self._queue.empty()

    def submit(self, key: str, call: Callable[[], None], urgency: int = 5) -> bool:
        """Queue a call (smaller ``urgency`` first); ``False`` if one for the key is under way."""
        with self._lock:
            if key in self._busy:
                return False
            self._busy.add(key)
        self._queue.put((urgency, next(self._order), key, call))
        self._grow()
        return True

    def _grow(self) -> None:
        """Start threads until there is one for each call, or as many as are allowed."""
        if self._supervisor is None:
            return
        stopping = self._supervisor.stopping
        with self._lock:
            first, self._started = self._started, max(self._started, min(len(self._busy), self.count))
        for number in range(first, self._started):
            self._supervisor.spawn(f"{self.name}-{number}", lambda: self._run(stopping), writes=True)

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                _, _, key, call = self._queue.get(timeout=0.5)
            except queue.Empty:
                continue
            try:
                call()
            except LostLeadershipError as error:
                log.warning("not sent: this process leads no more", extra=kv(key=key, error=error))
            except BridgeError as error:
                log.warning("call failed", extra=kv(pool=self.name, key=key, error=error))
            finally:
                with self._lock:
                    self._busy.discard(key)
            self._done()
