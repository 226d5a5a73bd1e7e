"""A log as the body of a streamed response."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from bridge.errors import BridgeError
from bridge.logs import kv

log = logging.getLogger(__name__)


class LogBody:
    """The pieces of a log. An error before the first piece is the caller's; a later one becomes the last line.

    The first piece is empty, so that the server sends the headers before the first line exists. ``about``: pairs for
    the log record of an error.

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
            return f"podbridge: the log breaks off here: {error}\n".encode()

    def close(self) -> None:
        """End the log at the site too. Any thread may call it."""
        self._over = True
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
