"""The events of a watch, read from the answer of the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import urllib3

from bridge.clock import Clock
from bridge.kube.responses import IDLE, decode, error_of_status, short, unavailable
from bridge.kube.text_stream import BROKEN, PIECE


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
