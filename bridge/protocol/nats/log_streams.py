"""Logs, the site's side: numbered chunks with flow control.

Chunk 0 is a keep-alive for a log without new data. The reader acknowledges it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from bridge.clock import Clock
from bridge.core.shares import Shares
from bridge.errors import ShareExceededError, SiteDownError, SiteError, SiteRefusedError
from bridge.logs import kv
from bridge.protocol.nats.envelope import pack_chunk, parse
from bridge.protocol.nats.messages import LogAck, LogChunk
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import Subjects, last_token, owner_of
from bridge.protocol.nats.subscription import Respond

log = logging.getLogger(__name__)

CHUNK = 256 * 1024
WINDOW = 32
"""Unacknowledged chunks, at most."""
GIVE_UP = 30.0
"""Seconds without an acknowledgement after which a log is ended."""
KEEP_ALIVE = 10.0
ANSWER_AFTER = 3.0
"""Seconds after which a request for a log is answered, even if the log has no data yet."""
MOST_STREAMS = 512
"""Logs at once, for all owners: Kubernetes clusters. One has half: more than a hub gives to one namespace. A job has an
eighth of them at most."""
_PERIOD = 0.5
_ROOM_FOR_HEAD = 4096
_WAIT = 0.25

Write = Callable[[bytes], None]


class StreamClosed(Exception):  # noqa: N818 (an end, not a failure)
    """The reader has ended the log."""


class Stream:
    """One log for one reader. ``answered`` is called once, with the error of the request or with ``None``."""

    def __init__(
        self, link: Link, subject: str, clock: Clock, answered: Callable[[BaseException | None], None]
    ) -> None:
        self._link, self._subject, self._clock = link, subject, clock
        self._answered: Callable[[BaseException | None], None] | None = answered
        self._changed = threading.Condition()
        self._number = self._acked = 0
        self._closed = False
        self._began_at = self._heard_at = self._sent_at = self._kept_alive_at = clock.monotonic()

    def write(self, data: bytes) -> None:
        """Send a piece; wait while the window is full. Raise :class:`StreamClosed` if the reader has ended the log.

        An empty piece sends no chunk. It marks the log as readable, and checks whether the reader has ended it.
        """
        self.answer(None)
        if self._closed:
            raise StreamClosed
        size = min(CHUNK, self._link.max_payload - _ROOM_FOR_HEAD)
        for start in range(0, len(data), size):
            self._send_chunk(data[start : start + size])

    def finish(self, error: BaseException | None) -> None:
        """Send the end of the log, with its error if any: in the answer, or in a last chunk if the answer was sent."""
        if self.answer(error) and error is not None:
            return
        with contextlib.suppress(StreamClosed, SiteError):
            self._send_chunk(b"", end=True, error="" if error is None else _message(error))

    def answer(self, error: BaseException | None) -> bool:
        """Answer the request unless it was answered before; return whether this call answered it."""
        with self._changed:
            callback, self._answered = self._answered, None
        if callback is not None:
            callback(error)
        return callback is not None

    def acknowledged(self, ack: LogAck) -> None:
        """Apply an acknowledgement."""
        with self._changed:
            self._heard_at = self._clock.monotonic()
            self._acked = max(self._acked, min(ack.number, self._number))
            self._closed |= ack.stop
            self._changed.notify_all()

    def close(self) -> None:
        """End the log without a last chunk."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def tick(self) -> None:
        """Answer, send keep-alives and end the log when they are due. Called periodically."""
        now = self._clock.monotonic()
        if now - self._began_at >= ANSWER_AFTER:
            self.answer(None)
        if now - self._heard_at > GIVE_UP:
            if not self._closed:
                log.info("the reader of a log does not answer", extra=kv(subject=self._subject))
            self.close()
        elif (
            now - min(self._sent_at, self._heard_at) >= KEEP_ALIVE
            and now - self._kept_alive_at >= KEEP_ALIVE
            and not self._closed
        ):
            self._kept_alive_at = now
            with contextlib.suppress(SiteError):
                self._link.publish(self._subject, pack_chunk(LogChunk(number=0), b""))

    def _send_chunk(self, piece: bytes, *, end: bool = False, error: str = "") -> None:
        with self._changed:
            while self._number - self._acked >= WINDOW and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StreamClosed
            self._number += 1
            chunk = pack_chunk(LogChunk(number=self._number, end=end, error=error), piece)
        while True:
            try:
                self._link.publish(self._subject, chunk)
                self._sent_at = self._clock.monotonic()
                return
            except SiteDownError:  # the chunk was not sent: repeat it on the next connection
                with self._changed:
                    if self._closed:
                        raise StreamClosed from None
                    self._changed.wait(_WAIT)


class Streams:
    """All logs that are being read from this site."""

    def __init__(self, link: Link, subjects: Subjects, clock: Clock) -> None:
        self._link, self._subjects, self._clock = link, subjects, clock
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], Stream] = {}
        self._shares = Shares(MOST_STREAMS, "logs", "cluster", "job")
        link.subscribe(subjects.acks, self._on_ack, threads=0)
        link.every(_PERIOD, self._tick)

    def start(
        self,
        owner: str,
        job: str,
        name: str,
        read: Callable[[Write], None],
        answer: Callable[[BaseException | None], None],
    ) -> None:
        """Run ``read`` on a thread of its own, and send the log to its owner.

        Raises :class:`SiteRefusedError` if the owner or the job has as many logs as it may, or the stream is in use.
        """
        stream = Stream(self._link, self._subjects.of(owner).stream(name), self._clock, answer)
        key = owner, name
        with self._lock:
            if key in self._streams:
                raise SiteRefusedError(f"stream {name}: in use", reason="StreamInUse")
            try:
                leave = self._shares.enter(owner, job)
            except ShareExceededError as error:
                raise SiteRefusedError(str(error), reason="TooManyStreams", retryable=True) from error
            self._streams[key] = stream
        try:
            # no thread of the supervisor: those last as long as the process
            threading.Thread(
                target=self._read, args=(key, stream, read, leave), name=f"log-{name}", daemon=True
            ).start()
        except RuntimeError as error:
            leave()
            del self._streams[key]
            raise SiteRefusedError("no thread for one more log", reason="TooManyStreams", retryable=True) from error

    def _read(
        self, key: tuple[str, str], stream: Stream, read: Callable[[Write], None], leave: Callable[[], None]
    ) -> None:
        error: BaseException | None = None
        try:
            read(stream.write)
        except StreamClosed:
            stream.close()
        except BaseException as problem:
            error = problem
        try:
            stream.finish(error)
        except Exception:
            log.exception("the end of a log could not be sent", extra=kv(stream=key[1]))
        finally:
            leave()
            with self._lock:
                del self._streams[key]

    def _on_ack(self, subject: str, data: bytes, _respond: Respond | None) -> None:
        stream = self._streams.get((owner_of(self._subjects.prefix, subject), last_token(subject)))
        if stream is not None:
            with contextlib.suppress(SiteError):
                stream.acknowledged(parse(LogAck, data))

    def _tick(self) -> None:
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.tick()


def _message(error: BaseException) -> str:
    if isinstance(error, SiteError):
        return str(error)
    log.error("a log could not be read", exc_info=error)
    return f"the log could not be read: {type(error).__name__}"
