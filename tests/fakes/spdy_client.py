"""A client of SPDY/3.1 for tests: it opens streams and collects what the server sends."""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Callable
from typing import Any

from bridge.serving.spdy import DICTIONARY

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7


def control(kind: int, payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">HHI", 0x8003, kind, flags << 24 | len(payload)) + payload


def data(stream: int, content: bytes, *, end: bool = False) -> bytes:
    return struct.pack(">II", stream, int(end) << 24 | len(content)) + content


class Headers:
    """Writes the compressed header blocks of one connection."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(9, zdict=DICTIONARY)

    def block(self, headers: dict[str, str]) -> bytes:
        text = struct.pack(">I", len(headers))
        for pair in headers.items():
            for part in pair:
                text += struct.pack(">I", len(part.encode())) + part.encode()
        return self.compress(text)

    def compress(self, text: bytes) -> bytes:
        return self._deflate.compress(text) + self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def open(self, stream: int, headers: dict[str, str], *, end: bool = False) -> bytes:
        return control(SYN_STREAM, struct.pack(">IIH", stream, 0, 0) + self.block(headers), int(end))


class SpdyClient:
    """One connection, after its upgrade. ``content`` has the bytes of each stream, ``ended`` the ended streams."""

    def __init__(self, sock: socket.socket, received: bytes = b"") -> None:
        self.sock = sock
        self.content: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.reset: set[int] = set()
        self.pongs: list[int] = []
        self.went_away: int | None = None
        self._received = received
        self._headers = Headers()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._last = -1

    def open(self, kind: str, *, end: bool = False, **more: str) -> int:
        """Open a stream and wait for the reply or the refusal."""
        self._last += 2
        stream = self._last
        self.sock.sendall(self._headers.open(stream, {"streamType": kind, **more}, end=end))
        self.read_until(lambda: stream in self.content or stream in self.reset)
        return stream

    def send(self, stream: int, content: bytes, *, end: bool = False) -> None:
        self.sock.sendall(data(stream, content, end=end))

    def cancel(self, stream: int) -> None:
        self.sock.sendall(control(RST_STREAM, struct.pack(">II", stream, 5)))

    def ping(self, number: int) -> None:
        self.sock.sendall(control(PING, struct.pack(">I", number)))

    def status(self, stream: int) -> dict[str, Any]:
        """Wait for the end of the error stream; return its Status."""
        self.read_until(lambda: stream in self.ended)
        return dict(json.loads(self.content[stream]))

    def read_until(self, done: Callable[[], bool]) -> None:
        """Read frames until ``done`` or the end of the connection, which is an error."""
        while not done():
            assert self.read_frame(), "the server has closed the connection"

    def read_frame(self) -> bool:
        """Read one frame; return false at the end of the connection."""
        head = self._take(8)
        if not head:
            return False
        first, second = struct.unpack(">II", head)
        flags, payload = second >> 24, self._take(second & 0xFFFFFF)
        if not first >> 31:
            self.content[first] += payload
            if flags & 1:
                assert first not in self.ended
                self.ended.add(first)
            return True
        kind, number = first & 0xFFFF, int.from_bytes(payload[:4], "big")
        if kind == SYN_REPLY:
            assert self._inflate.decompress(payload[4:]) == bytes(4)
            self.content[number] = b""
        elif kind == RST_STREAM:
            self.reset.add(number)
        elif kind == PING:
            self.pongs.append(number)
        else:
            assert kind == GOAWAY, kind
            self.went_away = int.from_bytes(payload[4:], "big")
        return True

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            more = self.sock.recv(2**16)
            if not more:
                return b""
            self._received += more
        taken, self._received = self._received[:count], self._received[count:]
        return taken
