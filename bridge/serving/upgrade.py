"""A connection that changes its protocol after a request (RFC 9110, section 7.8): from then on both sides send freely.

The application answers with :func:`switch_protocols`. The server sends the answer and calls the function from it with
the connection, in the thread of the long answer (:mod:`bridge.serving.streaming`).
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import flask

from bridge.serving.http_error import AnswerError

UPGRADE = "podbridge.upgrade"
"""Key in the WSGI environment of a long answer: a function to register the function that uses the connection."""
_PIECE = 2**16
_MOST_LATER = 16
_Converse = Callable[["Duplex"], object]


class ProtocolViolationError(Exception):
    """The client has violated the protocol or a limit. The connection is of no more use."""


class Duplex:
    """A connection that one thread receives from while other threads send. All methods may raise OSError.

    OpenSSL does not permit two threads in one TLS connection at the same time, and one that waits in ``recv`` would
    keep out those that send. So the socket does not block, a lock protects each call, and threads wait outside of it.
    """

    def __init__(self, sock: socket.socket, received: bytes, write_timeout: float) -> None:
        """``received``: bytes that were read behind the request; ``write_timeout`` in seconds."""
        sock.setblocking(False)
        self._sock = sock
        self._received = received
        self._write_timeout = write_timeout
        self._call = threading.Lock()
        self._sending = threading.Lock()
        self._later: deque[bytes] = deque()
        self._ended = False

    def receive(self) -> bytes:
        """Wait for bytes of the client; empty at the end."""
        if received := self._received:
            self._received = b""
            return received
        while True:
            try:
                with self._call:
                    return self._sock.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)

    def send(self, data: bytes) -> None:
        """Send all of ``data``; wait at most the time limit for each part that the client accepts."""
        with self._sending:
            self._send(data)
        self._send_later()

    def send_soon(self, data: bytes) -> bool:
        """Send ``data`` without a wait for other threads that send: one of them sends it after its own data.

        Return false, and drop it, if too much is waiting already. Ignored after :meth:`end`.
        """
        if len(self._later) >= _MOST_LATER:
            return False
        self._later.append(data)
        self._send_later()
        return True

    def end(self) -> None:
        """End the sending direction; the client can still send."""
        with self._sending:
            self._ended = True
            # not SSLSocket.shutdown, which drops the TLS state
            socket.socket.shutdown(self._sock, socket.SHUT_WR)

    def abort(self) -> None:
        """End both directions: :meth:`receive` and :meth:`send` return or raise in all threads."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def _send(self, data: bytes) -> None:
        sent = 0
        with memoryview(data) as view:
            while sent < len(data):
                try:
                    with self._call:
                        sent += self._sock.send(view[sent : sent + _PIECE])
                except (BlockingIOError, ssl.SSLWantWriteError):
                    self._wait(select.POLLOUT, self._write_timeout)
                except ssl.SSLWantReadError:
                    self._wait(select.POLLIN, self._write_timeout)

    def _send_later(self) -> None:
        # whoever holds the lock does this after it: nothing stays behind
        while self._later and self._sending.acquire(blocking=False):
            try:
                while self._later:
                    data = self._later.popleft()
                    if not self._ended:
                        self._send(data)
            finally:
                self._sending.release()

    def _wait(self, events: int, seconds: float | None = None) -> None:
        poll = select.poll()
        poll.register(self._sock, events)
        if not poll.poll(None if seconds is None else seconds * 1000):
            raise TimeoutError("the client does not receive")


def negotiate(offered: str, accepted: Sequence[str]) -> str:
    """Return the first of the ``accepted`` protocols that a client offers in a header.

    Raises :class:`AnswerError` 403 with the words of a kubelet if it offers none of them.
    """
    names = [name for word in offered.split(",") if (name := word.strip())]
    for protocol in accepted:
        if protocol in names:
            return protocol
    raise AnswerError(
        403,
        f"unable to upgrade: unable to negotiate protocol: client supports {', '.join(names) or 'none'}, "
        f"server accepts {', '.join(accepted)}",
    )


def switch_protocols(protocol: str, converse: _Converse, headers: dict[str, str]) -> flask.Response:
    """Return the answer 101, after which the server calls ``converse`` with the connection.

    The connection is closed when it returns. Only the server of a long answer can switch.
    """
    flask.request.environ[UPGRADE](converse)
    response = flask.Response(status=101, headers={"Connection": "Upgrade", "Upgrade": protocol, **headers})
    del response.headers["Content-Type"]
    return response
