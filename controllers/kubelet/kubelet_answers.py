"""Errors as HTTP answers: a status and a message, which the API server passes to the user."""

from __future__ import annotations

from bridge.errors import (
    BridgeError,
    KubeError,
    ShareExceededError,
    SiteDownError,
    SiteRefusedError,
    SiteUnknownOutcomeError,
)
from bridge.serving.http_error import AnswerError


def answer_of(error: BridgeError) -> AnswerError:
    """Return the answer for an error.

    The API server passes on the message of a 400, 404 and 502, and replaces that of a 503. So a silent site is 502, and
    503 means that the API server did not answer a review.
    """
    if isinstance(error, ShareExceededError):
        return AnswerError(429, str(error))
    if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
        return AnswerError(502, error.with_hint)
    if isinstance(error, SiteRefusedError) and not error.retryable:
        return AnswerError(404 if error.reason == "NotFound" else 400, error.with_hint)
    if isinstance(error, KubeError):
        return AnswerError(503 if error.retryable else 500, f"a request to the API server failed: {error}")
    return AnswerError(502 if error.retryable else 500, error.with_hint)
