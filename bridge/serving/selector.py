"""The thread that handles all connections of one server which wait for their clients.

It accepts connections, reads requests, sends the rest of answers, and passes a connection to a worker for a step of the
TLS handshake or a complete request. It replaces cheroot's ConnectionManager, which handles only idle connections and
has deadlines only for them.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import cheroot.errors

from bridge.logs import kv
from bridge.serving.http_connection import ClosedError, Connection
from bridge.telemetry.metrics import CONNECTIONS_CLOSED

log = logging.getLogger(__name__)

LIMIT = 1000
"""Maximum number of waiting connections; a further one closes the connection with the longest time without progress."""
HELD_LIMIT = 128 * 2**20
"""Maximum bytes of requests and unsent answers in memory; beyond it, the slowest connection is closed."""
_ACCEPTS = 64
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connections:
    """The waiting connections of ``server``, with the methods that cheroot's server calls on its ConnectionManager."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._limit = LIMIT
        self._held_limit = HELD_LIMIT
        self._epoll = select.epoll()
        self._listener: socket.socket = server.socket
        # a client may be gone between the poll and accept(), which would then block all connections
        self._listener.setblocking(False)
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._waiting: dict[int, Connection] = {}  # workers change it: iterate over a copy
        self._held = 0
        self._lock = threading.Lock()
        self._serving = False
        self._stopping = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def can_add_keepalive_connection(self) -> bool:
        """Whether a connection may be kept after its answer: always, because :data:`LIMIT` closes others."""
        return True

    def put(self, connection: Connection) -> None:
        """Add a connection to the waiting ones; from any thread."""
        try:
            readable = connection.secured and not connection.sending and not connection.discarding
            ready = readable and connection.unread and connection.read()
        except ClosedError:
            connection.close()
            return
        if ready:
            self._server.process_conn(connection)
            return
        self.count(connection, connection.held)
        number = connection.socket.fileno()
        # a connection that a worker uses at each check of deadlines would never expire
        late = connection.deadline <= time.monotonic()
        with self._lock:
            open_still = not self._epoll.closed and number >= 0 and not late
            if open_still:
                self._waiting[number] = connection
                self._epoll.register(number, connection.events)
        if late:
            self._time_out(connection)
        elif not open_still:
            connection.close()

    def run(self, expiration_interval: float) -> None:
        """Serve until :meth:`stop`; check the deadlines every ``expiration_interval`` seconds."""
        self._serving = True
        due = time.monotonic() + expiration_interval
        try:
            while not self._stopping:
                for number, _ in self._epoll.poll(expiration_interval):
                    if number == self._listener.fileno():
                        self._accept()
                    # an earlier event of this round may have closed or passed on the connection
                    elif (connection := self._waiting.get(number)) is not None:
                        self._advance(connection)
                if (now := time.monotonic()) >= due:
                    self._expire(now)
                    due = now + expiration_interval
        finally:
            self._serving = False

    def stop(self) -> None:
        """End :meth:`run` and wait until it has ended."""
        self._stopping = True
        while self._serving:
            time.sleep(0.01)

    def close(self) -> None:
        """Close all waiting connections."""
        with self._lock:
            waiting = list(self._waiting.values())
            self._waiting.clear()
            self._epoll.close()
        for connection in waiting:
            connection.close()

    def count(self, connection: Connection, held: int) -> None:
        """Update the counted bytes of ``connection``; from any thread."""
        with self._lock:
            self._held += held - connection.counted
            connection.counted = held

    def _advance(self, connection: Connection) -> None:
        if connection.discarding:
            if not connection.discard():
                self._drop(connection)
            return
        if not connection.secured:
            self._take(connection)
            self._server.process_conn(connection)
            return
        try:
            if connection.sending:
                events = connection.events
                keep = connection.send()
                if keep and connection.sending and connection.events == events:
                    return
                self._take(connection)
                if keep:
                    self.put(connection)
                else:
                    connection.close()
                return
            complete = connection.read()
            if self._make_room(connection) and complete:
                self._take(connection)
                self._server.process_conn(connection)
        except ClosedError:
            self._drop(connection)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _NO_FILES and not self._evict("too many open files"):
                    time.sleep(0.1)  # the listener stays readable: without a pause this loop would use a whole core
                log.debug("no connection accepted", extra=kv(error=error))
                return
            if len(self._waiting) >= self._limit:
                self._evict("too many connections")
            self._begin(sock, address)

    def _begin(self, sock: Any, address: Any) -> None:
        sock.setblocking(False)
        environment: dict[str, Any] = {}
        if self._server.ssl_adapter is not None:
            try:
                sock, environment = self._server.ssl_adapter.wrap(sock)
            except (OSError, ValueError, cheroot.errors.FatalSSLAlert) as error:
                log.debug("connection refused", extra=kv(peer=address[:1], error=error))
                sock.close()
                return
        connection = Connection(self._server, sock)
        if isinstance(address, tuple):  # a client of a Unix domain socket has none
            connection.remote_addr, connection.remote_port = address[:2]
        connection.ssl_env = environment
        self.put(connection)

    def _expire(self, now: float) -> None:
        for connection in list(self._waiting.values()):
            if connection.deadline <= now:
                self._take(connection)
                self._time_out(connection)

    def _time_out(self, connection: Connection) -> None:
        if not connection.idle and not connection.discarding:
            CONNECTIONS_CLOSED.labels("deadline").inc()
        if connection.time_out():
            self.put(connection)
            return
        with suppress(OSError):
            connection.close()

    def _make_room(self, connection: Connection) -> bool:
        """Close the slowest connections until the memory limit holds; return whether ``connection`` is still open."""
        self.count(connection, connection.held)
        while self._held > self._held_limit:
            holders = [each for each in list(self._waiting.values()) if each.held]
            slowest = min(holders, key=lambda each: each.deadline, default=connection)
            CONNECTIONS_CLOSED.labels("memory").inc()
            self._drop(slowest)
            if slowest is connection:
                return False
        return True

    def _evict(self, why: str) -> bool:
        """Close the connection with the longest time without progress, idle ones last; return whether there was one."""
        if not self._waiting:
            return False
        slowest = min(list(self._waiting.values()), key=lambda each: (each.idle, each.deadline))
        CONNECTIONS_CLOSED.labels("number").inc()
        log.debug("connection closed", extra=kv(peer=slowest.remote_addr, reason=why))
        self._drop(slowest)
        return True

    def _take(self, connection: Connection) -> None:
        with self._lock:
            number = connection.socket.fileno()
            if self._waiting.pop(number, None) is not None:
                self._epoll.unregister(number)

    def _drop(self, connection: Connection) -> None:
        self._take(connection)
        with suppress(OSError):
            connection.close()
