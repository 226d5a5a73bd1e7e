"""Subscriptions: they pass messages from the loop to the threads that handle them."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from bridge.logs import kv

log = logging.getLogger(__name__)

POLL = 1.0
"""Seconds between two checks of a waiting thread whether the process stops."""
Respond = Callable[[bytes], None]
Handler = Callable[[str, bytes, Respond | None], None]
"""Takes the subject, the data and, for a request, the function that answers it."""


@dataclass(frozen=True, slots=True)
class TracedRespond:
    """The function that answers a request with a trace context, and this context."""

    respond: Respond
    traceparent: str

    def __call__(self, data: bytes) -> None:
        """Answer the request."""
        self.respond(data)


@dataclass(eq=False, slots=True)
class Route:
    """A subscription to a subject. ``deliver`` is called on the loop and must not block."""

    subject: str
    queue: str
    deliver: Handler


class Subscription:
    """The queue between the loop and a handler.

    If ``most_messages`` or ``most_bytes`` wait for a slow handler, further messages are dropped and counted.
    """

    most_messages = 100_000
    most_bytes = 256 * 1024 * 1024

    def __init__(
        self,
        remove: Callable[[Subscription, bool], None],
        subjects: tuple[str, ...],
        handler: Handler,
        queue_group: str,
        threads: int,
    ) -> None:
        self._remove = remove
        self._handler = handler
        # In Python 3.11, one of several threads in SimpleQueue.get(timeout) may wait until the next message arrives.
        self._waiting: queue.Queue[tuple[str, bytes, Respond | None]] = queue.Queue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._closed = False
        self.threads = threads
        self.dropped = 0
        self.routes = [Route(subject, queue_group, self._deliver) for subject in subjects]

    def close(self) -> None:
        """Unsubscribe. Messages that have arrived before may still be handled."""
        self._closed = True
        self._remove(self, False)

    def drain(self) -> None:
        """Unsubscribe, and still handle all messages that the server sends before it has processed this."""
        self._remove(self, True)

    def _deliver(self, subject: str, data: bytes, respond: Respond | None) -> None:
        """Accept a message, on the loop."""
        if self._closed:
            return
        if not self.threads:
            self._handler(subject, data, respond)
            return
        with self._lock:
            is_full = self._waiting.qsize() >= self.most_messages or self._bytes + len(data) > self.most_bytes
            if not is_full:
                self._bytes += len(data)
        if not is_full:
            self._waiting.put((subject, data, respond))
            return
        self.dropped += 1
        # the 1st, 2nd, 4th, 8th ... message: a flood must not fill the log
        if self.dropped & (self.dropped - 1) == 0:
            log.error("a handler is too slow: messages dropped", extra=kv(subject=subject, dropped=self.dropped))

    def work(self, stopping: threading.Event) -> None:
        """Handle messages until ``stopping`` is set. Runs on each of the subscription's threads."""
        while not stopping.is_set():
            try:
                subject, data, respond = self._waiting.get(timeout=POLL)
            except queue.Empty:
                continue
            with self._lock:
                self._bytes -= len(data)
            if self._closed:
                continue
            try:
                self._handler(subject, data, respond)
            except Exception:  # a message from outside must not end this process
                log.exception("the handler of a message failed", extra=kv(subject=subject))
