"""The server's side of SPDY/3.1, bytes in and bytes out, as far as Kubernetes uses it (``moby/spdystream``).

An API server speaks SPDY to a kubelet to multiplex the streams of ``kubectl exec`` and ``port-forward`` on one
connection. Only the client opens streams. There is no flow control: spdystream sends no WINDOW_UPDATE and waits for
none, so a slow receiver is felt through TCP. SETTINGS, WINDOW_UPDATE and HEADERS are therefore ignored.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from bridge.serving.upgrade import ProtocolViolationError

HEADERS_LIMIT = 16 * 2**10
"""Maximum bytes of a header block after its decompression, and of a control frame before it."""
STREAMS = 16
"""Maximum number of streams of one connection that the client has not ended."""
OK, PROTOCOL_ERROR = 0, 1
"""Reasons of GOAWAY."""
REFUSED_STREAM, CANCEL = 3, 5
"""Reasons of RST_STREAM; ``CANCEL``: the stream is no longer needed."""

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _HEADERS, _WINDOW_UPDATE = 1, 2, 3, 4, 6, 7, 8, 9
_CONTROL, _VERSION, _FIN = 0x80000000, 3, 0x01
_ID = 0x7FFFFFFF
_DATA_LIMIT = 0xFFFFFF
_WORDS = (
    "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|accept-ranges|age|allow|"
    "authorization|cache-control|connection|content-base|content-encoding|content-language|content-length|"
    "content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|if-match|"
    "if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|"
    "proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|"
    "user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|"
    "keep-alive|origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(struct.pack(">I", len(word)) + word.encode() for word in _WORDS.split("|")) + _TEXT.encode()
"""The preset dictionary of header blocks (SPDY/3, section 2.6.10.1): the protocol fixes its bytes."""


class SpdyError(ProtocolViolationError):
    """The client has violated SPDY or a limit."""


@dataclass(frozen=True, slots=True)
class Open:
    """The client opens a stream. The names of ``headers`` are in lower case."""

    stream: int
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of a stream; ``end``: the last one. A frame may arrive in several pieces."""

    stream: int
    data: bytes
    end: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The client aborts a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """The client expects the same ping as the answer."""

    id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """The client ends the connection."""


Frame = Open | Data | Reset | Ping | GoAway


