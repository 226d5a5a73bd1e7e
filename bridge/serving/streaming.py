"""Long answers: each gets a separate thread, so that it occupies no worker.

A followed log takes hours, and 200 of them would occupy 200 workers. So a worker reads the request and passes the
connection to a new thread.

The thread writes each piece of the answer when the application yields it; an empty piece sends only the headers. While
the thread waits for the next piece, it cannot detect that the client has closed the connection. One more thread watches
all connections and calls the function that the application has passed to ``environ[ON_HANG_UP]``, which ends the wait.

An answer that changes the protocol of its connection (:mod:`bridge.serving.upgrade`) also uses the thread.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cheroot.server
import cheroot.wsgi

from bridge.logs import kv
from bridge.serving.upgrade import UPGRADE, Duplex

log = logging.getLogger(__name__)

LIMIT = 256
WRITE_TIMEOUT = 4 * 3600.0
"""Seconds that a client may pause reading, for example in a pager; the kubelet has the same limit."""
ON_HANG_UP = "podbridge.on_hang_up"
"""Key in the WSGI environment of a long answer: a function to register a callback. The callback is called once, from
another thread, when the client closes the connection or the server stops."""
PERIOD = 1.0
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
# detects a peer that disappeared without closing the connection within two minutes
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class Streams:
    """The long answers of one server. ``is_long(path)`` selects their requests.

    A request above ``limit`` concurrent answers is answered with 429.
    """

    def __init__(self, is_long: Callable[[str], bool], *, limit: int = LIMIT, name: str = "stream") -> None:
        self.is_long = is_long
        self.limit = limit
        self.name = name
        self._open: set[Any] = set()
        self._hang_ups: dict[int, tuple[socket.socket, Callable[[], object]]] = {}
        self._epoll = select.epoll()
        self._lock = threading.Lock()
        self._ending = False
        self._watcher = threading.Thread(target=self._watch, name=f"{name}-hang-ups", daemon=True)

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        """Start the thread that detects closed connections."""
        self._watcher.start()

    @property
    def watched(self) -> bool:
        """Whether the thread that detects closed connections runs, or the server has stopped it."""
        return self._ending or self._watcher.is_alive()

    def take(self, request: Any) -> bool:
        """Answer the request in a separate thread; return ``False`` if the limit is reached."""
        connection = request.conn
        with self._lock:
            if self._ending or len(self._open) >= self.limit:
                return False
            self._open.add(connection)
        connection.handed_over = True
        thread = threading.Thread(target=self._run, args=(request, connection), name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            connection.handed_over = False
            self._forget(connection)
            return False
        return True

    def on_hang_up(self, connection: Any, call: Callable[[], object]) -> None:
        """Call ``call`` once, from another thread, when the client has closed the connection."""
        sock: socket.socket = connection.socket
        with self._lock:
            self._hang_ups[sock.fileno()] = (sock, call)
            # one shot: a hang-up stays pending until the answer's thread closes the socket, and the watcher would spin
            self._epoll.register(sock.fileno(), select.EPOLLRDHUP | select.EPOLLONESHOT)
            ending = self._ending
        if ending:
            call()

    def end(self) -> None:
        """Abort all answers and accept no more."""
        with self._lock:
            self._ending = True
            connections, calls = list(self._open), [call for _, call in self._hang_ups.values()]
        for connection in connections:
            with suppress(OSError):
                # not SSLSocket.shutdown: it drops the TLS state, so that the other thread would write plain text
                socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)
        for call in calls:
            self._call(call)

    def _watch(self) -> None:
        while not self._ending:
            for number, _ in self._epoll.poll(PERIOD):
                with self._lock:
                    sock, call = self._hang_ups.get(number, (None, None))
                # the file descriptor may belong to another connection now
                if sock is not None and call is not None and hung_up(sock):
                    self._call(call)

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            log.exception("callback of a closed connection failed", extra=kv(server=self.name))

    def _run(self, request: Any, connection: Any) -> None:
        try:
            connection.socket.settimeout(WRITE_TIMEOUT)
            connection.write_directly()
            if connection.socket.family != socket.AF_UNIX:
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in _KEEPALIVE:
                    connection.socket.setsockopt(socket.IPPROTO_TCP, option, value)
            request.respond_now()
        except OSError as error:
            log.debug("client disconnected", extra=kv(server=self.name, peer=connection.remote_addr, error=error))
        except Exception:
            log.exception("answer aborted", extra=kv(server=self.name))
        finally:
            self._forget(connection)
            with suppress(OSError):
                connection.close()

    def _forget(self, connection: Any) -> None:
        with self._lock:
            self._open.discard(connection)
            if self._hang_ups.pop(connection.socket.fileno(), None) is not None:
                with suppress(OSError):
                    self._epoll.unregister(connection.socket.fileno())


# cheroot joins the values of a repeated header only if its list has the header; Kubernetes repeats this one
cheroot.server.comma_separated_headers.append(b"X-Stream-Protocol-Version")  # type: ignore[attr-defined]


class _Headers(cheroot.server.HeaderReader):
    """Ignores ``Expect``: the connection has sent "100 Continue" before it read the body."""

    def _allow_header(self, key_name: bytes) -> bool:
        return key_name != b"Expect"


class StreamRequest(cheroot.server.HTTPRequest):
    """A request that a separate thread may answer."""

    header_reader = _Headers()

    def read_request_line(self) -> bool:
        """Read the first line. For a path like ``//a[``, cheroot raises ValueError and would answer 500."""
        try:
            return bool(super().read_request_line())  # type: ignore[no-untyped-call]
        except ValueError:
            self.simple_response("400 Bad Request", "Malformed Request-URI")
            return False

    def read_request_headers(self) -> bool:
        """Read the headers; refuse a request whose end is unknown."""
        refusal: str | None = self.conn.refusal
        if refusal is not None:
            self.simple_response(refusal, "a request body needs one valid Content-Length\n")
            return False
        return bool(super().read_request_headers())  # type: ignore[no-untyped-call]

    def respond(self) -> None:
        """Answer in this thread, or start a separate thread for a long answer."""
        streams: Streams | None = self.server.streams
        if streams is None or not streams.is_long(self.path.decode("latin-1")):
            self.respond_now()
            return
        self.close_connection = True  # no worker will read another request from this connection
        if not streams.take(self):
            self.simple_response("429 Too Many Requests", f"{streams.limit} answers of this kind are in progress\n")

    def respond_now(self) -> None:
        """Answer in this thread."""
        super().respond()


class Gateway(cheroot.wsgi.Gateway_10):
    """Writes the pieces of a long answer at once."""

    def respond(self) -> None:
        """Call the application and write the pieces of its answer."""
        connection = self.req.conn
        if not connection.handed_over:
            super().respond()
            return
        streams: Streams = self.req.server.streams
        self.env[ON_HANG_UP] = lambda call: streams.on_hang_up(connection, call)
        converse: list[Callable[[Duplex], object]] = []
        self.env[UPGRADE] = converse.append
        pieces = self.req.server.wsgi_app(self.env, self.start_response)
        try:
            for piece in pieces:
                if piece:
                    self.write(piece)
                else:
                    self.req.ensure_headers_sent()
            self.req.ensure_headers_sent()
            if converse and self.req.status.startswith(b"101"):
                converse[-1](Duplex(connection.socket, connection.take_received(), WRITE_TIMEOUT))
        finally:
            if hasattr(pieces, "close"):
                pieces.close()


def hung_up(sock: socket.socket) -> bool:
    """Whether the peer has closed the connection or disappeared."""
    poll = select.poll()
    poll.register(sock.fileno(), _HANG_UP)
    return bool(poll.poll(0))
