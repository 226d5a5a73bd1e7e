"""A client of ``v4.channel.k8s.io`` on a WebSocket for tests; its methods are those of the client of SPDY."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

from bridge.serving.websocket_connection import STREAMS


class WebSocketClient:
    """One connection, after its handshake. ``content`` has the bytes of each stream."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.content: dict[int, bytes] = {}
        self.pongs: list[int] = []
        self.closed: int | None = None
        self._protocol = Protocol(Side.CLIENT, max_size=None)

    def open(self, kind: str) -> int:
        """Return the number of a stream; those to the client announce themselves."""
        number = STREAMS.index(kind)
        if kind not in ("stdin", "resize"):
            self.read_until(lambda: number in self.content)
        return number

    def send(self, stream: int, content: bytes, *, end: bool = False) -> None:
        """Send bytes; the end of a stream only as ``v5.channel.k8s.io`` has it."""
        if content:
            self.send_frame(Opcode.BINARY, bytes([stream]) + content)
        if end:
            self.send_frame(Opcode.BINARY, bytes([255, stream]))

    def send_frame(self, opcode: Opcode, content: bytes, *, fin: bool = True) -> None:
        self.sock.sendall(Frame(opcode, content, fin=fin).serialize(mask=True))

    def ping(self, number: int) -> None:
        self.send_frame(Opcode.PING, b"%d" % number)

    def status(self, stream: int) -> dict[str, Any]:
        """Wait for the end of the connection; return the Status of the error stream."""
        self.read_until(lambda: self.closed is not None)
        return dict(json.loads(self.content[stream]))

    def read_until(self, done: Callable[[], bool]) -> None:
        """Read frames until ``done`` or the end of the connection, which is an error."""
        while not done():
            received = self.sock.recv(2**16)
            assert received, "the server has closed the connection"
            self._protocol.receive_data(received)
            for frame in self._protocol.events_received():
                assert isinstance(frame, Frame)
                content = bytes(frame.data)
                if frame.opcode is Opcode.BINARY:
                    self.content[content[0]] = self.content.get(content[0], b"") + content[1:]
                elif frame.opcode is Opcode.PONG:
                    self.pongs.append(int(content))
                elif frame.opcode is Opcode.CLOSE:
                    self.closed = int.from_bytes(content[:2], "big")
