"""A text that the API server sends while it is written: the log of a container."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from bridge.kube.responses import unavailable

PIECE = 1 << 16
BROKEN = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
"""The errors of a connection that breaks while an answer is read."""


class TextStream(Iterator[bytes]):
    """The pieces of an answer, until the server ends it or another thread calls :meth:`close`.

    Raises :class:`~bridge.errors.KubeUnavailableError` if the connection breaks or is silent for too long.
    """

    def __init__(self, request: str, response: urllib3.BaseHTTPResponse) -> None:
        self._request = request
        self._response = response
        self._closed = False

    def __next__(self) -> bytes:
        try:
            piece = b"" if self._closed else self._response.read1(PIECE)
        except BROKEN as error:
            self._release()
            if self._closed:
                raise StopIteration from error
            raise unavailable(f"{self._request}: connection lost: {type(error).__name__}", reason="Broken") from error
        if not piece:
            self._release()
            raise StopIteration
        return piece

    def close(self) -> None:
        """End the stream: a thread that waits for the next piece gets the end. Any thread may call it."""
        self._closed = True
        interrupt(self._response)

    def _release(self) -> None:
        with suppress(*BROKEN):
            self._response.close()
            self._response.release_conn()


def interrupt(response: urllib3.BaseHTTPResponse) -> None:
    """End the connection of a response that another thread reads."""
    connection: Any = response.connection
    with suppress(OSError, AttributeError, TypeError):
        sock = connection.sock
        # not SSLSocket.shutdown: it drops the TLS state, so that the other thread would read plain text
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
