"""A log as a streamed response."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import flask

from bridge.core.shares import Shares
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.serving.streaming import LIMIT, ON_HANG_UP

log = logging.getLogger(__name__)


def log_shares() -> Shares:
    """Return the shares of namespaces and pods in the logs that one server sends at once.

    Servers do not know the user of ``kubectl logs``: their client is the API server or a virtual kubelet.
    """
    return Shares(LIMIT, "logs", "namespace", "pod")


def log_response(pieces: Iterator[bytes], **about: object) -> flask.Response:
    """Return the answer with these pieces of a log; it ends the log at the site when the client disconnects.

    An error of the site becomes the last line. ``about``: pairs for the log record of such an error.
    """
    body = LogBody(pieces, **about)
    flask.request.environ.get(ON_HANG_UP, _nobody_hangs_up)(body.close)
    return flask.Response(body, content_type="text/plain; charset=utf-8")


class LogBody:
    """The pieces of a log. The first piece is empty: the server sends the headers before the first line exists.

    This is no generator: closing a generator that has not started would not end the log at the site, and a generator
    that waits cannot be closed.
    """

    def __init__(self, pieces: Iterator[bytes], **about: object) -> None:
        self._pieces = pieces
        self._about = about
        self._begun = self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        if not self._begun:
            self._begun = True
            return b""
        try:
            return next(self._pieces)
        except BridgeError as error:
            if self._over:
                raise StopIteration from error
            self._over = True
            log.warning("log broken off", extra=kv(**self._about, error=error))
            return f"podbridge: the log ends here because of an error: {error}\n".encode()

    def close(self) -> None:
        """End the log at the site too. Any thread may call it."""
        self._over = True
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


def _nobody_hangs_up(call: Callable[[], object]) -> None:
    """Replace the server's function where the server does not watch its clients."""
