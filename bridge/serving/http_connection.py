"""One connection of a client. No method blocks until the client sends or receives.

cheroot reads from the socket in a worker thread, so a client that sends one byte every few seconds occupies a thread.
Here the selector collects the bytes of a request, a worker gets the complete request, and the selector sends the
answer. Each stage has one deadline for all of its bytes, which only the bytes of a request postpone:

==============  ====================================================================
handshake       :data:`HANDSHAKE_TIMEOUT` from the start of the connection
request         :data:`REQUEST_TIMEOUT` from its first byte, and 1 s more for each :data:`LEAST_RATE` bytes, but not
                more than :data:`REQUEST_TIMEOUT` after a byte; then 408
answer          :data:`ANSWER_TIMEOUT` from its creation until all of it is sent
discard         :data:`DISCARD_TIMEOUT` after the answer to a request that was not read to its end
idle            :data:`IDLE_TIMEOUT` until the first byte of the next request
==============  ====================================================================

The stage *discard* exists because TCP answers bytes that arrive on a closed socket with a reset, and a client that gets
a reset while it sends may never read the answer (RFC 9112, section 9.6).
"""

from __future__ import annotations

import io
import logging
import select
import socket
import ssl
import time
from typing import Any

import cheroot.server
from cheroot.makefile import MakeFile

from bridge.logs import kv
from bridge.serving.certificates import ServerContext
from bridge.serving.framing import Frame, frame
from bridge.serving.streaming import StreamRequest

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 5.0
REQUEST_TIMEOUT = 10.0
LEAST_RATE = 2**16
"""Bytes per second at which a request that takes longer must arrive: a body of some MiB may come over a slow line, and
a client that stops sending loses its connection as soon as any other."""
ANSWER_TIMEOUT = 30.0
DISCARD_TIMEOUT = 2.0
DISCARD_LIMIT = 16 * 2**20
"""Bytes to discard at most after the answer to a request that was not read to its end."""
IDLE_TIMEOUT = 120.0
"""Longer than the API server keeps an idle connection (90 s): if this server closed it first, a request in transit
would be lost, and Go does not retry a POST."""
PEER_CERTIFICATE = "podbridge.peer_certificate"
"""Key in the WSGI environment; no header of a request can have this name."""
MAX_COUNTED = 32 * 2**20
"""Maximum bytes of an answer that count as held: a long list of pods is not an attack and may be longer."""
_PIECE = 2**16
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ClosedError(Exception):
    """The client has closed the connection, or the connection is broken."""


class Output:
    """A buffer for an answer, with the file methods that cheroot calls."""

    def __init__(self) -> None:
        self.pending = bytearray()
        self.bytes_written = 0

    def write(self, data: bytes) -> int:
        """Append to the pending bytes."""
        self.pending += data
        self.bytes_written += len(data)
        return len(data)


