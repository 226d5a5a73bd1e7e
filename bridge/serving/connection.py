"""One connection of a client: read, answered and written without ever waiting for the client.

cheroot reads from the socket in a worker thread, so a client that sends one byte every few seconds holds the thread.
Here bytes are collected as they come, the worker gets a complete request, and its answer is collected and sent as the
client takes it. Each stage has a deadline for the whole of it:

==============  ====================================================================
handshake       :data:`HANDSHAKE_TIMEOUT` from the connection on
request         :data:`REQUEST_TIMEOUT` from its first byte to its last; then 408
answer          :data:`ANSWER_TIMEOUT` from the time it is ready until all of it is sent
idle            :data:`IDLE_TIMEOUT` until the first byte of the next request
==============  ====================================================================
"""

from __future__ import annotations

import io
import logging
import select
import ssl
import time
from typing import Any

import cheroot.server
from cheroot.makefile import MakeFile

from bridge.logs import kv
from bridge.serving.certificates import ServerContext
from bridge.serving.framing import Frame, frame
from bridge.serving.streaming import Request

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
ANSWER_TIMEOUT = 30.0
IDLE_TIMEOUT = 120.0
"""Longer than the API server keeps an idle connection (90 s): if the server is the one to close, a request that is just
on its way is lost, and Go does not send a POST twice."""
PEER_CERTIFICATE = "podbridge.peer_certificate"
"""Key in the WSGI environment; no header of a request can have that name."""
LONGEST_COUNTED = 32 * 2**20
"""Bytes: a list of very many pods is no attack, and may be longer."""
_PIECE = 2**16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ClosedError(Exception):
    """The client has closed the connection, or it is broken."""


class Output:
    """Collects an answer; cheroot writes it as to a file."""

    def __init__(self) -> None:
        self.pending = bytearray()
        self.bytes_written = 0

    def write(self, data: bytes) -> int:
        """Add to what is to be sent."""
        self.pending += data
        self.bytes_written += len(data)
        return len(data)


