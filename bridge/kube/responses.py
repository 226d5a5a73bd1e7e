"""What the API server's answers mean: the one table from HTTP status to the project's errors."""

from __future__ import annotations

import json
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
    KubeUnavailableError,
)

MESSAGE_LIMIT = 300
IDLE = "IdleTimeout"
"""``kube_reason`` of the error that ends a watch on which nothing came."""

_BY_STATUS: dict[int, type[KubeError]] = {
    401: KubeForbiddenError,
    403: KubeForbiddenError,
    404: KubeNotFoundError,
    409: KubeConflictError,
    410: KubeGoneError,
    429: KubeUnavailableError,
}


def decode(content: bytes) -> Any:
    """Read JSON; equal words of all that is read are one in memory. Raises ValueError."""
    try:
        return from_json(content)
    except ValueError:
        return json.loads(content)  # takes half of a surrogate pair, and says better what is wrong


def error_of(what: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """Turn an answer that is no success into an error; ``what`` is "VERB PATH"."""
    try:
        parsed = decode(body)
    except ValueError:
        parsed = None
    return error_of_status(what, status, parsed, retry_after(headers))


def error_of_status(what: str, status: int, body: Any, wait: float | None = None) -> KubeError:
    """Turn a ``Status`` object, from an answer or from an ERROR event of a watch, into an error.

    A body that is no ``Status`` did not come from the API server, but from something in front of it: then a 404 does
    not say that the object is gone, and its text is kept out of the message.
    """
    if not isinstance(body, dict) or body.get("kind") != "Status":
        if status in (401, 403):
            return KubeForbiddenError(f"{what}: refused ({status})", status=status)
        return unavailable(f"{what}: no answer of an API server ({status})", status=status, wait=wait)
    reason = str(body.get("reason") or "Failed")
    message = str(body.get("message") or "")
    if "/secrets" in what:  # an API server may quote what it was sent
        message = "(text kept back)"
    if len(message) > MESSAGE_LIMIT:
        message = message[: MESSAGE_LIMIT - 1] + "…"
    if wait is None:
        seconds = (body.get("details") or {}).get("retryAfterSeconds")
        wait = float(seconds) if seconds else None
    error = _BY_STATUS.get(status) or (KubeInvalidError if 400 <= status < 500 else KubeUnavailableError)
    return error(f"{what}: {reason}: {message} ({status})", status=status, kube_reason=reason, retry_after=wait)


def unavailable(message: str, *, status: int = 0, reason: str = "", wait: float | None = None) -> KubeUnavailableError:
    """Make the error for "no usable answer", which is always worth another try."""
    error = KubeUnavailableError(message, status=status, kube_reason=reason, retry_after=wait)
    error.retryable = True
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read ``Retry-After`` in seconds; Kubernetes never sends the form with a date."""
    try:
        return max(0.0, float(headers.get("Retry-After") or ""))
    except ValueError:
        return None
