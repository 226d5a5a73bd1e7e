"""Answers that take long: requests that get a thread of their own, so that they hold no worker.

A log that is followed goes on for hours. Two hundred of them would need two hundred workers, idle at all other times;
here a worker reads the request, hands the connection over to a thread made for it, and is free again.

The answer's pieces are written as they come; an empty one brings the headers to the client. While the thread waits for
the next piece it can't notice that the client has hung up: one more thread watches all the connections, and calls what
the application has given to ``environ[ON_HANG_UP]``, which ends the wait.
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

log = logging.getLogger(__name__)

LIMIT = 256
WRITE_TIMEOUT = 4 * 3600.0
"""Seconds for which a client may stop reading (a pager that waits for its user); a kubelet's own limit."""
ON_HANG_UP = "podbridge.on_hang_up"
"""Key in the WSGI environment of a long answer: a function that takes what to call, once and from another thread, when
the client has hung up or the server stops."""
PERIOD = 1.0
_HANG_UP = select.POLLRDHUP | select.POLLHUP | select.POLLERR
# a peer that vanished without a word is noticed within two minutes
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


class Streams:
    """The long answers of one server: ``wanted(path)`` says which requests they are, ``limit`` how many at once.

    Beyond the limit, requests are answered 429.
    """

    def __init__(self, wanted: Callable[[str], bool], *, limit: int = LIMIT, name: str = "stream") -> None:
        self.wanted = wanted
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
        """Begin to watch for clients that hang up."""
        self._watcher.start()

    @property
    def watched(self) -> bool:
        """Whether hang-ups are noticed, as long as they should be."""
        return self._ending or self._watcher.is_alive()

    def take(self, request: Any) -> bool:
        """Have the request answered by a thread of its own; ``False`` when there are too many."""
        connection = request.conn
        with self._lock:
            if self._ending or len(self._open) >= self.limit:
                return False
            self._open.add(connection)
        connection.handed_over = True
        thread = threading.Thread(target=self._run, args=(request, connection), name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads
            connection.handed_over = False
            self._forget(connection)
            return False
        return True

    def on_hang_up(self, connection: Any, call: Callable[[], object]) -> None:
        """Have ``call`` called once when the client has hung up, from another thread."""
        sock: socket.socket = connection.socket
        with self._lock:
            self._hang_ups[sock.fileno()] = (sock, call)
            self._epoll.register(sock.fileno(), select.EPOLLRDHUP | select.EPOLLONESHOT)
            ending = self._ending
        if ending:
            call()

    def end(self) -> None:
        """Break every answer off, and take no more."""
        with self._lock:
            self._ending = True
            connections, calls = list(self._open), [call for _, call in self._hang_ups.values()]
        for connection in connections:
            with suppress(OSError):
                # not SSLSocket.shutdown, which would first make the other thread's writes plain text
                socket.socket.shutdown(connection.socket, socket.SHUT_RDWR)
        for call in calls:
            self._call(call)

    def _watch(self) -> None:
        while not self._ending:
            for number, _ in self._epoll.poll(PERIOD):
                with self._lock:
                    sock, call = self._hang_ups.get(number, (None, None))
                # the number may have gone to another connection since
                if sock is not None and call is not None and hung_up(sock):
                    self._call(call)

    def _call(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:
            log.exception("the end of an answer failed", extra=kv(server=self.name))

    def _run(self, request: Any, connection: Any) -> None:
        try:
            connection.socket.settimeout(WRITE_TIMEOUT)
            connection.write_directly()
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                connection.socket.setsockopt(socket.IPPROTO_TCP, option, value)
            request.respond_now()
        except OSError as error:
            log.debug("client gone", extra=kv(server=self.name, peer=connection.remote_addr, error=error))
        except Exception:
            log.exception("answer broken off", extra=kv(server=self.name))
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


class _Headers(cheroot.server.HeaderReader):
    """Leaves out ``Expect``: the connection has said "100 Continue" before it read the body."""

    def _allow_header(self, key_name: bytes) -> bool:
        return key_name != b"Expect"


class Request(cheroot.server.HTTPRequest):
    """A request that may be handed over once it has been read."""

    header_reader = _Headers()

    def read_request_line(self) -> bool:
        """Read the first line; cheroot lets the error of a path like ``//a[`` through, which would be answered 500."""
        try:
            return bool(super().read_request_line())  # type: ignore[no-untyped-call]
        except ValueError:
            self.simple_response("400 Bad Request", "Malformed Request-URI")
            return False

    def read_request_headers(self) -> bool:
        """Read the headers; a request whose end is not known is refused."""
        refusal: str | None = self.conn.refusal
        if refusal is not None:
            self.simple_response(refusal, "a request body needs one valid Content-Length\n")
            return False
        return bool(super().read_request_headers())  # type: ignore[no-untyped-call]

    def respond(self) -> None:
        """Answer, or have it answered."""
        streams: Streams | None = self.server.streams
        if streams is None or not streams.wanted(self.path.decode("latin-1")):
            self.respond_now()
            return
        self.close_connection = True  # what would read the next request is the thread that has gone on
        if not streams.take(self):
            self.simple_response("429 Too Many Requests", f"{streams.limit} answers of this kind are under way\n")

    def respond_now(self) -> None:
        """Answer in this thread."""
        super().respond()


class Gateway(cheroot.wsgi.Gateway_10):
    """Writes a long answer as it comes."""

    def respond(self) -> None:
        """Call the application and write its pieces."""
        connection = self.req.conn
        if not connection.handed_over:
            super().respond()
            return
        streams: Streams = self.req.server.streams
        self.env[ON_HANG_UP] = lambda call: streams.on_hang_up(connection, call)
        pieces = self.req.server.wsgi_app(self.env, self.start_response)
        try:
            for piece in pieces:
                if piece:
                    self.write(piece)
                else:
                    self.req.ensure_headers_sent()
            self.req.ensure_headers_sent()
        finally:
            if hasattr(pieces, "close"):
                pieces.close()


def hung_up(sock: socket.socket) -> bool:
    """Whether the other side has closed the connection, or is gone."""
    poll = select.poll()
    poll.register(sock.fileno(), _HANG_UP)
    return bool(poll.poll(0))
