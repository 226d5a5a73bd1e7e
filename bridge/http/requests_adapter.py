"""What the HTTP clients of podbridge share: unix sockets, and the errors of failed connections."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import requests
from requests.adapters import HTTPAdapter

_NOT_SENT = frozenset(
    (
        *("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ConnectionRefusedError"),
        *("FileNotFoundError", "PermissionError", "SSLCertVerificationError", "InvalidHeader", "InvalidURL"),
    )
)
"""Classes of the errors that occur before a request is sent."""


class UnixAdapter(HTTPAdapter):
    """Connects to a unix socket; ignores the host of the URL."""

    def __init__(self, path: str, pool_maxsize: int) -> None:
        self._path = path
        # no retries: urllib3 would repeat a request whose outcome is unknown
        super().__init__(pool_connections=1, pool_maxsize=pool_maxsize, max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Create the pool manager, with a pool of connections to the socket."""
        super().init_poolmanager(*args, **kwargs)
        path = self._path
        pool: Any = self.poolmanager.pool_classes_by_scheme["http"]

        class Connection(pool.ConnectionCls):  # type: ignore[misc]
            def _new_conn(self) -> socket.socket:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    connection.settimeout(self.timeout)
                    connection.connect(path)
                except OSError:
                    connection.close()
                    raise
                return connection

        class Pool(pool):  # type: ignore[misc]
            ConnectionCls = Connection

        self.poolmanager.pool_classes_by_scheme = {"http": Pool}


def was_sent(error: BaseException) -> bool:
    """Return whether the request of this error may have reached the server."""
    return _NOT_SENT.isdisjoint(type(item).__name__ for item in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors behind it: causes, contexts, and errors in the arguments of others."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, BaseException) and id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += [getattr(item, "reason", None), item.__cause__, item.__context__, *item.args]


def innermost(error: BaseException) -> str:
    """Return the text of the operating system if there is one; texts of libraries contain memory addresses."""
    for item in _chain(error):
        if isinstance(item, OSError) and item.strerror and not isinstance(item, requests.RequestException):
            return item.strerror
    if isinstance(error, requests.Timeout):
        return "timed out"
    return str(error)[:200] or type(error).__name__
