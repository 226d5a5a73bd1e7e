"""The hub's side of the protocol: requests to one pool, and the streams of logs, commands, ports and Services."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable
from typing import TypeVar

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import EXIT, RESIZE, STDERR, STDIN, STDOUT, CommandOptions, Exit, Output
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import GarbledError, pack, parse, parse_body
from bridge.protocol.nats.messages import StreamHead
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_table import CONNECT, EXEC, LOGS, REACH, A, B, RequestKind
from bridge.protocol.nats.subjects import Subjects
from bridge.protocol.nats.two_way import LOG, SESSION, StreamClosedError, TwoWay, TwoWays, Window

TRIES = 6
"""Attempts while submitters with another folder refuse a request: the NATS server selects a submitter at random."""


class SessionStream:
    """A two-way stream to a site, from its request on."""

    def __init__(
        self, link: Link, subjects: Subjects, name: str, clock: Clock, streams: TwoWays, window: Window = SESSION
    ) -> None:
        self._stream = TwoWay(link, subjects.input(name), clock, window)
        self._remove = streams.add((subjects.pool, name), self._stream)
        self._lock, self._is_open = threading.Lock(), True
        # the site's chunks may arrive before its answer
        self._subscription = link.subscribe(
            subjects.stream(name), lambda _subject, data, _respond: self._deliver(data), threads=0
        )

    @property
    def is_over(self) -> bool:
        """Whether one of the ends has ended the stream."""
        return self._stream.is_over

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

    def _deliver(self, data: bytes) -> None:
        """Accept a chunk, on the loop."""
        self._stream.deliver(data)
        if self._stream.is_over:
            self._subscription.close()  # what the site still sends takes no time from others

    def receive_chunk(self) -> tuple[StreamHead, bytes]:
        """Wait for the next chunk; raise StreamClosedError after :meth:`close`, and SiteError if the stream failed."""
        return self._stream.receive()

    def _receive(self) -> tuple[StreamHead, bytes]:
        try:
            head, data = self.receive_chunk()
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


class NatsLog:
    """An iterator over the pieces of a log. The caller must close it, which ends the log at the site too.

    Raises SiteUnknownOutcomeError if the site is silent, and SiteRefusedError if the site ends the log with an error.
    """

    def __init__(self, stream: SessionStream) -> None:
        # the stream has no reference to this object, so that a log ends that its reader has forgotten
        self._stream, self._is_over = stream, False

    def __iter__(self) -> NatsLog:
        return self

    def __next__(self) -> bytes:
        data = b""
        while not (data or self._is_over):
            try:
                head, data = self._stream.receive_chunk()
                if head.error:
                    raise SiteRefusedError(head.error[:LONGEST_MESSAGE], reason="LogEnded", retryable=True)
                self._is_over = head.end
            except StreamClosedError:
                self._is_over = True
            except SiteError:
                self.close()
                raise
        if data:
            return data
        self.close()
        raise StopIteration

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the log. A waiting iteration ends too. Thread-safe and idempotent."""
        self._is_over = True
        self._stream.close()


S = TypeVar("S", bound=SessionStream)
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")


class PoolClient:
    """Sends requests to one pool. Its methods are thread-safe, wait for the answer, and may raise SiteError.

    ``owner``: UID of this cluster. ``folder`` returns the id of the site's folder that requests concern. An answer from
    another folder is an error: its submitter does not know the jobs. Empty: any folder.
    """

    def __init__(
        self,
        link: Link,
        prefix: str,
        pool: str,
        owner: str,
        clock: Clock = SYSTEM_CLOCK,
        folder: Callable[[], str] = lambda: "",
    ) -> None:
        self._link, self._pool, self._owner, self._clock, self._folder = link, pool, owner, clock, folder
        self._subjects = Subjects(prefix, pool, owner)
        self._streams = TwoWays(link)

    def call(self, kind: RequestKind[B, A], job: str, body: B, timeout: float | None = None) -> A:
        """Send a request, and return the answer. ``job``: the pod's UID; empty for a request that is not of a job."""
        subject = self._subjects.request(kind, *kind.parts(job, body))
        reply_body = self._send(subject, job, body, kind.timeout if timeout is None else timeout)
        try:
            answer = parse_body(kind.answer, reply_body)
        except GarbledError as error:
            raise SiteUnknownOutcomeError(f"the answer of pool {self._pool} is invalid: {error}") from error
        if isinstance(answer, messages.Status) and answer.status is not None and answer.status.owner != self._owner:
            text = f"job {answer.status.job} at pool {self._pool} belongs to another cluster"
            raise SiteRefusedError(text, reason="NotOwner")
        return answer

    def logs(self, job: str, options: LogOptions) -> NatsLog:
        """Request a log. The caller must close it."""
        return NatsLog(self._open(SessionStream, LOGS, job, lambda name: messages.Logs.of(options, stream=name), LOG))

    def open_session(self, job: str, options: CommandOptions) -> NatsSession:
        """Run a command in a container. The caller must close the session."""
        return self._open(NatsSession, EXEC, job, lambda name: messages.Exec.of(options, stream=name))

    def connect(self, job: str, port: int) -> NatsConnection:
        """Connect to a port of a pod. The caller must close the connection."""
        return self._open(NatsConnection, CONNECT, job, lambda name: messages.Connect(port=port, stream=name))

    def reach(self, job: str) -> NatsSession:
        """Open the stream of a pod's connections to Services. The caller must close it."""
        return self._open(NatsSession, REACH, job, lambda name: messages.Reach(stream=name))

    def _open(
        self,
        make: type[S],
        kind: RequestKind[B, messages.Empty],
        job: str,
        body: Callable[[str], B],
        window: Window = SESSION,
    ) -> S:
        """Make a stream with a new name, and send the request for it; ``body`` returns its body."""
        name = secrets.token_hex(16)
        stream = make(self._link, self._subjects, name, self._clock, self._streams, window)
        try:
            self.call(kind, job, body(name))
        except BaseException:
            stream.close()
            raise
        return stream

    def _send(self, subject: str, job: str, body: messages.Message, timeout: float) -> dict[str, object]:
        # read once: the hub may choose another folder while it waits for the answer
        folder = self._folder()
        request = messages.Request(
            pool=self._pool,
            owner=self._owner,
            folder=folder,
            job=job,
            deadline=self._clock.time() + timeout,
            body=body.model_dump(mode="json"),
        )
        data = pack(request)
        for _ in range(TRIES):
            try:
                reply = parse(messages.Reply, self._link.request(subject, data, timeout))
            except GarbledError as error:
                raise SiteUnknownOutcomeError(f"the answer of pool {self._pool} is invalid: {error}") from error
            if reply.error is None or reply.error.reason != messages.WRONG_FOLDER:
                break  # otherwise it was not carried out
        if (problem := reply.error) is not None:
            raise refused(problem)
        if folder and reply.folder != folder:
            raise SiteUnknownOutcomeError(
                f"pool {self._pool}: the answer is from folder {reply.folder!r} instead of {folder}"
            )
        return reply.body


def refused(problem: messages.Problem) -> SiteRefusedError:
    """Return the error that a site has reported."""
    reason = problem.reason if _REASON.fullmatch(problem.reason) else "SiteRefused"
    message, hint = problem.message[:LONGEST_MESSAGE], problem.hint[:LONGEST_MESSAGE]
    return SiteRefusedError(message, reason=reason, retryable=problem.retryable, hint=hint)
