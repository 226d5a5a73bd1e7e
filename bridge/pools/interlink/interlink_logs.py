"""A log that an interLink plugin sends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import requests

from bridge.errors import SiteDownError, SiteError
from bridge.http.requests_adapter import innermost
from bridge.pools.interlink.interlink_exchange import Exchange
from bridge.pools.interlink.interlink_transport import read_some


class LogPieces:
    """An iterator over the pieces of a log. The caller must close it, which ends the log at the plugin too.

    ``request`` sends the request, as ``exchange``, when the first piece is read, or at :meth:`open`. ``limit``: bytes
    after which the log ends; ``None``: no limit. Raises SiteError if the plugin refuses the log, SiteDownError if it
    breaks off.
    """

    def __init__(self, request: Callable[[], requests.Response], exchange: Exchange, limit: int | None) -> None:
        self._request, self._exchange, self._bytes_left = request, exchange, limit
        self._response: requests.Response | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._is_closed or self._bytes_left == 0:
            self.close()
            raise StopIteration
        try:
            piece = read_some(self.open() if self._response is None else self._response)
        except (SiteError, requests.RequestException, OSError) as error:
            was_closed = self._is_closed
            self.close()
            if was_closed:  # another thread has closed the log
                raise StopIteration from error
            if isinstance(error, SiteError):
                raise
            raise SiteDownError(f"the plugin broke off the log: {innermost(error)}") from error
        if not piece:
            self.close()
            raise StopIteration
        if self._bytes_left is not None:
            piece = piece[: self._bytes_left]
            self._bytes_left -= len(piece)
        return piece

    def open(self) -> requests.Response:
        """Send the request and wait for the answer's headers. Raises :class:`SiteError`."""
        response = self._request()
        with self._lock:
            self._response = response
            if self._is_closed:
                response.close()
        return response

    def close(self) -> None:
        """End the log. Any thread may call it; a request or a read in progress ends."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._response is None:
                self._exchange.end()
                return
        with contextlib.suppress(Exception):  # the connection may be over
            # ends a read that another thread waits in
            self._response.raw.shutdown()
        with contextlib.suppress(Exception):
            self._response.close()
