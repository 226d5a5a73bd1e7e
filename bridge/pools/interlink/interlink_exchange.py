"""Requests with a time limit for the whole answer, headers included, which another thread can end.

A time limit of ``requests`` starts again at each byte, and ``requests`` returns nothing that could be closed before the
headers have arrived. So these adapters read each answer through the :class:`Exchange` of its request.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from requests.adapters import HTTPAdapter

from bridge.clock import Clock
from bridge.http.requests_adapter import UnixAdapter

_CURRENT: ContextVar[Exchange] = ContextVar("exchange")


class Exchange:
    """One request and its answer, or several in a row.

    ``limit``: seconds from now until the end of the answer; ``None``: no limit. Connecting and sending have their own.
    """

    def __init__(self, clock: Clock, limit: float | None) -> None:
        self._clock, self._limit = clock, limit
        self._deadline = None if limit is None else clock.monotonic() + limit
        self._sock: socket.socket | None = None
        self._ended = False

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """Make the request that the calling thread sends that of this exchange."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def limit_each_read(self) -> None:
        """Apply the limit to the time between two parts of the answer instead: the answer may be a long log."""
        self._deadline = None

    def end(self) -> None:
        """End the exchange before the headers have arrived. Any thread may call it."""
        self._ended = True
        if self._sock is not None:
            with contextlib.suppress(OSError):
                # not SSLSocket.shutdown: it drops the TLS state while another thread reads
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def attach(self, sock: socket.socket) -> None:
        """Wait for the answer at this socket."""
        self._sock = sock
        if self._ended:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the request was ended")

    def seconds_left(self) -> float | None:
        """Return the seconds that the next read may take."""
        if self._deadline is None:
            return self._limit
        seconds_left = self._deadline - self._clock.monotonic()
        if seconds_left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "the answer was not complete in time")
        return seconds_left


class _Reader(io.RawIOBase):
    """The bytes that arrive at a socket. It stands in for the socket in :class:`http.client.HTTPResponse`."""

    def __init__(self, sock: socket.socket, exchange: Exchange) -> None:
        self._sock, self._exchange = sock, exchange
        self._raw = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._exchange.seconds_left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _response(sock: socket.socket, *args: Any, **options: Any) -> http.client.HTTPResponse:
    exchange = _CURRENT.get()
    exchange.attach(sock)
    reader: Any = _Reader(sock, exchange)
    return http.client.HTTPResponse(reader, *args, **options)


class ExchangeAdapter(HTTPAdapter):
    """Its connections read each answer through the exchange of the calling thread."""

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> Any:
        """Return a pool of connections."""
        pool: Any = super().get_connection_with_tls_context(*args, **options)
        # urllib3 keeps a pool of connections for each host: change each one, not its class, which other adapters use
        if "ConnectionCls" not in vars(pool):
            pool.ConnectionCls = type("Connection", (pool.ConnectionCls,), {"response_class": staticmethod(_response)})
        return pool


class UnixExchangeAdapter(ExchangeAdapter, UnixAdapter):
    """The same over a unix socket."""
