"""Answers that the API server continues: the events of a watch, and a text such as the log of a container."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import urllib3

from bridge.clock import Clock
from bridge.kube.responses import IDLE, decode, error_of_status, short, unavailable

PIECE = 1 << 16
BROKEN = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
"""The errors of a connection that breaks while an answer is read."""


def events(
    request: str, response: urllib3.BaseHTTPResponse, idle_timeout: float, clock: Clock
) -> Iterator[dict[str, Any]]:
    """Yield the events of a watch, including bookmarks, until the server ends it.

    Raises the matching error for an ERROR event, and :class:`~bridge.errors.KubeUnavailableError` for bytes that are no
    event, for a lost connection, and after ``idle_timeout`` seconds without a complete event.
    """
    try:
        for line in _lines(request, response, idle_timeout, clock):
            event: dict[str, Any] = decode(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise error_of_status(request, int(status.get("code") or 500), status)
            _ = event["object"]["metadata"]["resourceVersion"]  # callers rely on this field
            yield event
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unavailable(f"{request}: not an event: {type(error).__name__}") from error


def _lines(request: str, response: urllib3.BaseHTTPResponse, idle_timeout: float, clock: Clock) -> Iterator[bytes]:
    rest = b""
    last_event = clock.monotonic()
    while True:
        try:
            # not read(), which would wait for a whole piece and delay the events in it
            piece = response.read1(PIECE)
        except urllib3.exceptions.ReadTimeoutError as error:
            raise unavailable(f"{request}: no data for {idle_timeout:g} s", reason=IDLE) from error
        except BROKEN as error:
            raise unavailable(f"{request}: connection lost: {short(error)}", reason="Broken") from error
        if not piece:
            if rest:
                raise unavailable(f"{request}: connection lost within an event", reason="Broken")
            return
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line:
                yield line
        now = clock.monotonic()
        if lines:
            last_event = now
        elif now - last_event > idle_timeout:
            raise unavailable(f"{request}: no complete event for {idle_timeout:g} s", reason=IDLE)


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
