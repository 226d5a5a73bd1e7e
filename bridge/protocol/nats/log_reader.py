"""Logs, the hub's side: all chunks of one stream in order, or an error if one is lost."""

from __future__ import annotations

import contextlib
import math
import queue
import time
import weakref
from types import TracebackType

from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.nats.envelope import pack, parse_chunk
from bridge.protocol.nats.log_streams import CHUNK, GIVE_UP, WINDOW
from bridge.protocol.nats.messages import LogAck, LogChunk
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.subscription import Respond
from bridge.protocol.nats.two_way import MOST_IDLE

_ACK_EVERY = WINDOW // 4
_ACK_PERIOD = 1.0
"""Seconds between two acknowledgements of keep-alives, at least."""


class LogReader:
    """An iterator over the pieces of a log. The caller must close it, which ends the log at the site too.

    Raises SiteUnknownOutcomeError if the site sends nothing for ``silence`` seconds or a chunk is lost, and
    SiteRefusedError if the site ends the log with an error.
    """

    def __init__(self, link: Link, subjects: Subjects, stream: str, *, silence: float = GIVE_UP) -> None:
        self._link, self._silence = link, silence
        self._ack = subjects.ack(stream)
        self._chunks: queue.SimpleQueue[tuple[LogChunk, bytes] | SiteError | None] = queue.SimpleQueue()
        self._last_read = self._last_arrived = self._acknowledged = self._idle = 0
        self._kept_alive_at = -math.inf
        # closed until it has a subscription: __del__ also runs if subscribe() raises
        self._is_closed, self._has_failed = True, False
        receive = weakref.WeakMethod(self._on_chunk)  # a strong reference would keep an abandoned reader open

        def on_chunk(subject: str, data: bytes, respond: Respond | None) -> None:
            if (deliver := receive()) is not None:
                deliver(subject, data, respond)

        self._subscription = link.subscribe(subjects.stream(stream), on_chunk, threads=0)
        self._is_closed = False

    def __iter__(self) -> LogReader:
        return self

    def __next__(self) -> bytes:
        while not self._is_closed:
            try:
                item = self._chunks.get(timeout=self._silence)
            except queue.Empty:
                self.close()
                raise SiteUnknownOutcomeError(f"the site has sent nothing for {self._silence:g} s") from None
            if item is None:  # a keep-alive
                continue
            if isinstance(item, SiteError):
                self.close()
                raise item
            head, data = item
            if head.number != self._last_read + 1:
                self.close()
                problem = f"chunk {self._last_read + 1} of the log was lost"
                raise SiteUnknownOutcomeError(problem, hint="Request the log again.")
            self._last_read = head.number
            if head.end:
                self._finish()
                if head.error:
                    raise SiteRefusedError(head.error[:LONGEST_MESSAGE], reason="LogEnded", retryable=True)
                break
            if self._last_read - self._acknowledged >= _ACK_EVERY or self._chunks.empty():
                self._acknowledge(LogAck(number=self._last_read))
            if data:
                return data
        raise StopIteration

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the log. A waiting iteration ends too. Thread-safe and idempotent."""
        if not self._is_closed:
            self._finish()
            self._acknowledge(LogAck(number=self._last_read, stop=True))
            self._chunks.put(None)

    def _finish(self) -> None:
        self._is_closed = True
        self._subscription.close()

    def _acknowledge(self, ack: LogAck) -> None:
        self._acknowledged = self._last_read
        with contextlib.suppress(SiteError):  # without acknowledgements, the site ends the log after a while
            self._link.publish(self._ack, pack(ack))

    def _on_chunk(self, _subject: str, data: bytes, _respond: Respond | None) -> None:
        """Accept a chunk, on the loop. A consumer that does not read must not cost memory without a limit."""
        if self._is_closed or self._has_failed:
            return
        try:
            head, piece = parse_chunk(LogChunk, data)
        except SiteError as error:
            self._break(error)
            return
        if head.number <= self._last_arrived:  # a keep-alive, which has number 0, or a duplicate
            self._keep_alive()
        elif len(piece) > CHUNK:
            self._break(SiteRefusedError(f"the site sends a chunk of more than {CHUNK} bytes", reason="BadSite"))
        elif self._chunks.qsize() > 4 * WINDOW:
            self._break(SiteRefusedError("the site sends chunks without acknowledgement", reason="BadSite"))
        else:
            self._last_arrived = head.number
            self._chunks.put((head, piece))

    def _keep_alive(self) -> None:
        """Acknowledge, even if the consumer of the iterator is slow, and restart the time-out of a waiting one."""
        if time.monotonic() - self._kept_alive_at >= _ACK_PERIOD:
            self._kept_alive_at, self._idle = time.monotonic(), 0
            self._acknowledge(LogAck(number=self._last_read))
        self._idle += 1
        if self._idle > MOST_IDLE:
            self._break(SiteRefusedError("the site floods the log", reason="BadSite"))
        elif self._chunks.empty():
            self._chunks.put(None)

    def _break(self, error: SiteError) -> None:
        """End with an error after the chunks that have arrived, and ignore all further ones."""
        self._has_failed = True
        self._chunks.put(error)
        self._subscription.close()
