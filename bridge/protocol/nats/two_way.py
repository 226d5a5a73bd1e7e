"""A two-way stream between hub and site: numbered chunks in both directions, for sessions and logs.

Each end numbers its chunks from 1. At most a :class:`Window` of chunks waits for the consumer at the other end, so a
slow consumer slows its own stream alone. An end keeps each chunk until the other end has received it, and sends it
again after a while: NATS loses messages of a connection that breaks. A chunk with the number 0 has no data; it tells
what was received and taken, and keeps the stream alive.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bridge.clock import Clock
from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.nats.envelope import pack_chunk, parse_chunk
from bridge.protocol.nats.messages import StreamHead
from bridge.protocol.nats.nats_link import Link


class Window(NamedTuple):
    """The number of chunks that the other end has not taken, at most, and the largest size of one in bytes."""

    chunks: int
    size: int


SESSION = Window(4, 16 * 1024)
"""64 kB of memory for each direction of a stream."""
LOG = Window(32, 64 * 1024)
"""2 MiB for each log: half of it is on its way to a hub that is far away, and one log is much longer than an output."""
GIVE_UP = 30.0
"""Seconds without a chunk after which a stream ends with an error."""
KEEP_ALIVE = 5.0
SEND_AGAIN = 1.0
"""Seconds after which a chunk is sent again that the other end has not received."""
PERIOD = 0.5
MOST_IDLE = 100
"""Chunks within a period that bring nothing new, at most: each takes time from all streams of the connection."""


class StreamClosedError(Exception):
    """One of the ends has ended the stream."""


class TwoWay:
    """One end of a stream. Any thread may use any method.

    ``subject``: of the chunks to the other end. ``window``: that of both directions. ``silence``: see :data:`GIVE_UP`.
    """

    def __init__(
        self, link: Link, subject: str, clock: Clock, window: Window = SESSION, *, silence: float = GIVE_UP
    ) -> None:
        self._link, self._subject, self._clock, self._window, self._silence = link, subject, clock, window, silence
        self._lock = threading.Lock()
        # two, so that a message wakes the thread that it concerns
        self._sending, self._receiving = threading.Condition(self._lock), threading.Condition(self._lock)
        self._number = self._seen_there = self._taken_there = 0
        self._seen = self._taken = self._idle = 0
        self._told = (0, 0)
        self._kept: deque[tuple[StreamHead, bytes]] = deque()
        self._arrived: deque[tuple[StreamHead, bytes]] = deque()
        self._error: SiteError | None = None
        self._is_closed = self._is_deaf = False
        self._heard_at = self._sent_at = clock.monotonic()

    def send(self, channel: int, data: bytes = b"", *, end: bool = False, error: str = "") -> None:
        """Send data of a channel; wait while the window is full.

        ``end``: nothing follows on the channel. ``error``: why the other end must end the stream.
        Raises :class:`StreamClosedError` if the stream is over.
        """
        most, size = self._window
        starts = range(0, max(1, len(data)), size)
        pieces = [(data[start : start + size], end and start + size >= len(data)) for start in starts]
        while pieces:
            with self._sending:
                self._sending.wait_for(lambda: self.is_over or self._number - self._taken_there < most)
                if self.is_over:
                    raise StreamClosedError
                room = most - (self._number - self._taken_there)
                chunks = [
                    (StreamHead(number=number, channel=channel, end=is_last, error=error), piece)
                    for number, (piece, is_last) in enumerate(pieces[:room], self._number + 1)
                ]
                pieces = pieces[room:]
                self._number += len(chunks)
                self._kept += chunks
                self._publish(*chunks)

    def receive(self) -> tuple[StreamHead, bytes]:
        """Wait for the next chunk.

        Raises SiteError if the stream has failed, StreamClosedError if it was closed, or after :meth:`stop_receiving`.
        """
        with self._receiving:
            self._receiving.wait_for(lambda: self.is_over or self._is_deaf or bool(self._arrived))
            if not self._arrived:
                raise self._error or StreamClosedError
            head, data = self._arrived.popleft()
            self._taken = head.number
            # of fewer chunks, the next message or tick tells
            if head.end or self._taken - self._told[1] >= self._window.chunks // 2:
                self._tell()
            return head, data

    def stop_receiving(self) -> None:
        """End :meth:`receive` in the other thread; this end can still send."""
        with self._lock:
            self._is_deaf = True
            self._arrived.clear()
            self._receiving.notify_all()

    def wait_until_received(self) -> None:
        """Wait until the other end has received all chunks, or the stream is over."""
        with self._sending:
            self._sending.wait_for(lambda: self.is_over or not self._kept)

    def deliver(self, raw: bytes) -> None:
        """Accept a chunk of the other end, on the loop."""
        with self._lock:
            if self.is_over:
                return
            try:
                head, data = parse_chunk(StreamHead, raw)
            except SiteError as error:
                self._fail(error)
                return
            self._heard_at = self._clock.monotonic()
            before = self._seen, self._seen_there, self._taken_there
            self._note(head)
            if head.stop:
                self._end()
            elif head.number == self._seen + 1:
                if len(data) > self._window.size or len(self._arrived) >= self._window.chunks:
                    self._fail(SiteRefusedError("the other end of the stream ignores its window", reason="BadStream"))
                    return
                self._seen += 1
                self._arrived.append((head, data))
                self._receiving.notify_all()
            elif head.number:  # again, or one before it was lost
                self._tell()
            self._idle += before == (self._seen, self._seen_there, self._taken_there)
            if self._idle > MOST_IDLE:
                self._fail(SiteRefusedError("the other end floods the stream", reason="BadStream"))

    def _note(self, head: StreamHead) -> None:
        """Note what the other end has received and taken."""
        taken = max(self._taken_there, min(head.taken, self._number))
        # what was taken has arrived: otherwise the chunks that are kept would have no limit
        seen = max(self._seen_there, taken, min(head.seen, self._number))
        if (seen, taken) != (self._seen_there, self._taken_there):
            self._seen_there, self._taken_there = seen, taken
            while self._kept and self._kept[0][0].number <= seen:
                self._kept.popleft()
            self._sending.notify_all()

    def tick(self) -> None:
        """Send again, keep alive, or give up, as it is due. Called every :data:`PERIOD` seconds."""
        now = self._clock.monotonic()
        with self._lock:
            self._idle = 0
            if self.is_over:
                return
            if now - self._heard_at > self._silence:
                silence = f"the other end of the stream has sent nothing for {self._silence:g} s"
                self._fail(SiteUnknownOutcomeError(silence))
            elif self._kept and now - self._sent_at >= SEND_AGAIN:
                self._publish(*self._kept)
            elif (self._seen, self._taken) != self._told or now - self._sent_at >= KEEP_ALIVE:
                self._tell()

    def close(self) -> None:
        """End the stream at both ends. What has arrived can still be received. Idempotent."""
        with self._lock:
            if not self.is_over:
                self._tell(stop=True)
            self._end()

    @property
    def is_over(self) -> bool:
        """Whether one of the ends has ended the stream, or it has failed."""
        return self._is_closed

    def _fail(self, error: SiteError) -> None:
        self._tell(stop=True)
        self._end(error)

    def _end(self, error: SiteError | None = None) -> None:
        self._is_closed, self._error = True, self._error or error
        self._sending.notify_all()
        self._receiving.notify_all()

    def _tell(self, *, stop: bool = False) -> None:
        self._publish((StreamHead(stop=stop), b""))

    def _publish(self, *chunks: tuple[StreamHead, bytes]) -> None:
        """Send at once: each message alone would cost a turn of the loop at both ends."""
        self._sent_at, self._told = self._clock.monotonic(), (self._seen, self._taken)
        counters = {"seen": self._seen, "taken": self._taken}
        packed = [pack_chunk(head.model_copy(update=counters), data) for head, data in chunks]
        with contextlib.suppress(SiteError):  # sent again on the next connection
            self._link.publish(self._subject, *packed)


class TwoWays:
    """The streams of one process to one pool, by any key."""

    def __init__(self, link: Link) -> None:
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], TwoWay] = {}
        link.every(PERIOD, self._tick)

    def add(self, key: tuple[str, str], stream: TwoWay) -> Callable[[], None]:
        """Add a stream; return the function that removes it. Raises SiteRefusedError if the key is in use."""
        with self._lock:
            if key in self._streams:
                raise SiteRefusedError(f"stream {key[1]}: in use", reason="StreamInUse")
            self._streams[key] = stream

        def remove() -> None:
            with self._lock:
                self._streams.pop(key, None)

        return remove

    def deliver(self, key: tuple[str, str], raw: bytes) -> None:
        """Pass a chunk to its stream; without one, drop it."""
        if (stream := self._streams.get(key)) is not None:
            stream.deliver(raw)

    def _tick(self) -> None:
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.tick()
