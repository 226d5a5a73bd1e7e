"""A WebSocket of one client that carries the streams of a command or of ports, as Kubernetes defines it.

In ``v4.channel.k8s.io``, the first byte of a message is the number of its stream. All streams are open from the start.
The frames are read by the library ``websockets``, whose interface without I/O fits
:class:`~bridge.serving.upgrade.Duplex`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol, Side
from werkzeug.datastructures import Headers

from bridge.serving.http_error import AnswerError
from bridge.serving.spdy import Data, Open, Reset
from bridge.serving.upgrade import Duplex, ProtocolViolationError, negotiate

WEBSOCKET = "websocket"
STREAMS = ("stdin", "stdout", "stderr", "error", "resize")
"""The types of the streams in the order of their numbers."""
V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
"""In ``v5``, the client can end a stream."""
_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The key of the handshake is hashed with it (RFC 6455, section 1.3)."""
_VERSION = "13"
_END = 255
"""The number of a message that ends the stream in its second byte."""
_PIECE = 2**16
_FRAME_LIMIT = 2**20
"""Bytes of a frame, which is in memory as a whole. The parts of a longer message are taken one by one."""


def handshake(headers: Headers, accepted: Sequence[str]) -> dict[str, str]:
    """Return the headers of the answer: the first of the ``accepted`` protocols that the client offers.

    Raises :class:`AnswerError` if it offers none, or if the request is not one of RFC 6455.
    """
    if headers.get("Sec-WebSocket-Version", "").strip() != _VERSION:
        raise AnswerError(400, f"Sec-WebSocket-Version must be {_VERSION}")
    key = headers.get("Sec-WebSocket-Key", "").strip()
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise AnswerError(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    protocol = negotiate(",".join(headers.getlist("Sec-WebSocket-Protocol")), accepted)
    digest = hashlib.sha1(f"{key}{_GUID}".encode(), usedforsecurity=False).digest()
    return {"Sec-WebSocket-Accept": base64.b64encode(digest).decode(), "Sec-WebSocket-Protocol": protocol}


def command_connection(duplex: Duplex, kinds: Collection[str], protocol: str) -> WebSocketConnection:
    """Return the connection for a command, whose request opens streams of these ``kinds``."""
    headers = {number: {"streamtype": kind} for number, kind in enumerate(STREAMS) if kind in kinds}
    outputs = {number: b"" for number in headers if STREAMS[number] not in ("stdin", "resize")}
    return WebSocketConnection(duplex, headers, outputs, protocol)


def port_connection(duplex: Duplex, ports: Sequence[int]) -> WebSocketConnection:
    """Return the connection for ports: an error stream and a data stream each, which begin with its number."""
    headers, greetings = {}, {}
    for index, port in enumerate(ports):
        for stream, kind in ((2 * index + 1, "error"), (2 * index, "data")):
            headers[stream] = {"streamtype": kind, "requestid": str(index), "port": str(port)}
            greetings[stream] = port.to_bytes(2, "little")
    return WebSocketConnection(duplex, headers, greetings, V4)


class WebSocketConnection:
    """The streams of one client, in the form of a :class:`~bridge.serving.spdy_connection.SpdyConnection`.

    ``headers`` are those of each stream by its number. ``greetings``: the first message of some streams.
    """

    def __init__(
        self, duplex: Duplex, headers: Mapping[int, Mapping[str, str]], greetings: Mapping[int, bytes], protocol: str
    ) -> None:
        self._duplex, self._headers, self._greetings = duplex, headers, greetings
        self.ends_streams = protocol == V5
        self._current = 0  # the stream of a message that is not complete

    def frames(self) -> Iterator[Open | Data | Reset]:
        """Yield the streams and what the client sends, until it closes; answer its pings.

        Raises :class:`~bridge.serving.upgrade.ProtocolViolationError`.
        """
        for number, headers in self._headers.items():
            yield Open(number, dict(headers))
        reader = Protocol(Side.SERVER, max_size=(None, _FRAME_LIMIT))
        while received := self._duplex.receive():
            reader.receive_data(received)
            # not send(): while output goes to a slow client, its input, perhaps Ctrl-C, must not wait
            for answer in filter(None, reader.data_to_send()):
                if not self._duplex.send_soon(answer):
                    raise ProtocolViolationError("too many pings")
            for frame in reader.events_received():
                if isinstance(frame, Frame):  # the other events are of the handshake, which is over
                    if frame.opcode is Opcode.CLOSE:
                        return
                    yield from self._data(frame)
            if reader.parser_exc is not None:
                raise ProtocolViolationError(str(reader.parser_exc))

    def _data(self, frame: Frame) -> Iterator[Data]:
        """Yield what a frame has for a stream. Text is taken like bytes, as by a kubelet."""
        content = bytes(frame.data)
        if frame.opcode is Opcode.CONT:
            number = self._current
        elif frame.opcode in (Opcode.BINARY, Opcode.TEXT) and content:
            number, content = content[0], content[1:]
            self._current = number
        else:
            return
        if number == _END and self.ends_streams:
            if content[:1] and content[0] in self._headers:
                yield Data(content[0], b"", end=True)
        elif number in self._headers and content:
            yield Data(number, content, end=False)

    def accept(self, stream: int) -> None:
        """Tell the client by a message that a stream to it is open."""
        if stream in self._greetings:
            self.send(stream, self._greetings[stream])

    def reset(self, stream: int, reason: int) -> None:
        """Close the connection: a stream alone cannot be refused."""
        self._close(CloseCode.POLICY_VIOLATION)

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send ``data``. The client learns the ``end`` of a stream from that of the connection."""
        for position in range(0, len(data) or 1, _PIECE):
            content = bytes([stream]) + data[position : position + _PIECE]
            if len(content) > 1 or not end:
                self._duplex.send(Frame(Opcode.BINARY, content).serialize(mask=False))

    def end(self) -> None:
        """Announce the end of the connection, and send no more."""
        self._close(CloseCode.NORMAL_CLOSURE)

    def abort(self) -> None:
        """End the connection at once, from any thread."""
        self._duplex.abort()

    def _close(self, code: CloseCode) -> None:
        self._duplex.send(Frame(Opcode.CLOSE, code.to_bytes(2, "big")).serialize(mask=False))
        self._duplex.end()
