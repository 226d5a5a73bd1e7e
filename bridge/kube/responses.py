"""Responses of the API server: JSON, and the conversion of HTTP statuses to the project's errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from bridge.errors import (
    KubeConflictError,
    KubeError,
    KubeForbiddenError,
    KubeGoneError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeTooLargeError,
    KubeUnavailableError,
)
from bridge.http.curl_client import CallError

MESSAGE_LIMIT = 300
IDLE = "IdleTimeout"
"""``kube_reason`` of the error that ends a watch without events."""
DEEPEST = 128
"""Levels of an object that are read. The API server accepts 10,000, and Python's parsers fail at 1,000 or fewer: then
one ResourceClaim with deep parameters would keep a cache from the objects of all users."""
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[][{}]', re.DOTALL)

_BY_STATUS: dict[int, type[KubeError]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    409: KubeConflictError,
    410: KubeGoneError,
    429: KubeUnavailableError,
}


def decode(content: bytes) -> Any:
    """Parse JSON; equal strings share one object in memory. Raises ValueError.

    In a text that is nested too deep, what is below :data:`DEEPEST` levels is read as null.
    """
    try:
        return from_json(content)
    except ValueError:
        # accepts half of a surrogate pair, and has better messages
        return json.loads(_without_depths(content))


def _without_depths(content: bytes) -> bytes:
    """Return the text with null in place of each list and object that is nested too deep."""
    parts, begin, depth = list[bytes](), 0, 0
    for match in _STRUCTURE.finditer(content):
        sign = match[0]
        if sign in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 1:
                parts += content[begin : match.start()], b"null"
                begin = len(content)  # until its end
        elif sign in (b"]", b"}"):
            depth -= 1
            if depth == DEEPEST:
                begin = match.end()
    return b"".join((*parts, content[begin:]))


def error_of(request: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """Convert a response with an error status to an error; ``request`` is "VERB PATH"."""
    try:
        parsed = decode(body)
    except ValueError:
        parsed = None
    return error_of_status(request, status, parsed, retry_after(headers))


def error_of_status(request: str, status: int, body: Any, wait: float | None = None) -> KubeError:
    """Convert a ``Status`` object, from a response or from an ERROR event of a watch, to an error.

    A body that is not a ``Status`` comes from a proxy, not from the API server. Then a 404 does not mean that the
    object is gone, and the message does not contain the text.
    """
    if not isinstance(body, dict) or body.get("kind") != "Status":
        if status in (401, 403):
            return KubeForbiddenError(f"{request}: refused ({status})", status=status)
        what = "not served, or refused by a proxy" if status == 404 else "not an answer of an API server"
        return unavailable(f"{request}: {what} ({status})", status=status, wait=wait)
    reason = str(body.get("reason") or "Failed")
    message = str(body.get("message") or "")
    if "/secrets" in request:  # the API server may quote the request
        message = "(text omitted)"
    if len(message) > MESSAGE_LIMIT:
        message = message[: MESSAGE_LIMIT - 1] + "…"
    if wait is None:
        seconds = (body.get("details") or {}).get("retryAfterSeconds")
        wait = float(seconds) if seconds else None
    error = _BY_STATUS.get(status) or (KubeInvalidError if 400 <= status < 500 else KubeUnavailableError)
    if status == 422 and _has_another_uid(body):
        error = KubeConflictError
    return error(f"{request}: {reason}: {message} ({status})", status=status, kube_reason=reason, retry_after=wait)


def _has_another_uid(body: dict[str, Any]) -> bool:
    """Whether an object has another UID than the patch: only a PUT and a DELETE get the status 409 then."""
    causes = (body.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == "metadata.uid" for cause in causes)


def unavailable(message: str, *, status: int = 0, reason: str = "", wait: float | None = None) -> KubeUnavailableError:
    """Create the error for "no usable answer", which is always retryable."""
    error = KubeUnavailableError(message, status=status, kube_reason=reason, retry_after=wait)
    error.retryable = True
    return error


def parsed(request: str, status: int, answer: bytes) -> dict[str, Any]:
    """Parse the body of a successful answer; raises :class:`KubeUnavailableError` if it is not an object."""
    try:
        result = decode(answer) if answer else {}
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise unavailable(f"{request}: the answer is not a JSON object ({status})", status=status)
    return result


def no_answer(request: str, error: CallError) -> KubeUnavailableError:
    """Convert a call without an answer to an error; if the request was sent, its outcome is unknown."""
    if not error.sent:
        return unavailable(f"{request}: no connection: {error}", reason="Refused")
    if error.large:
        return KubeTooLargeError(f"{request}: the answer has {error}", kube_reason="TooLarge")
    if error.late:
        return unavailable(f"{request}: no answer in time: {error}", reason="TimedOut")
    return unavailable(f"{request}: no answer: {error}", reason="Broken")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Parse ``Retry-After`` in seconds; Kubernetes never sends a date. Names of headers are in lower case."""
    try:
        return max(0.0, float(headers.get("retry-after") or ""))
    except ValueError:
        return None


def short(error: BaseException) -> str:
    """Return the type and the text of an error, for a message."""
    return f"{type(error).__name__}: {error}"[:200]