class Connection(cheroot.server.HTTPConnection):
    """A connection in one of the stages handshake, request, answer, discard and idle.

    One thread at a time uses it: the selector, or the worker that has its request.
    """

    RequestHandlerClass = StreamRequest
    handed_over = False
    """Whether a separate thread uses the connection to write a long answer."""
    counted = 0
    """Bytes that the server has counted as held in memory."""
    discarding = False
    """Whether the answer is complete, and received bytes are discarded until the client closes the connection."""

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
        self._whole = True
        self._discarded = 0

    @property
    def idle(self) -> bool:
        """Whether the connection waits for the first byte of a request."""
        return self.secured and not self._received and not self.sending and not self.discarding

    @property
    def sending(self) -> bool:
        """Whether a part of the answer is still to be sent."""
        return not self.handed_over and bool(self.wfile.pending)

    @property
    def held(self) -> int:
        """Bytes in memory: the request, and at most :data:`MAX_COUNTED` of the answer."""
        answer = 0 if self.handed_over else len(self.wfile.pending)
        return len(self._received) + min(answer, MAX_COUNTED)

    @property
    def complete(self) -> bool:
        """Whether a complete request has been read."""
        return self._frame is not None and len(self._received) >= self._frame.size

    @property
    def unread(self) -> bool:
        """Whether received bytes are buffered, which the selector's poll of the socket does not show."""
        return bool(self._received) or (isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0)

    def read(self) -> bool:
        """Read the available bytes; return whether a request is complete. Raises :class:`ClosedError`."""
        while not self._framed():
            try:
                data = self.socket.recv(_PIECE)
            except _WOULD_BLOCK:
                return False
            except (OSError, ValueError) as error:
                raise ClosedError(str(error)) from error
            if not data:
                raise ClosedError("closed by the client")
            latest = time.monotonic() + REQUEST_TIMEOUT
            self.deadline = min(latest, self.deadline + len(data) / LEAST_RATE) if self._received else latest
            self._received += data
        return True

    def _framed(self) -> bool:
        if self._frame is None and self._received:
            self._frame = frame(self._received, self.server.max_request_body_size, self._searched)
            self._searched = len(self._received)
            if self._frame is not None and self._frame.expects_continue and not self.complete:
                self._send_now(_CONTINUE)
        return self.complete

    def communicate(self) -> bool:
        """Continue in a worker: the handshake, or a request and its answer. Return whether to keep the connection."""
        try:
            if not self.secured:
                if not self._shake_hands():
                    return False
                # a read during the handshake would complete it without the client's certificate being stored
                return not self.secured or not self.read() or self._answer()
            if isinstance(self.socket, ssl.SSLSocket) and not self._trusted(self.socket):
                return False
            return self._answer()
        except ClosedError as error:
            log.debug("client disconnected", extra=kv(peer=self.remote_addr, error=error))
            return False

    def send(self) -> bool:
        """Send as much as the socket accepts; return whether to keep the connection. Raises :class:`ClosedError`."""
        pending = self.wfile.pending
        while pending:
            try:
                # no copy; the views are released before `del`, because a bytearray with views cannot be resized
                with memoryview(pending) as view, view[:_PIECE] as piece:
                    sent = self.socket.send(piece)
            except ssl.SSLWantReadError:
                self.events = select.EPOLLIN
                return True
            except _WOULD_BLOCK:
                self.events = select.EPOLLOUT
                return True
            except (OSError, ValueError) as error:
                raise ClosedError(str(error)) from error
            del pending[:sent]
        self.events = select.EPOLLIN
        self.deadline = time.monotonic() + (REQUEST_TIMEOUT if self._received else IDLE_TIMEOUT)
        return not self._closing or (not self._whole and self._begin_discard())

    def discard(self) -> bool:
        """Discard some received bytes; return false at the end of the stream and beyond :data:`DISCARD_LIMIT`."""
        try:
            data = socket.socket.recv(self.socket, _PIECE)  # not SSLSocket.recv: nobody needs the decrypted bytes
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._discarded += len(data)
        return bool(data) and self._discarded <= DISCARD_LIMIT

    def _begin_discard(self) -> bool:
        """Close the sending direction and enter the stage discard; return false if the connection is broken."""
        self._received.clear()
        self._frame, self._searched = None, 0
        try:
            # not SSLSocket.shutdown, which drops the TLS state
            socket.socket.shutdown(self.socket, socket.SHUT_WR)
        except OSError:
            return False
        self.discarding = True
        self.events = select.EPOLLIN
        self.deadline = time.monotonic() + DISCARD_TIMEOUT
        return True

    def finish(self, seconds: float) -> None:
        """Send the rest of the answer while the server stops, waiting at most ``seconds`` for each piece."""
        if self.sending:
            self.socket.settimeout(seconds)
            self.send()

    def close(self) -> None:
        """Close the socket and release the counted memory."""
        self.server.release(self)
        super().close()

    def write_directly(self) -> None:
        """Write the answer to the socket directly; the calling thread may then block on the client."""
        self.wfile = MakeFile(self.socket, "wb")

    def take_received(self) -> bytes:
        """Return the bytes behind the request, which belong to the next protocol."""
        received = bytes(self._received)
        self._received.clear()
        return received

    def time_out(self) -> bool:
        """Answer 408 if a request is incomplete; return whether to keep the connection to discard the rest of it."""
        if self.secured and self._received and not self.sending:
            return self._send_now(_TIMED_OUT) and self._begin_discard()
        return False

    def _send_now(self, text: bytes) -> bool:
        try:
            self.socket.send(text)
        except (OSError, ValueError) as error:
            log.debug("answer not sent", extra=kv(peer=self.remote_addr, error=error))
            return False
        return True

    def _answer(self) -> bool:
        request = self._frame
        if request is None:  # the next request is incomplete
            return True
        # one copy: requests may be large; the views are released before `del`
        with memoryview(self._received) as view, view[: request.size] as received:
            self.rfile = io.BytesIO(bytes(received))
        self.refusal = request.refusal
        self._whole = request.whole
        del self._received[: request.size]
        self._frame, self._searched = None, 0
        self._closing = not super().communicate()  # type: ignore[no-untyped-call]
        if self.handed_over:
            return True
        self.deadline = time.monotonic() + ANSWER_TIMEOUT
        return self.send()

    def _trusted(self, sock: ssl.SSLSocket) -> bool:
        # the trusted authorities may have changed since the handshake; the client opens a new connection
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
