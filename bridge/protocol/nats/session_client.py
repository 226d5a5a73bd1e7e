"""Sessions and connections, the hub's side."""

from __future__ import annotations

import contextlib
import threading

from bridge.clock import Clock
from bridge.errors import SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.model.sessions import EXIT, RESIZE, STDERR, STDIN, STDOUT, Exit, Output
from bridge.protocol.nats.messages import StreamHead
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import StreamClosedError, TwoWay, TwoWays


class SessionStream:
    """A two-way stream to a site, from its request on."""

    def __init__(self, link: Link, subjects: Subjects, name: str, clock: Clock, streams: TwoWays) -> None:
        self._stream = TwoWay(link, subjects.input(name), clock)
        self._remove = streams.add((subjects.pool, name), self._stream)
        self._lock, self._is_open = threading.Lock(), True
        # the site's chunks may arrive before its answer
        self._subscription = link.subscribe(
            subjects.stream(name), lambda _subject, data, _respond: self._stream.deliver(data), threads=0
        )

    def send(self, data: bytes) -> None:
        """Send to the command's standard input, or to the port."""
        self._send(STDIN, data)

    def end_input(self) -> None:
        """End this direction."""
        self._send(STDIN, end=True)

    def close(self) -> None:
        """End the stream at both ends."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            self._stream.close()
            self._subscription.close()
            self._remove()

    def _receive(self) -> tuple[StreamHead, bytes]:
        try:
            head, data = self._stream.receive()
        except StreamClosedError:
            raise SiteRefusedError("the session was ended", reason="SessionEnded") from None
        if head.error:
            raise SiteRefusedError(head.error[:LONGEST_MESSAGE], reason="SessionEnded")
        return head, data

    def _send(self, channel: int, data: bytes = b"", *, end: bool = False) -> None:
        with contextlib.suppress(StreamClosedError):
            self._stream.send(channel, data, end=end)


class NatsSession(SessionStream):
    """A command at a site of NATS. Implements :class:`bridge.protocol.model.sessions.Session`."""

    def receive(self) -> Output | Exit:
        """Wait for the next piece of output, or the end."""
        while True:
            head, data = self._receive()
            if head.channel == EXIT:
                if not (data.isdigit() and len(data) <= 3):
                    raise SiteUnknownOutcomeError("the site has sent an invalid exit code")
                return Exit(int(data))
            if head.channel in (STDOUT, STDERR) and data:
                return Output(head.channel, data)

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the command's terminal."""
        self._send(RESIZE, b"%d %d" % (columns, rows))


class NatsConnection(SessionStream):
    """A connection to a port at a site of NATS. Implements :class:`bridge.protocol.model.sessions.Connection`."""

    def receive(self) -> bytes | None:
        """Wait for data of the port, its end, or the end of the connection."""
        while True:
            head, data = self._receive()
            if head.channel == EXIT:
                return None
            if head.channel == STDOUT and (data or head.end):
                return data
