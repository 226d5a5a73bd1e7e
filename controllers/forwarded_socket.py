"""Data between a socket of the cluster and a connection at a site."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading

from prometheus_client import Counter

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.protocol.model.sessions import Connection
from bridge.relay.multiplexer import close_with_reset

log = logging.getLogger(__name__)

PIECE = 64 * 1024
HALF_OPEN = 60.0
"""Seconds without data after which a connection is closed whose other direction the pod has ended."""
PATIENCE = 600.0
"""Seconds for which a client that takes nothing is waited for, once the connection at the site is over."""
_KEEPALIVE = {socket.TCP_NODELAY: 1, socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}


class ForwardedSocket:
    """A socket of the cluster, whose data goes to a connection at a site. It is reset if it ends before all is sent.

    ``counter`` counts the bytes to the pod (``in``) and from it (``out``).
    """

    def __init__(self, sock: socket.socket, counter: Counter) -> None:
        self._socket, self._counter = sock, counter
        self._is_complete = self._is_over = False
        self.sent = self.received = 0
        self.peer = ""
        with contextlib.suppress(OSError):  # the other end may be gone already
            self.peer = str(sock.getpeername()[0])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(PATIENCE))
            for option, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def forward(self, session: Connection) -> str:
        """Forward data in both directions, until both have ended or one side is gone; return why, for the log."""
        sender = threading.Thread(target=self._send_input, args=(session,), name="forwarded-input", daemon=True)
        sender.start()
        try:
            while data := session.receive():
                self._send(session, data)
                self.received += len(data)
                self._counter.labels("out").inc(len(data))
            if data is None:
                return "reset by the port"
            self._socket.shutdown(socket.SHUT_WR)
            self._await_end(sender)
            return "closed by both sides" if self._is_complete else "closed by the port"
        finally:
            self._is_over = True
            session.close()
            # ends a recv() of the other thread, and sends nothing
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)
            sender.join()

    def _send(self, session: Connection, data: bytes) -> None:
        """Send all data, as long as the socket takes some or the connection at the site is there."""
        with memoryview(data) as view:
            sent = 0
            while sent < len(data):
                try:
                    sent += self._socket.send(view[sent:])
                except BlockingIOError:  # for PATIENCE
                    if session.is_over:
                        raise

    def _await_end(self, sender: threading.Thread) -> None:
        """Wait for the end of the socket's direction, as long as it sends something."""
        sent = -1
        while sender.is_alive() and self.sent != sent:
            sent = self.sent
            sender.join(HALF_OPEN)

    def close(self) -> None:
        """Close the connection."""
        if self._is_complete:
            self._socket.close()
        else:
            close_with_reset(self._socket)

    def _send_input(self, session: Connection) -> None:
        try:
            while data := self._socket.recv(PIECE):
                session.send(data)
                self.sent += len(data)
                self._counter.labels("in").inc(len(data))
            if not self._is_over:
                session.end_input()
                self._is_complete = True
        except (BridgeError, OSError) as error:
            log.debug("input of a forwarded connection ended", extra=kv(error=error))
            session.close()


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
