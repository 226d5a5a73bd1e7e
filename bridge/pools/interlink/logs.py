"""A log that an interLink plugin sends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import requests

from bridge.errors import SiteDownError
from bridge.http_client import innermost
from bridge.pools.interlink.transport import read_some


class LogPieces:
    """An iterator over the pieces of a log. The caller must close it, which ends the log at the plugin too.

    ``limit``: bytes after which the log ends; ``None``: no limit. Raises SiteDownError if the plugin breaks off.
    """

    def __init__(self, response: requests.Response, limit: int | None) -> None:
        self._response, self._left = response, limit
        self._over = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over or self._left == 0:
            self.close()
            raise StopIteration
        try:
            piece = read_some(self._response)
        except (requests.RequestException, OSError) as error:
            over = self._over
            self.close()
            if over:  # another thread has closed the log
                raise StopIteration from error
            raise SiteDownError(f"the plugin broke off the log: {innermost(error)}") from error
        if not piece:
            self.close()
            raise StopIteration
        if self._left is not None:
            piece = piece[: self._left]
            self._left -= len(piece)
        return piece

    def close(self) -> None:
        """End the log. Any thread may call it; a read in progress ends."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(Exception):  # the connection may be over
            self._response.raw.shutdown()
        with contextlib.suppress(Exception):
            self._response.close()
