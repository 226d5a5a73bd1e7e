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
    """Runs calls on ``count`` threads.

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

    def start(self, supervisor: Supervisor) -> None:
        """Start the threads under ``supervisor``."""
        for number in range(self.count):
            supervisor.spawn(f"{self.name}-{number}", lambda: self._run(supervisor.stopping))

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
        return True

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
