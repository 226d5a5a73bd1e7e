"""Error answers as exceptions: an HTTP status and a message, which the API server passes to the user."""

from __future__ import annotations

from bridge.errors import BridgeError, KubeError, SiteDownError, SiteRefusedError, SiteUnknownOutcomeError


class AnswerError(Exception):
    """The request ends with this HTTP status and message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def answer_of(error: BridgeError) -> AnswerError:
    """Return the answer for an error.

    The API server passes on the message of a 400, 404 and 502, and replaces that of a 503. So a silent site is 502, and
    503 means that the API server did not answer a review.
    """
    hint = f" ({error.hint})" if error.hint else ""
    if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
        return AnswerError(502, f"{error}{hint}")
    if isinstance(error, SiteRefusedError) and not error.retryable:
        return AnswerError(404 if error.reason == "NotFound" else 400, f"{error}{hint}")
    if isinstance(error, KubeError):
        return AnswerError(503 if error.retryable else 500, f"a request to the API server failed: {error}")
    return AnswerError(502 if error.retryable else 500, f"{error}{hint}")