class Decoder:
    """Parses what the client sends.

    It holds at most one incomplete control frame: a data frame, which may have 16 MiB, is passed on as it arrives.
    """

    def __init__(self, streams: int = STREAMS) -> None:
        self._limit = streams
        self._received = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._open: set[int] = set()
        self._last = 0
        self._stream, self._missing, self._end = 0, 0, False  # the data frame in progress

    def decode(self, received: bytes) -> list[Frame]:
        """Return the frames that ``received`` completes. Raises :class:`SpdyError`; no call may follow it."""
        self._received += received
        frames: list[Frame] = []
        while self._advance(frames):
            pass
        return frames

    def _advance(self, frames: list[Frame]) -> bool:
        """Append at most one frame; return whether more bytes may be complete."""
        if self._missing:
            self._pass_on(frames)
            return bool(self._received)
        if len(self._received) < 8:
            return False
        first, second = struct.unpack_from(">II", self._received)
        flags, length = second >> 24, second & _DATA_LIMIT
        if not first & _CONTROL:
            del self._received[:8]
            if first not in self._open and not (first % 2 and first <= self._last):
                raise SpdyError(f"data for stream {first}, which is not open")
            self._stream, self._missing, self._end = first, length, bool(flags & _FIN)
            if not length:
                self._pass_on(frames)
            return True
        if first >> 16 & 0x7FFF != _VERSION:
            raise SpdyError("a control frame of another version than 3")
        if length > HEADERS_LIMIT:
            raise SpdyError(f"a control frame of {length} bytes")
        if len(self._received) < 8 + length:
            return False
        payload = bytes(self._received[8 : 8 + length])
        del self._received[: 8 + length]
        frame = self._control(first & 0xFFFF, payload)
        if frame is not None:
            frames.append(frame)
            if isinstance(frame, Open) and flags & _FIN:
                self._open.discard(frame.stream)
                frames.append(Data(frame.stream, b"", end=True))
        return True

    def _pass_on(self, frames: list[Frame]) -> None:
        piece = bytes(self._received[: self._missing])
        del self._received[: len(piece)]
        self._missing -= len(piece)
        end = self._end and not self._missing
        # data may still arrive for a stream that the client has reset
        if self._stream in self._open and (piece or end):
            frames.append(Data(self._stream, piece, end))
        if end:
            self._open.discard(self._stream)

    def _control(self, kind: int, payload: bytes) -> Frame | None:
        if kind in (_SETTINGS, _WINDOW_UPDATE):
            return None
        if kind == _GOAWAY:
            return GoAway()
        if len(payload) < 4:
            raise SpdyError("a control frame without an id")
        number = int.from_bytes(payload[:4], "big")
        if kind == _PING:
            return Ping(number) if number % 2 else None  # an even number answers a ping of the server
        stream = number & _ID
        if kind == _SYN_STREAM:
            return self._opened(stream, self._headers(payload[10:]))
        if kind == _RST_STREAM:
            known = stream in self._open
            self._open.discard(stream)
            return Reset(stream) if known else None
        if kind == _HEADERS:
            self._headers(payload[4:])  # all header blocks are one compressed text
            return None
        raise SpdyError(f"a control frame of type {kind}")

    def _opened(self, stream: int, headers: dict[str, str]) -> Open:
        if not stream % 2 or stream <= self._last:
            raise SpdyError(f"stream {stream} after stream {self._last}: a client's numbers are odd and increase")
        if len(self._open) >= self._limit:
            raise SpdyError(f"more than {self._limit} streams")
        self._last = stream
        self._open.add(stream)
        return Open(stream, headers)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            text = self._inflate.decompress(block, HEADERS_LIMIT + 1)
        except zlib.error as error:
            raise SpdyError(f"a header block that cannot be decompressed: {error}") from error
        if len(text) > HEADERS_LIMIT or self._inflate.unconsumed_tail or self._inflate.eof:
            raise SpdyError(f"a header block of more than {HEADERS_LIMIT} bytes")
        return _pairs(text)


class Encoder:
    """Makes the frames that a server sends."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """Return SYN_REPLY, which accepts a stream; without headers. Replies must be sent in the order of the calls."""
        block = self._deflate.compress(bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(_SYN_REPLY, struct.pack(">I", stream) + block)

    @staticmethod
    def reset(stream: int, reason: int) -> bytes:
        """Return RST_STREAM."""
        return _control(_RST_STREAM, struct.pack(">II", stream, reason))

    @staticmethod
    def ping(number: int) -> bytes:
        """Return the answer to a ping."""
        return _control(_PING, struct.pack(">I", number))

    @staticmethod
    def go_away(reason: int) -> bytes:
        """Return GOAWAY. The last accepted stream is not named: there is nothing for the client to repeat."""
        return _control(_GOAWAY, struct.pack(">II", 0, reason))

    @staticmethod
    def data(stream: int, data: bytes, *, end: bool = False) -> bytes:
        """Return a data frame with at most 16 MiB of ``data``."""
        return struct.pack(">II", stream, (_FIN if end else 0) << 24 | len(data)) + data


def _control(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL >> 16 | _VERSION, kind, len(payload)) + payload


def _pairs(text: bytes) -> dict[str, str]:
    """Parse a header block: a number of pairs, then each name and each value after its length."""
    position = 0

    def number() -> int:
        nonlocal position
        position += 4
        if position > len(text):
            raise SpdyError("a header block that ends early")
        return int.from_bytes(text[position - 4 : position], "big")

    def string() -> str:
        nonlocal position
        length = number()
        position += length
        if position > len(text):
            raise SpdyError("a header block that ends early")
        return text[position - length : position].decode("latin-1")

    pairs = {string().lower(): string() for _ in range(number())}
    if position != len(text):
        raise SpdyError("a header block with bytes after its end")
    return pairs
