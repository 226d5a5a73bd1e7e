"""Received messages that are not yet handled: one queue for each pool, read in turn.

A pool that sends many messages fills only its own queue. Messages that do not fit are dropped and counted, and the pool
receives a request for a snapshot. A pool that sends more than :data:`MOST_RATE` messages a second is reported as
flooding, so that the caller can unsubscribe from it for a while. Otherwise its messages would delay those of all other
pools on the same connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from bridge.telemetry.metrics import POOL_MESSAGES_DROPPED

MOST_MESSAGES = 20_000
"""Messages in one queue, at most: the events of 10,000 jobs that start at once."""
MOST_BYTES = 32 * 2**20
"""Bytes in one queue, at most."""
MOST_QUEUES = 2_000
"""Queues, at most; beyond it the empty ones are deleted."""
MOST_RATE = 3_000
"""Messages of one pool in a second, at most. A site where 10,000 jobs start at once sends 750 a second."""
MOST_BYTE_RATE = 8 * 2**20
"""Bytes of one pool in a second after decompression, at most."""

Message = tuple[str, bytes]
"""Subject and data."""


class _Queue:
    """The messages of one pool, and the number and bytes of those that have arrived in this second."""

    __slots__ = ("bytes", "bytes_in_second", "has_lost", "messages", "messages_in_second", "second_began")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.bytes = 0
        self.has_lost = False
        self.second_began = 0.0
        self.messages_in_second = 0
        self.bytes_in_second = 0


class Inbox:
    """The queues of all pools. ``put`` runs on the link's loop and takes microseconds; one thread calls ``get``.

    ``on_flood`` is called on the loop or on this thread, at most once a second for each pool, with the name of a
    flooding pool.
    """

    def __init__(self, on_flood: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._on_flood = on_flood
        self._monotonic = monotonic
        self._has_messages = threading.Condition()
        self._queues: dict[str, _Queue] = {}
        self._pools_in_turn: deque[str] = deque()

    def put(self, pool: str, message: Message) -> None:
        """Add a message of a pool, or drop it."""
        size = len(message[1])
        with self._has_messages:
            queue = self._queues.get(pool) or self._add(pool)
            is_flooding = self._count(queue, 1, size)
            has_room = len(queue.messages) < MOST_MESSAGES and queue.bytes + size <= MOST_BYTES
            if has_room:
                if not queue.messages:
                    self._pools_in_turn.append(pool)
                queue.messages.append(message)
                queue.bytes += size
                self._has_messages.notify()
            else:
                queue.has_lost = True
        if not has_room:
            POOL_MESSAGES_DROPPED.labels(pool).inc()
        if is_flooding:
            self._on_flood(pool)

    def charge(self, pool: str, size: int) -> None:
        """Count further bytes of a pool: those by which a message grew when it was decompressed."""
        with self._has_messages:
            queue = self._queues.get(pool)
            is_flooding = queue is not None and self._count(queue, 0, size)
        if is_flooding:
            self._on_flood(pool)

    def get(self, timeout: float) -> tuple[str, Message, bool] | None:
        """Return the next pool in turn, its next message, and whether messages of it were dropped since the last one.

        Return ``None`` if no message arrives for ``timeout`` seconds.
        """
        with self._has_messages:
            if not self._pools_in_turn and not self._has_messages.wait_for(lambda: self._pools_in_turn, timeout):
                return None
            pool = self._pools_in_turn.popleft()
            queue = self._queues[pool]
            message = queue.messages.popleft()
            queue.bytes -= len(message[1])
            if queue.messages:
                self._pools_in_turn.append(pool)
            has_lost, queue.has_lost = queue.has_lost, False
            return pool, message, has_lost

    def clear(self, pool: str) -> None:
        """Drop all messages of one pool."""
        with self._has_messages:
            queue = self._queues.get(pool)
            if queue is not None and queue.messages:
                POOL_MESSAGES_DROPPED.labels(pool).inc(len(queue.messages))
                queue.messages.clear()
                queue.bytes = 0
                self._pools_in_turn.remove(pool)

    def forget(self, pool: str) -> None:
        """Delete the queue of a removed pool, and drop its messages."""
        self.clear(pool)
        with self._has_messages:
            if pool not in self._pools_in_turn:
                self._queues.pop(pool, None)

    def _count(self, queue: _Queue, messages: int, size: int) -> bool:
        """Count what has arrived; return whether the pool exceeds a rate for the first time in this second."""
        now = self._monotonic()
        if now - queue.second_began >= 1:
            queue.second_began, queue.messages_in_second, queue.bytes_in_second = now, 0, 0
        had_exceeded = queue.messages_in_second > MOST_RATE or queue.bytes_in_second > MOST_BYTE_RATE
        queue.messages_in_second += messages
        queue.bytes_in_second += size
        return not had_exceeded and (queue.messages_in_second > MOST_RATE or queue.bytes_in_second > MOST_BYTE_RATE)

    def _add(self, pool: str) -> _Queue:
        if len(self._queues) >= MOST_QUEUES:
            for name in [name for name, queue in self._queues.items() if not queue.messages]:
                del self._queues[name]
        queue = self._queues[pool] = _Queue()
        return queue
