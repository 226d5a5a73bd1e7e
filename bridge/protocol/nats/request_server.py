"""The site's side of the protocol: it answers requests, and publishes announcements and events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.errors import BridgeError, SiteError, SiteRefusedError, SiteTooLargeError
from bridge.logs import kv
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import LIMITS, GarbledError, pack, parse, parse_body
from bridge.protocol.nats.log_streams import StreamClosed, Streams, Write
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_session import Respond, TracedRespond
from bridge.protocol.nats.subjects import ANY, Subjects, last_token, owner_of
from bridge.telemetry import tracing

__all__ = ["Announcer", "Server", "StreamClosed", "SubmitterHandlers", "Write"]

log = logging.getLogger(__name__)

SKEW = 5.0
"""Seconds by which the clocks of hub and site may differ."""
THREADS = {"submit": 8, "cancel": 4, "status": 4, "grant": 4, "files": 2, "snapshot": 1, "describe": 1, "logs": 1}
"""Threads for each kind of request, so that no kind delays another."""
_LONGEST_MESSAGE = 4096
_WITHOUT_JOB = ("snapshot", "describe")


class SubmitterHandlers(Protocol):
    """The handlers of requests. Several threads may call them at once, even for one job.

    ``owner``: the cluster that sent the request. It is part of the subject, on which the server enforces permissions.
    A :class:`BridgeError` becomes the error of the answer. Any other exception is logged, and its answer has the reason
    ``InternalError``.
    """

    def submit(self, owner: str, job: str, submit: messages.SubmitMessage) -> messages.SubmittedMessage: ...  # noqa: D102
    def cancel(self, owner: str, job: str, cancel: messages.CancelMessage) -> messages.Status: ...  # noqa: D102
    def status(self, owner: str, job: str) -> messages.Status: ...  # noqa: D102
    def grant(self, owner: str, job: str, grant: messages.Grant) -> messages.Status: ...  # noqa: D102
    def snapshot(self, owner: str, snapshot: messages.Snapshot) -> messages.SnapshotPage: ...  # noqa: D102
    def files(self, owner: str, job: str, files: messages.Files) -> None: ...  # noqa: D102
    def describe(self) -> messages.Description: ...  # noqa: D102

    def logs(self, owner: str, job: str, logs: messages.Logs, write: Write) -> None:
        """Write a log, and return at its end. Runs on a thread of its own.

        ``write`` sends a piece of any size, and waits while the window is full. It raises :class:`StreamClosed` if the
        reader has ended the log; do not catch it. ``write(b"")`` sends nothing and does not wait: call it once when the
        log is known to be readable, and then at least every second while a followed log has no new data. An error
        before the first ``write`` becomes the error of the answer, a later one that of the last chunk.
        """


class Server:
    """Answers the requests to one pool. If a pool has several submitters, one of them answers each request.

    ``folder``: id of the submitter's folder.
    """

    def __init__(
        self,
        link: Link,
        prefix: str,
        pool: str,
        handlers: SubmitterHandlers,
        clock: Clock = SYSTEM_CLOCK,
        folder: str = "",
    ) -> None:
        self._link, self._pool, self._handlers, self._clock, self._folder = link, pool, handlers, clock, folder
        self._prefix = prefix
        subjects = Subjects(prefix, pool, ANY)
        self._streams = Streams(link, subjects, clock)
        handlers_by_kind: dict[str, Callable[[messages.Request], messages.Message | None]] = {
            "submit": lambda request: handlers.submit(
                request.owner, request.job, parse_body(messages.SubmitMessage, request.body)
            ),
            "cancel": lambda request: handlers.cancel(
                request.owner, request.job, parse_body(messages.CancelMessage, request.body)
            ),
            "status": lambda request: handlers.status(request.owner, request.job),
            "grant": lambda request: handlers.grant(
                request.owner, request.job, parse_body(messages.Grant, request.body)
            ),
            "files": lambda request: handlers.files(
                request.owner, request.job, parse_body(messages.Files, request.body)
            ),
            "snapshot": lambda request: handlers.snapshot(request.owner, parse_body(messages.Snapshot, request.body)),
            "describe": lambda _request: handlers.describe(),
        }
        patterns = subjects.requests()
        for kind, handler in handlers_by_kind.items():
            link.subscribe(patterns[kind], self._handler(kind, handler), queue=pool, threads=THREADS[kind])
        link.subscribe(patterns["logs"], self._logs, queue=pool, threads=THREADS["logs"])

    def _handler(
        self, kind: str, handler: Callable[[messages.Request], messages.Message | None]
    ) -> Callable[[str, bytes, Respond | None], None]:
        def handle(subject: str, data: bytes, respond: Respond | None) -> None:
            if respond is None:
                log.warning("a request without a reply subject", extra=kv(kind=kind))
                return
            try:
                request = self._request(kind, subject, data)
                if isinstance(respond, TracedRespond):
                    with tracing.within(respond.traceparent):
                        answer = handler(request)
                else:
                    answer = handler(request)
            except Exception as error:
                self._respond(respond, kind, refusal(error, kind))
            else:
                self._respond(respond, kind, answer)

        return handle

    def _logs(self, subject: str, data: bytes, respond: Respond | None) -> None:
        if respond is None:
            return

        def answer(error: BaseException | None) -> None:
            self._respond(respond, "logs", None if error is None else refusal(error, "logs"))

        try:
            request = self._request("logs", subject, data)
            options = parse_body(messages.Logs, request.body)
            owner, job = request.owner, request.job
            self._streams.start(
                owner, job, options.stream, lambda write: self._handlers.logs(owner, job, options, write), answer
            )
        except Exception as error:
            answer(error)

    def _request(self, kind: str, subject: str, data: bytes) -> messages.Request:
        """Parse a request; raise unless pool, folder, owner and job are correct and its deadline is not over."""
        request = parse(messages.Request, data)
        if request.pool != self._pool:
            raise SiteRefusedError(f"a request to pool {request.pool}; this is pool {self._pool}", reason="WrongPool")
        if kind not in _WITHOUT_JOB and (not request.job or request.job != last_token(subject)):
            raise SiteRefusedError(
                f"a request for job {request.job!r} on the subject of another job", reason="WrongJob"
            )
        # the NATS server enforces permissions on the subject; it does not read the message
        if request.owner != owner_of(self._prefix, subject):
            text = f"a request of owner {request.owner} on the subject of another owner"
            raise SiteRefusedError(text, reason="WrongOwner")
        if request.folder and request.folder != self._folder:
            raise SiteRefusedError(
                f"a request for folder {request.folder} was not carried out: this submitter has folder {self._folder}",
                reason=messages.WRONG_FOLDER,
                retryable=True,
                hint="All submitters of a pool must use the same folder on a shared file system.",
            )
        seconds_late = self._clock.time() - request.deadline
        # not `>`: a deadline that is NaN is late
        if not seconds_late <= SKEW:
            text = (
                f"the request was not carried out: its deadline was {seconds_late:.1f} s ago by the clock of this site"
            )
            raise SiteRefusedError(
                text, reason="Late", retryable=True, hint="Synchronize the clocks of the hub and of the site."
            )
        return request

    def _reply(self, answer: messages.Message | None) -> messages.Reply:
        return messages.Reply(folder=self._folder, body=answer.model_dump(mode="json") if answer else {})

    def _respond(self, respond: Respond, kind: str, answer: messages.Message | None) -> None:
        """Send an answer. A snapshot that cannot be sent is shortened; another answer becomes an error."""
        try:
            while True:
                reply = answer if isinstance(answer, messages.Reply) else self._reply(answer)
                try:
                    respond(pack(reply, LIMITS[messages.Reply]))
                    return
                except (GarbledError, SiteTooLargeError) as error:
                    if isinstance(answer, messages.Reply):
                        raise
                    if isinstance(answer, messages.SnapshotPage) and len(answer.jobs) > 1:
                        answer = answer.model_copy(update={"jobs": answer.jobs[: len(answer.jobs) // 2], "more": True})
                    elif isinstance(answer, messages.SubmittedMessage):
                        # an unknown outcome: a refusal means that there is no job
                        answer = messages.Reply(folder=self._folder)
                    else:
                        answer = refusal(error, kind)
        except SiteError as error:
            log.warning("a request could not be answered", extra=kv(kind=kind, error=error))


class Announcer:
    """Publishes the messages of a submitter. Its methods raise SiteDownError if there is no connection."""

    def __init__(self, link: Link, prefix: str, pool: str) -> None:
        self._link, self._subjects = link, Subjects(prefix, pool, ANY)

    def publish_announce(self, announce: messages.Announce) -> None:
        """Publish the announcement."""
        self._link.publish(self._subjects.announce, pack(announce))

    def publish_buildconfig(self, config: messages.BuildConfigMessage) -> None:
        """Publish the BuildConfig."""
        self._link.publish(self._subjects.buildconfig, pack(config))

    def publish_event(self, event: messages.Event) -> None:
        """Publish a change of a job to its owner. A job without an owner has no event."""
        if event.status.owner:
            self._link.publish(self._subjects.of(event.status.owner).event, pack(event))


def refusal(error: BaseException, kind: str) -> messages.Reply:
    """Return an error as an answer."""
    if isinstance(error, BridgeError):
        text = str(error)[:_LONGEST_MESSAGE]
        return messages.Reply(
            error=messages.Problem(reason=error.reason, message=text, retryable=error.retryable, hint=error.hint)
        )
    log.error("a request failed", extra=kv(kind=kind), exc_info=error)
    text = f"{kind} failed at the site: {type(error).__name__}; see the submitter's log"
    return messages.Reply(error=messages.Problem(reason="InternalError", message=text, retryable=True))
