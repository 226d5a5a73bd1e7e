"""Errors of requests as HTTP answers. A virtual kubelet shows the text on the pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from bridge.errors import (
    BridgeError,
    MissingReferenceError,
    ScriptError,
    ShareExceededError,
    SiteDownError,
    SiteRefusedError,
    SiteTooLargeError,
    SiteUnknownOutcomeError,
)
from bridge.serving.http_error import AnswerError

_BY_REASON = {"NotFound": 404, "ContainerNotFound": 404, "ContainerWaiting": 400, "Forgotten": 409, "NotOwner": 403}
_SILENT = frozenset(
    {"secrets", "configMaps", "configmaps", "projectedvolumemaps", "projectedvolumesmaps", "data", "binaryData"}
    | {"stringData", "env", "command", "args", "annotations", "labels", "jobScript", "jobConfig"}
)
"""Keys below which values are not repeated in an answer: they may be secrets."""


def answer_of(error: BridgeError) -> AnswerError:
    """Return the answer for an error of a pool.

    4xx: the same request can never succeed. 503: the site does not answer. 504: the site may have processed the
    request. 502: the site's answer cannot be used.
    """
    text = error.with_hint
    if isinstance(error, ScriptError | MissingReferenceError):
        return AnswerError(422, text)
    if isinstance(error, ShareExceededError):
        return AnswerError(429, text)
    if isinstance(error, SiteTooLargeError):
        return AnswerError(413, text)
    if isinstance(error, SiteUnknownOutcomeError):
        return AnswerError(504, text)
    if isinstance(error, SiteDownError) or error.retryable:
        return AnswerError(503, text)
    if isinstance(error, SiteRefusedError):
        return AnswerError(_BY_REASON.get(error.reason, 422), text)
    return AnswerError(502, text)


def invalid(error: ValidationError, prefix: Sequence[str | int] = ()) -> AnswerError:
    """Return the answer to a body with these errors: the path of each field, what is wrong, and its value."""
    lines = [_line({**problem, "loc": (*prefix, *problem["loc"])}) for problem in error.errors(include_url=False)[:10]]
    return AnswerError(400, "; ".join(lines))


def _line(problem: dict[str, Any]) -> str:
    path = ""
    for step in problem["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    if problem["type"] == "json_invalid":  # its input is the whole body
        return f"body: not JSON: {problem['ctx']['error']}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    value = problem.get("input")
    if problem["type"] == "missing" or not isinstance(value, str | int | float | bool | None):
        return f"{path or 'body'}: {message}"
    if _SILENT.intersection(map(str, problem["loc"])):
        return f"{path}: {message}"
    return f"{path or 'body'}: {message}, not {str(value)[:60]!r}"
