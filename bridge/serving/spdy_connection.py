"""A SPDY connection to one client: the frames of :mod:`bridge.serving.spdy` on a socket."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.serving.spdy import (
    OK,
    PROTOCOL_ERROR,
    STREAMS,
    Data,
    Decoder,
    Encoder,
    GoAway,
    Open,
    Ping,
    Reset,
    SpdyError,
)
from bridge.serving.upgrade import Duplex

_PIECE = 2**16


class SpdyConnection:
    """The streams of one client. One thread iterates over :meth:`frames` and replies; any thread sends.

    Methods raise OSError if the connection is broken. ``streams``: see :data:`bridge.serving.spdy.STREAMS`.
    """

    ends_streams = True
    """Whether the client can end one direction of a stream."""

    def __init__(self, duplex: Duplex, streams: int = STREAMS) -> None:
        self._duplex, self._streams = duplex, streams
        self._encoder = Encoder()

    def frames(self) -> Iterator[Open | Data | Reset]:
        """Yield what the client sends until it ends the connection; answer its pings. Raises :class:`SpdyError`."""
        decoder = Decoder(self._streams)
        try:
            while received := self._duplex.receive():
                for frame in decoder.decode(received):
                    if isinstance(frame, GoAway):
                        return
                    if not isinstance(frame, Ping):
                        yield frame
                    # not send(): while output goes to a slow client, its input, perhaps Ctrl-C, must not wait
                    elif not self._duplex.send_soon(self._encoder.ping(frame.id)):
                        raise SpdyError("too many pings")
        except SpdyError:
            self._duplex.send_soon(self._encoder.go_away(PROTOCOL_ERROR))
            raise

    def accept(self, stream: int) -> None:
        """Accept a stream. Only the thread of :meth:`frames` may call it."""
        self._duplex.send(self._encoder.reply(stream))

    def reset(self, stream: int, reason: int) -> None:
        """Refuse or abort a stream."""
        self._duplex.send(self._encoder.reset(stream, reason))

    def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send ``data``, and with ``end`` the end of the server's direction of the stream."""
        for position in range(0, len(data) or 1, _PIECE):
            piece = data[position : position + _PIECE]
            self._duplex.send(self._encoder.data(stream, piece, end=end and position + _PIECE >= len(data)))

    def end(self) -> None:
        """Announce the end of the connection, and send no more."""
        self._duplex.send(self._encoder.go_away(OK))
        self._duplex.end()

    def abort(self) -> None:
        """End the connection at once, from any thread."""
        self._duplex.abort()
