"""Many connections over one stream: a part of programs that run beside a job.

It imports nothing of podbridge, and runs with any Python from 3.6 on. :mod:`bridge.relay.relayed` is the other end of
the stream. A frame is a :data:`HEAD` and its payload.
"""

import contextlib
import os
import selectors
import socket
import struct

HEAD = struct.Struct(">BIH")
"""Kind of a frame, number of its connection, bytes that follow."""
OPEN, OPENED, DATA, END, CLOSE, CREDIT, PING, STALE = range(1, 9)
"""``OPEN`` has the target, ``CREDIT`` the bytes that its sender has passed on, ``CLOSE`` the reason (none: reset by the
peer), ``STALE`` refuses ``OPEN``: the containers are others than those at the start. ``PING`` is answered."""
NUMBER = struct.Struct(">I")
PIECE = 16 * 1024
WINDOW = 64 * 1024
"""Bytes of one direction of a connection that the other end has not passed on, at most."""
SILENCE = 60.0
"""Seconds without a frame after which the other end is gone."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class RelayedSocket:
    """One connection. ``to_send`` has what the other end has sent, ``credit`` what it still accepts."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number, self.sock = number, sock
        self.is_open = self.has_received_all = self.is_input_ended = self.is_shut = False
        self.to_send = bytearray()
        self.credit = WINDOW

    @property
    def events(self) -> int:
        """Return what to wait for."""
        if not self.is_open:
            return selectors.EVENT_WRITE
        reads = selectors.EVENT_READ if self.credit > 0 and not self.has_received_all else 0
        return reads | (selectors.EVENT_WRITE if self.to_send else 0)


class Multiplexer:
    """The connections of one stream. One thread; only :meth:`tell` may block: the other end takes everything."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.connections = {}  # type: dict[int, RelayedSocket]
        self._received = b""

    def tell(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame."""
        frame = HEAD.pack(kind, number, len(payload)) + payload
        while frame:
            frame = frame[os.write(1, frame) :]

    def take(self, data: bytes) -> None:
        """Accept a part of the stream."""
        complete, self._received = frames(self._received + data)
        for kind, number, payload in complete:
            self.handle(kind, number, payload)

    def handle(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame."""
        if kind == PING:
            self.tell(PING, number)
        elif number in self.connections:
            self._continue(self.connections[number], kind, payload)

    def _continue(self, connection: RelayedSocket, kind: int, payload: bytes) -> None:
        if kind == CLOSE:
            self.forget(connection)
            return
        if kind == CREDIT:
            connection.credit += NUMBER.unpack(payload)[0]
        elif kind == DATA:
            connection.to_send += payload
        elif kind == END:
            connection.is_input_ended = True
        self.update(connection)

    def opened(self, connection: RelayedSocket) -> None:
        """Begin to pass on data."""
        connection.is_open = True
        self.connections[connection.number] = connection
        self.update(connection)

    def serve(self, connection: RelayedSocket, events: int) -> None:
        """Pass on data of an open connection."""
        try:
            if events & selectors.EVENT_WRITE and connection.to_send:
                sent = connection.sock.send(connection.to_send)
                del connection.to_send[:sent]
                self.tell(CREDIT, connection.number, NUMBER.pack(sent))
            if events & selectors.EVENT_READ:
                self._receive(connection)
            self.update(connection)
        except BlockingIOError:
            pass
        except OSError:
            self.reset(connection)

    def _receive(self, connection: RelayedSocket) -> None:
        data = connection.sock.recv(min(PIECE, connection.credit))
        connection.credit -= len(data)
        if data:
            self.tell(DATA, connection.number, data)
        else:
            connection.has_received_all = True
            self.tell(END, connection.number)

    def update(self, connection: RelayedSocket) -> None:
        """Pass on the end of the input, forget what is over, and wait for what is next."""
        if connection.is_open and connection.is_input_ended and not connection.to_send and not connection.is_shut:
            connection.is_shut = True
            try:
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self.reset(connection)
                return
        if connection.is_shut and connection.has_received_all:
            self.forget(connection, is_complete=True)
        elif connection.number in self.connections:
            self._wait_for(connection, connection.events)

    def _wait_for(self, connection: RelayedSocket, events: int) -> None:
        # a selector waits for at least one event
        is_registered = connection.sock in self.selector.get_map()
        if events and is_registered:
            self.selector.modify(connection.sock, events, connection)
        elif events:
            self.selector.register(connection.sock, events, connection)
        elif is_registered:
            self.selector.unregister(connection.sock)

    def reset(self, connection: RelayedSocket) -> None:
        """End a connection whose peer is gone."""
        if connection.number in self.connections:
            self.tell(CLOSE, connection.number)
            self.forget(connection)

    def forget(self, connection: RelayedSocket, *, is_complete: bool = False) -> None:
        """Close a connection; its peer notices if it is not complete."""
        self._wait_for(connection, 0)
        self.connections.pop(connection.number, None)
        if is_complete:
            connection.sock.close()
        else:
            close_with_reset(connection.sock)


def frames(received: bytes) -> "tuple[list[tuple[int, int, bytes]], bytes]":
    """Return the complete frames (kind, number of the connection, payload), and the rest."""
    size, found, at = HEAD.size, [], 0
    while len(received) - at >= size:
        kind, number, length = HEAD.unpack_from(received, at)
        if len(received) - at < size + length:
            break
        found.append((kind, number, received[at + size : at + size + length]))
        at += size + length
    return found, received[at:]


def close_with_reset(sock: socket.socket) -> None:
    """Close a connection so that its peer notices that it is not complete."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    sock.close()
