"""The end of a stream of many connections that keeps them: see :mod:`bridge.relay.multiplexer` for the other end.

The other end belongs to the user of the job: what it sends is not trusted.
"""

from __future__ import annotations

import threading
from typing import Protocol

from bridge.errors import SiteRefusedError
from bridge.relay import multiplexer

OPEN_TIMEOUT = 30.0
_LONGEST_ERROR = 1000
_ENDED = "the connection was ended"


class Stream(Protocol):
    """Passes frames to the other end. Any thread may call its methods."""

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame, unless the stream has ended."""

    def forget(self, number: int) -> None:
        """Remove a connection that is closed."""


class RelayedConnection:
    """One connection. One thread receives, one sends; any may close it."""

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream, self._number = stream, number
        self._changed = threading.Condition()
        self._arrived = bytearray()
        self._credit = multiplexer.WINDOW
        self._is_open = self._is_complete = self._is_input_ended = self._is_closed = False
        self._reason: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is closed."""
        return self._is_closed

    def wait_until_open(self) -> None:
        """Wait for the answer. Raises SiteRefusedError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_open or self._is_closed, OPEN_TIMEOUT):
                raise refused(f"no answer within {OPEN_TIMEOUT:g} s")
            if not self._is_open:
                raise refused(self._reason or _ENDED)

    def receive(self) -> bytes | None:
        """Wait for data of the peer; empty: all was received; ``None``: the connection was reset or closed.

        Raises SiteRefusedError if the stream has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._is_complete or self._is_closed)
            if not self._arrived:
                if self._reason and not self._is_complete:
                    raise refused(self._reason)
                return b"" if self._is_complete else None
            data = bytes(self._arrived)
            self._arrived.clear()
        self._stream.send(multiplexer.CREDIT, self._number, multiplexer.NUMBER.pack(len(data)))
        return data

    def send(self, data: bytes) -> None:
        """Send data to the peer; wait while it does not take more. Ignored after the end."""
        for start in range(0, len(data), multiplexer.PIECE):
            piece = data[start : start + multiplexer.PIECE]
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._credit >= multiplexer.PIECE)
                if self._is_closed:
                    return
                self._credit -= len(piece)
            self._stream.send(multiplexer.DATA, self._number, piece)

    def end_input(self) -> None:
        """End the direction to the peer."""
        self._is_input_ended = True
        self._stream.send(multiplexer.END, self._number)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        # the other end closes what is complete by itself, once its peer has taken everything
        if self.closed("") and not (self._is_complete and self._is_input_ended):
            self._stream.send(multiplexer.CLOSE, self._number)
        self._stream.forget(self._number)

    # --- what the other end sends, on the thread of the stream -------------------------------------------------------
    def opened(self) -> None:
        """The connection is open."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def deliver(self, data: bytes) -> bool:
        """Accept data; return whether there are any, within the window."""
        with self._changed:
            self._arrived += data
            self._changed.notify_all()
            return len(data) > 0 and len(self._arrived) <= multiplexer.WINDOW

    def completed(self) -> None:
        """The peer sends no more."""
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()

    def credited(self, count: int) -> None:
        """The peer has taken some bytes."""
        with self._changed:
            self._credit = min(self._credit + count, multiplexer.WINDOW)
            self._changed.notify_all()

    def closed(self, reason: str) -> bool:
        """The connection is over; return whether it was not before."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            if not was_closed:
                self._reason = reason
            self._changed.notify_all()
        return not was_closed

    def handle(self, kind: int, payload: bytes) -> bool:
        """Handle a frame of the other end, on the thread of the stream; return whether it keeps to the protocol."""
        if kind == multiplexer.OPENED:
            self.opened()
        elif kind == multiplexer.DATA:
            return self.deliver(payload)
        elif kind == multiplexer.END:
            self.completed()
        elif kind == multiplexer.CREDIT and len(payload) == multiplexer.NUMBER.size:
            self.credited(multiplexer.NUMBER.unpack(payload)[0])
        elif kind == multiplexer.CLOSE:
            self.closed(payload[:_LONGEST_ERROR].decode("utf-8", "replace"))
        else:
            return False
        return True


def refused(text: str) -> SiteRefusedError:
    """Return the error of a connection that is not open."""
    return SiteRefusedError(text, reason="NotConnected")
