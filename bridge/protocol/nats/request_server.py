"""The site's side of the protocol: it answers requests, and publishes announcements and events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.shares import Shares
from bridge.errors import BridgeError, ShareExceededError, SiteError, SiteRefusedError, SiteTooLargeError
from bridge.logs import kv
from bridge.protocol.model.jobs import LONGEST_MESSAGE
from bridge.protocol.model.sessions import EXIT, MOST_REACHING
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import LIMITS, GarbledError, pack, parse, parse_body
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_table import CONNECT, EXEC, LOGS, REACH, REQUESTS, A, B, RequestKind
from bridge.protocol.nats.subjects import ANY, Subjects, last_token, owner_of
from bridge.protocol.nats.subscription import Respond, TracedRespond
from bridge.protocol.nats.two_way import LOG, SESSION, StreamClosedError, TwoWay, TwoWays
from bridge.telemetry import tracing

log = logging.getLogger(__name__)

SKEW = 5.0
"""Seconds by which the clocks of hub and site may differ."""
MOST_LOGS = 512
"""Logs at once, for all owners: Kubernetes clusters. One has half, more than a hub gives to one namespace; a job has an
eighth."""
MOST_SESSIONS = 512
"""Commands at once, likewise."""
MOST_CONNECTIONS = 4096
"""Connections to ports at once, likewise."""
_OF_ONE_POD = 4
"""Streams to Services of one job: that of a hub that is gone ends late."""


class SubmitterHandlers(Protocol):
    """The handlers of requests: a method for each row of :data:`~bridge.protocol.nats.request_table.REQUESTS`.

    Several threads may call them at once, even for one job.
    ``owner``: the cluster that sent the request. It is part of the subject, on which the server enforces permissions.
    A :class:`BridgeError` becomes the error of the answer. Any other exception is logged, and its answer has the reason
    ``InternalError``.
    """

    def logs(self, owner: str, job: str, logs: messages.Logs) -> Run:
        """Return the function that sends a log, on a thread of its own."""

    def exec(self, owner: str, job: str, command: messages.Exec) -> Run:
        """Return the function that runs the command with a stream, likewise."""

    def connect(self, owner: str, job: str, port: messages.Connect) -> Run:
        """Return the function that connects to the port, likewise."""

    def reach(self, owner: str, job: str, reach: messages.Reach) -> Run:
        """Return the function that passes on a pod's connections to Services, likewise."""


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
        patterns = subjects.requests()
        self._sessions = Sessions(link, subjects, clock)
        for kind in REQUESTS.values():
            link.subscribe(patterns[kind.name], self._handler(kind), queue=pool, threads=kind.threads)

    def _handler(self, kind: RequestKind[B, A]) -> Callable[[str, bytes, Respond | None], None]:
        carry_out: Callable[[str, str, Any], messages.Message]
        is_session = kind in self._sessions.shares
        carry_out = partial(self._start_session, kind) if is_session else kind.handler_of(self._handlers)

        def handle(subject: str, data: bytes, respond: Respond | None) -> None:
            if respond is None:
                log.warning("a request without a reply subject", extra=kv(kind=kind.name))
                return
            try:
                request, body = self._request(kind, subject, data)
                with tracing.within(respond.traceparent) if isinstance(respond, TracedRespond) else nullcontext():
                    answer = carry_out(request.owner, request.job, body)
            except Exception as error:
                self._respond(respond, kind.name, refusal(error, kind.name))
            else:
                self._respond(respond, kind.name, answer)

        return handle

    def _start_session(self, kind: RequestKind[Any, Any], owner: str, job: str, body: Any) -> messages.Empty:
        run: Callable[[str, str, Any], Any] = kind.handler_of(self._handlers)
        self._sessions.start(kind, owner, job, body.stream, lambda: run(owner, job, body))
        return messages.EMPTY

    def _request(self, kind: RequestKind[B, A], subject: str, data: bytes) -> tuple[messages.Request, B]:
        """Parse a request and its body; raise unless pool, folder, owner and job are correct and it is not late."""
        request = parse(messages.Request, data)
        if request.pool != self._pool:
            raise SiteRefusedError(f"a request to pool {request.pool}; this is pool {self._pool}", reason="WrongPool")
        if kind.of_job and (not request.job or request.job != last_token(subject)):
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
        return request, parse_body(kind.body, request.body)

    def _reply(self, answer: messages.Message) -> messages.Reply:
        if isinstance(answer, messages.Problem):
            return messages.Reply(error=answer)
        return messages.Reply(folder=self._folder, body=answer.model_dump(mode="json"))

    def _respond(self, respond: Respond, kind: str, answer: messages.Message) -> None:
        """Send an answer. A snapshot that cannot be sent is shortened; another answer becomes an error."""
        try:
            while True:
                try:
                    respond(pack(self._reply(answer), LIMITS[messages.Reply]))
                    return
                except (GarbledError, SiteTooLargeError) as error:
                    if isinstance(answer, messages.Problem | messages.Empty):
                        raise
                    if isinstance(answer, messages.SnapshotPage) and len(answer.jobs) > 1:
                        answer = answer.model_copy(update={"jobs": answer.jobs[: len(answer.jobs) // 2], "more": True})
                    elif isinstance(answer, messages.SubmittedMessage):
                        # an unknown outcome: a refusal means that there is no job
                        answer = messages.Empty()
                    else:
                        answer = refusal(error, kind)
        except SiteError as error:
            log.warning("a request could not be answered", extra=kv(kind=kind, error=error))


class Announcer:
    """Publishes the messages of a submitter."""

    def __init__(self, link: Link, prefix: str, pool: str) -> None:
        self._link, self._subjects = link, Subjects(prefix, pool, ANY)

    def publish(self, message: messages.Published) -> None:
        """Publish a message; raise SiteDownError if there is no connection. A job without an owner has no event."""
        owner = message.status.owner if isinstance(message, messages.Event) else ANY
        if owner:
            self._link.publish(self._subjects.of(owner).published()[type(message)], pack(message))


def refusal(error: BaseException, kind: str) -> messages.Problem:
    """Return an error as an answer. Of an unexpected one, the answer has only the type: its text may be secret."""
    if isinstance(error, BridgeError):
        text, reason, retryable, hint = str(error), error.reason, error.retryable, error.hint
    else:
        log.error("a request failed", extra=kv(kind=kind), exc_info=error)
        text = f"{kind} failed at the site: {type(error).__name__}; see the submitter's log"
        reason, retryable, hint = "InternalError", True, ""
    return messages.Problem(reason=reason, message=text[:LONGEST_MESSAGE], retryable=retryable, hint=hint)


Run = Callable[[TwoWay], None]
"""Carries out a session to its end, or sends a log."""


class Sessions:
    """All sessions and logs at this site. ``shares``: the places of each kind."""

    def __init__(self, link: Link, subjects: Subjects, clock: Clock) -> None:
        self._link, self._subjects, self._clock = link, subjects, clock
        self._streams = TwoWays(link)
        self.shares: dict[RequestKind[Any, Any], Shares] = {
            LOGS: Shares(MOST_LOGS, "logs", "cluster", "job"),
            EXEC: Shares(MOST_SESSIONS, "sessions", "cluster", "job"),
            CONNECT: Shares(MOST_CONNECTIONS, "connections", "cluster", "job"),
            REACH: Shares(MOST_REACHING, "streams to Services", "cluster", "job", of_member=_OF_ONE_POD),
        }
        link.subscribe(subjects.inputs, self._on_chunk, threads=0)

    def start(self, kind: RequestKind[Any, Any], owner: str, job: str, name: str, begin: Callable[[], Run]) -> None:
        """Run what ``begin`` returns, as a session of this name, for a request of this kind.

        An exception of it becomes the error of the stream. Raises what ``begin`` raises, and :class:`SiteRefusedError`
        if the owner or the job has as many sessions as it may, or the name is in use.
        """
        window = LOG if kind is LOGS else SESSION
        stream = TwoWay(self._link, self._subjects.of(owner).stream(name), self._clock, window)
        try:
            with self.shares[kind].unless_it_fails(owner, job) as leave:
                run, remove = begin(), self._streams.add((owner, name), stream)
                try:
                    # no thread of the supervisor: those last as long as the process
                    threading.Thread(
                        target=self._run, args=(stream, run, remove, leave), name=f"session-{name}", daemon=True
                    ).start()
                except RuntimeError as error:
                    remove()
                    raise ShareExceededError("no thread for one more session") from error
        except ShareExceededError as error:
            raise SiteRefusedError(str(error), reason="TooManySessions", retryable=True) from error

    def _run(self, stream: TwoWay, run: Run, remove: Callable[[], None], leave: Callable[[], None]) -> None:
        try:
            run(stream)
        except StreamClosedError:
            pass
        except Exception as error:
            self._fail(stream, error)
        finally:
            stream.wait_until_received()
            stream.close()
            remove()
            leave()

    def _fail(self, stream: TwoWay, error: Exception) -> None:
        text = str(error) if isinstance(error, BridgeError) else f"the session failed: {type(error).__name__}"
        if not isinstance(error, BridgeError):
            log.error("a session failed", exc_info=error)
        try:
            stream.send(EXIT, end=True, error=text)
        except StreamClosedError:
            log.info("a session ended with an error after its stream", extra=kv(error=text))

    def _on_chunk(self, subject: str, data: bytes, _respond: Respond | None) -> None:
        self._streams.deliver((owner_of(self._subjects.prefix, subject), last_token(subject)), data)
