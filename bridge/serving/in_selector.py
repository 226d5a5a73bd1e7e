"""Answers requests in the thread of the selector, in place of cheroot's pool of workers."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from bridge.logs import kv
from bridge.serving.connection import Connection

log = logging.getLogger(__name__)


class InSelector:
    """Has the methods that cheroot's server calls on its pool. Only for applications that wait for nothing."""

    idle = qsize = 0

    def __init__(self, server: Any) -> None:
        self._server = server
        self._waiting: deque[Connection] = deque()
        self._answering = False

    def start(self) -> None:
        """Start nothing: there are no workers."""

    def stop(self, timeout: float = 0) -> None:
        """Stop nothing."""

    def put(self, connection: Connection) -> None:
        """Answer the request of a connection, then the requests that its client has sent behind it."""
        self._waiting.append(connection)
        if self._answering:  # called by put_conn() below
            return
        self._answering = True
        try:
            while self._waiting:
                self._answer(self._waiting.popleft())
        finally:
            self._answering = False

    def _answer(self, connection: Connection) -> None:
        keep = False
        try:
            keep = connection.communicate()
        except Exception:  # as in cheroot's workers: a request must not end the server
            log.exception("request failed", extra=kv(peer=connection.remote_addr))
        if keep:
            self._server.put_conn(connection)
        else:
            connection.close()
