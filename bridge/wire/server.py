"""The site's end: requests come in, each is answered; announcements and events go out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from bridge.clock import Clock, SystemClock
from bridge.errors import BridgeError, SiteError, SiteRefusedError, SiteTooLargeError
from bridge.logs import kv
from bridge.wire.connection import Link
from bridge.wire.envelope import pack, parse, parse_body
from bridge.wire.log_streams import StreamClosed, Streams, Write
from bridge.wire.messages import (
    WRONG_FOLDER,
    Announce,
    BuildConfigMessage,
    Cancel,
    Description,
    Event,
    Files,
    Logs,
    Message,
    Problem,
    Reply,
    Request,
    Snapshot,
    SnapshotPage,
    Status,
    Submit,
    Submitted,
)
from bridge.wire.session import Respond
from bridge.wire.subjects import ANY, Subjects, last_token, owner_of

__all__ = ["Announcer", "Handlers", "Server", "StreamClosed", "Write", "serve"]

log = logging.getLogger(__name__)

SKEW = 5.0
"""Seconds by which two clocks may differ."""
THREADS = {"submit": 8, "cancel": 4, "status": 4, "files": 2, "snapshot": 1, "describe": 1, "logs": 1}
"""Threads for each kind of request, of its own: none waits for another kind."""
_LONGEST_MESSAGE = 4096
_WITHOUT_JOB = ("snapshot", "describe")
_CLOCK = SystemClock()


class Handlers(Protocol):
    """What a submitter does with requests. Each may be called by several threads at once, even for one job.

    ``owner`` is the cluster that asks, as the subject of its request says: the server's permissions go by that.
    A :class:`BridgeError` becomes the answer's error, in its own words; any other exception is logged and answered with
    the reason ``InternalError``.
    """

    def submit(self, owner: str, job: str, submit: Submit) -> Submitted: ...  # noqa: D102
    def cancel(self, owner: str, job: str, cancel: Cancel) -> Status: ...  # noqa: D102
    def status(self, owner: str, job: str) -> Status: ...  # noqa: D102
    def snapshot(self, owner: str, snapshot: Snapshot) -> SnapshotPage: ...  # noqa: D102
    def files(self, owner: str, job: str, files: Files) -> None: ...  # noqa: D102
    def describe(self) -> Description: ...  # noqa: D102

    def logs(self, owner: str, job: str, logs: Logs, write: Write) -> None:
        """Write a log, and return at its end; runs on a thread of its own.

        ``write`` sends a piece of any size, and waits while the reader has no room. It raises :class:`StreamClosed`
        when the reader is gone: let that pass. ``write(b"")`` sends nothing and does not wait: call it once when it is
        clear that the log can be read, and then at least every second while following a silent one. An error before
        the first ``write`` becomes the answer's error, a later one the last chunk's.
        """


def serve(link: Link, prefix: str, pool: str, handlers: Handlers, clock: Clock = _CLOCK, *, folder: str = "") -> Server:
    """Answer the requests to a pool from now on; with other submitters of that pool, each request by one of them.

    ``folder`` is the id of the folder that the answers are read from.
    """
    return Server(link, prefix, pool, handlers, clock, folder)


class Server:
    """Answers requests."""

    def __init__(
        self, link: Link, prefix: str, pool: str, handlers: Handlers, clock: Clock = _CLOCK, folder: str = ""
    ) -> None:
        self._link, self._pool, self._handlers, self._clock, self._folder = link, pool, handlers, clock, folder
        self._prefix = prefix
        subjects = Subjects(prefix, pool, ANY)
        self._streams = Streams(link, subjects, clock)
        acts: dict[str, Callable[[Request], Message | None]] = {
            "submit": lambda request: handlers.submit(request.owner, request.job, parse_body(Submit, request.body)),
            "cancel": lambda request: handlers.cancel(request.owner, request.job, parse_body(Cancel, request.body)),
            "status": lambda request: handlers.status(request.owner, request.job),
            "files": lambda request: handlers.files(request.owner, request.job, parse_body(Files, request.body)),
            "snapshot": lambda request: handlers.snapshot(request.owner, parse_body(Snapshot, request.body)),
            "describe": lambda _request: handlers.describe(),
        }
        patterns = subjects.requests()
        for kind, act in acts.items():
            link.subscribe(patterns[kind], self._handler(kind, act), queue=pool, threads=THREADS[kind])
        link.subscribe(patterns["logs"], self._logs, queue=pool, threads=THREADS["logs"])

    def _handler(
        self, kind: str, act: Callable[[Request], Message | None]
    ) -> Callable[[str, bytes, Respond | None], None]:
        def handle(subject: str, data: bytes, respond: Respond | None) -> None:
            if respond is None:
                log.warning("a request without a way to answer it", extra=kv(kind=kind))
                return
            try:
                request = self._request(kind, subject, data)
                done = act(request)
            except Exception as error:
                self._respond(respond, kind, refusal(error, kind))
            else:
                self._respond(respond, kind, done)

        return handle

    def _logs(self, subject: str, data: bytes, respond: Respond | None) -> None:
        if respond is None:
            return

        def answer(error: BaseException | None) -> None:
            self._respond(respond, "logs", None if error is None else refusal(error, "logs"))

        try:
            request = self._request("logs", subject, data)
            options = parse_body(Logs, request.body)
            owner, job = request.owner, request.job
            self._streams.start(
                owner, options.stream, lambda write: self._handlers.logs(owner, job, options, write), answer
            )
        except Exception as error:
            answer(error)

    def _request(self, kind: str, subject: str, data: bytes) -> Request:
        """Read a request; raises unless it is for this pool and folder, of and about whom its subject says, in time."""
        request = parse(Request, data)
        if request.pool != self._pool:
            raise SiteRefusedError(f"a request to pool {request.pool}; this is {self._pool}", reason="WrongPool")
        if kind not in _WITHOUT_JOB and (not request.job or request.job != last_token(subject)):
            raise SiteRefusedError(f"a request about job {request.job!r} on the subject of another", reason="WrongJob")
        if request.owner != owner_of(self._prefix, subject):
            text = f"a request of owner {request.owner} on the subject of another"
            raise SiteRefusedError(text, reason="WrongOwner")
        if request.folder and request.folder != self._folder:
            raise SiteRefusedError(
                f"a request about folder {request.folder}; this submitter has folder {self._folder}: not carried out",
                reason=WRONG_FOLDER,
                retryable=True,
                hint="Do all submitters of this pool use the same folder, on a file system that they share?",
            )
        late = self._clock.time() - request.deadline
        if not late <= SKEW:
            text = f"the deadline was {late:.1f} s ago by the clock of this site: not carried out"
            raise SiteRefusedError(text, reason="Late", retryable=True, hint="Are the clocks of both sides right?")
        return request

    def _reply(self, done: Message | None) -> Reply:
        return Reply(folder=self._folder, body=done.model_dump(mode="json") if done else {})

    def _respond(self, respond: Respond, kind: str, done: Message | None) -> None:
        """Send an answer; one that is too large is made smaller, or says so."""
        try:
            while True:
                reply = done if isinstance(done, Reply) else self._reply(done)
                try:
                    respond(pack(reply))
                    return
                except SiteTooLargeError as error:
                    half = len(done.jobs) // 2 if isinstance(done, SnapshotPage) else 0
                    if isinstance(done, SnapshotPage) and half:
                        done = done.model_copy(update={"jobs": done.jobs[:half], "more": True})
                    elif isinstance(done, Reply):
                        raise
                    else:
                        done = refusal(error, kind)
        except SiteError as error:
            log.warning("a request could not be answered", extra=kv(kind=kind, error=error))


class Announcer:
    """What a submitter says unasked. Each raises SiteDownError when it could not be sent."""

    def __init__(self, link: Link, prefix: str, pool: str) -> None:
        self._link, self._subjects = link, Subjects(prefix, pool, ANY)

    def publish_announce(self, announce: Announce) -> None:
        """Tell that the site is there, and what it has."""
        self._link.publish(self._subjects.announce, pack(announce))

    def publish_buildconfig(self, config: BuildConfigMessage) -> None:
        """Tell how scripts must be built."""
        self._link.publish(self._subjects.buildconfig, pack(config))

    def publish_event(self, event: Event) -> None:
        """Tell a job's owner that it has changed; nobody hears of one that has no owner."""
        if event.status.owner:
            self._link.publish(self._subjects.of(event.status.owner).event, pack(event))


def refusal(error: BaseException, kind: str) -> Reply:
    """Write an error as an answer."""
    if isinstance(error, BridgeError):
        text = str(error)[:_LONGEST_MESSAGE]
        return Reply(error=Problem(reason=error.reason, message=text, retryable=error.retryable, hint=error.hint))
    log.error("a request failed", extra=kv(kind=kind), exc_info=error)
    text = f"{kind} failed at the site: {type(error).__name__}; its log says more"
    return Reply(error=Problem(reason="InternalError", message=text, retryable=True))
