"""Answers other than 200, as exceptions: a status and words that reach the user through the API server."""

from __future__ import annotations

from bridge.errors import BridgeError, KubeError, SiteDownError, SiteRefusedError, SiteUnknownOutcomeError


class AnswerError(Exception):
    """Ends a request with this HTTP status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def answer_of(error: BridgeError) -> AnswerError:
    """Say what an error means to the client.

    The API server passes on the words of 400, 404 and 502 and puts its own in the place of a 503's: so a site that is
    silent is 502, with words, and 503 is left for "nobody could be asked whether you may".
    """
    hint = f" ({error.hint})" if error.hint else ""
    if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
        return AnswerError(502, f"{error}{hint}")
    if isinstance(error, SiteRefusedError) and not error.retryable:
        return AnswerError(404 if error.reason == "NotFound" else 400, f"{error}{hint}")
    if isinstance(error, KubeError):
        return AnswerError(503 if error.retryable else 500, f"the API server could not be asked: {error}")
    return AnswerError(502 if error.retryable else 500, f"{error}{hint}")
