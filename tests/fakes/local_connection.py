"""Connections to ports of this machine, for tests of what is between them and ``kubectl port-forward``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bridge.errors import BridgeError, SiteRefusedError


class LocalConnections:
    """Connects, as a pool does. ``problem`` is raised instead, if set."""

    def __init__(self) -> None:
        self.opened: list[LocalConnection] = []
        self.problem: BridgeError | None = None

    def __call__(self, pod: Mapping[str, Any], port: int) -> LocalConnection:
        if self.problem is not None:
            raise self.problem
        connection = LocalConnection(port)
        self.opened.append(connection)
        return connection


class LocalConnection:
    """One connection. Over NATS, a refusal arrives with the first data, too."""

    def __init__(self, port: int) -> None:
        self.is_closed = False
        self._problem: BridgeError | None = None
        self._sock = socket.socket()
        try:
            self._sock.connect(("127.0.0.1", port))
        except OSError:
            self._problem = SiteRefusedError("connection refused", reason="SessionEnded")

    @property
    def is_over(self) -> bool:
        return self.is_closed

    def receive(self) -> bytes | None:
        if self._problem is not None:
            raise self._problem
        try:
            data = self._sock.recv(2**16)
        except OSError:
            data = None
        if self._problem is not None:
            raise self._problem
        return None if self.is_closed else data

    def send(self, data: bytes) -> None:
        with suppress(OSError):
            self._sock.sendall(data)

    def end_input(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def fail(self, problem: BridgeError) -> None:
        self._problem = problem
        self._shut()

    def close(self) -> None:
        self.is_closed = True
        self._shut()

    def _shut(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
