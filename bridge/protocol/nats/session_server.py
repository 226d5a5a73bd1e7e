"""Sessions and connections, the site's side: each runs on a thread of its own, with a two-way stream to its owner."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from bridge.clock import Clock
from bridge.core.shares import Shares
from bridge.errors import BridgeError, ShareExceededError, SiteRefusedError
from bridge.logs import kv
from bridge.protocol.model.sessions import EXIT
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_session import Respond
from bridge.protocol.nats.request_table import CONNECT, EXEC, REACH, RequestKind
from bridge.protocol.nats.subjects import Subjects, last_token, owner_of
from bridge.protocol.nats.two_way import StreamClosedError, TwoWay, TwoWays

log = logging.getLogger(__name__)

MOST_SESSIONS = 256
"""Commands at once, for all owners. A job has an eighth of them at most."""
MOST_CONNECTIONS = 1024
"""Connections to ports at once, likewise."""
MOST_REACHING = 256
"""Pods at once whose connections to Services have a stream. A job has few: that of a hub that is gone ends late."""
_OF_ONE_POD = 4

Run = Callable[[TwoWay], None]
"""Carries out a session to its end."""


class Sessions:
    """All sessions at this site."""

    def __init__(self, link: Link, subjects: Subjects, clock: Clock) -> None:
        self._link, self._subjects, self._clock = link, subjects, clock
        self._streams = TwoWays(link)
        self._shares = {
            EXEC: Shares(MOST_SESSIONS, "sessions", "cluster", "job"),
            CONNECT: Shares(MOST_CONNECTIONS, "connections", "cluster", "job"),
            REACH: Shares(MOST_REACHING, "streams to Services", "cluster", "job", of_member=_OF_ONE_POD),
        }
        link.subscribe(subjects.inputs, self._on_chunk, threads=0)

    def start(self, kind: RequestKind[Any, Any], owner: str, job: str, name: str, run: Run) -> None:
        """Run a session of this name, for a request of this kind. An exception of ``run`` becomes the error of the
        stream.

        Raises :class:`SiteRefusedError` if the owner or the job has as many sessions as it may, or the name is in use.
        """
        stream = TwoWay(self._link, self._subjects.of(owner).stream(name), self._clock)
        try:
            leave = self._shares[kind].enter(owner, job)
        except ShareExceededError as error:
            raise SiteRefusedError(str(error), reason="TooManySessions", retryable=True) from error
        try:
            remove = self._streams.add((owner, name), stream)
            try:
                thread = threading.Thread(
                    target=self._run, args=(stream, run, remove, leave), name=f"session-{name}", daemon=True
                )
                thread.start()
            except RuntimeError as error:
                remove()
                text = "no thread for one more session"
                raise SiteRefusedError(text, reason="TooManySessions", retryable=True) from error
        except BaseException:
            leave()
            raise

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