class Connection(cheroot.server.HTTPConnection):
    """A connection in one of four stages: handshake, request, answer, idle.

    At any time one thread has it: the selector's, or the worker that has its request.
    """

    RequestHandlerClass = Request
    handed_over = False
    """Whether a thread of its own has it, which writes a long answer."""
    counted = 0
    """Bytes that the server has counted as held in memory."""

    def __init__(self, server: Any, sock: Any, makefile: Any = None) -> None:
        super().__init__(server, sock, lambda *_: Output())
        self.rfile = io.BytesIO()
        self.events = select.EPOLLIN
        self.secured = not isinstance(sock, ssl.SSLSocket)
        self.deadline = time.monotonic() + (IDLE_TIMEOUT if self.secured else HANDSHAKE_TIMEOUT)
        self.refusal: str | None = None
        self._received = bytearray()
        self._searched = 0
        self._frame: Frame | None = None
        self._closing = False

    @property
    def idle(self) -> bool:
        """Whether the connection waits for the first byte of a request."""
        return self.secured and not self._received and not self.sending

    @property
    def sending(self) -> bool:
        """Whether a part of the answer is not sent yet."""
        return not self.handed_over and bool(self.wfile.pending)

    @property
    def held(self) -> int:
        """Bytes in memory: of the request, and of the answer, which counts up to :data:`LONGEST_COUNTED`."""
        answer = 0 if self.handed_over else len(self.wfile.pending)
        return len(self._received) + min(answer, LONGEST_COUNTED)

    @property
    def complete(self) -> bool:
        """Whether a whole request has been read."""
        return self._frame is not None and len(self._received) >= self._frame.size

    @property
    def unread(self) -> bool:
        """Whether bytes have come that the selector does not know of: it looks at the socket alone."""
        return bool(self._received) or (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0)

    def read(self) -> bool:
        """Read what has come; return whether a whole request is there. Raises :class:`ClosedError`."""
        while not self._framed():
            try:
                data = self.socket.recv(_PIECE)
            except _LATER:
                return False
            except (OSError, ValueError) as error:
                raise ClosedError(str(error)) from error
            if not data:
                raise ClosedError("closed by the client")
            if not self._received:
                self.deadline = time.monotonic() + REQUEST_TIMEOUT
            self._received += data
        return True

    def _framed(self) -> bool:
        if self._frame is None and self._received:
            self._frame = frame(self._received, self.server.max_request_body_size, self._searched)
            self._searched = len(self._received)
            if self._frame is not None and self._frame.expects_continue and not self.complete:
                self._say(_CONTINUE)
        return self.complete

    def communicate(self) -> bool:
        """Take the next step in a worker: the handshake, or a request and its answer; return whether to keep it."""
        try:
            if not self.secured:
                if not self._shake_hands():
                    return False
                # a read before the end of the handshake would end it, and the client's certificate would not be seen
                return not self.secured or not self.read() or self._answer()
            if isinstance(self.socket, ssl.SSLSocket) and not self._trusted(self.socket):
                return False
            return self._answer()
        except ClosedError as error:
            log.debug("client gone", extra=kv(peer=self.remote_addr, error=error))
            return False

    def send(self) -> bool:
        """Send what the client takes now; return whether to keep the connection. Raises :class:`ClosedError`."""
        pending = self.wfile.pending
        while pending:
            try:
                with memoryview(pending) as view, view[:_PIECE] as piece:
                    sent = self.socket.send(piece)
            except ssl.SSLWantReadError:
                self.events = select.EPOLLIN
                return True
            except _LATER:
                self.events = select.EPOLLOUT
                return True
            except (OSError, ValueError) as error:
                raise ClosedError(str(error)) from error
            del pending[:sent]
        self.events = select.EPOLLIN
        self.deadline = time.monotonic() + (REQUEST_TIMEOUT if self._received else IDLE_TIMEOUT)
        return not self._closing

    def finish(self, seconds: float) -> None:
        """Send the rest of the answer, waiting at most ``seconds`` for each piece; the server is stopping."""
        if self.sending:
            self.socket.settimeout(seconds)
            self.send()

    def close(self) -> None:
        """Close the socket and give the memory back."""
        self.server.release(self)
        super().close()

    def write_directly(self) -> None:
        """Have the answer written to the socket at once, by a thread of its own that may wait for the client."""
        self.wfile = MakeFile(self.socket, "wb")

    def time_out(self) -> None:
        """Say that the request took too long, if there is one."""
        if self.secured and self._received and not self.sending:
            self._say(_TIMED_OUT)

    def _say(self, text: bytes) -> None:
        try:
            self.socket.send(text)
        except (OSError, ValueError) as error:
            log.debug("client can't be told", extra=kv(peer=self.remote_addr, error=error))

    def _answer(self) -> bool:
        request = self._frame
        if request is None:  # bytes of a next request that is not complete yet
            return True
        self.rfile = io.BytesIO(bytes(self._received[: request.size]))
        self.refusal = request.refusal
        del self._received[: request.size]
        self._frame, self._searched = None, 0
        self._closing = not super().communicate()  # type: ignore[no-untyped-call]
        if self.handed_over:
            return True
        self.deadline = time.monotonic() + ANSWER_TIMEOUT
        return self.send()

    def _trusted(self, sock: ssl.SSLSocket) -> bool:
        # who was trusted at the handshake may not be now; a client asks again on a new connection
        return _clients(sock.context) == _clients(self.server.ssl_adapter.context)

    def _shake_hands(self) -> bool:
        sock = self.socket
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self.events = select.EPOLLIN
            return True
        except ssl.SSLWantWriteError:
            self.events = select.EPOLLOUT
            return True
        except (OSError, ValueError) as error:
            log.debug("handshake failed", extra=kv(peer=self.remote_addr, error=error))
            return False
        self.secured = True
        self.events = select.EPOLLIN
        self.deadline = time.monotonic() + IDLE_TIMEOUT
        if sock.context.verify_mode != ssl.CERT_NONE and (certificate := sock.getpeercert(binary_form=True)):
            self.ssl_env = {**(self.ssl_env or {}), PEER_CERTIFICATE: certificate}
        return True


def _clients(context: ssl.SSLContext | None) -> bytes:
    return context.clients if isinstance(context, ServerContext) else b""
