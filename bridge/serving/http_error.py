"""An error answer as an exception."""

from __future__ import annotations


class AnswerError(Exception):
    """The request ends with this HTTP status and text. The text is public: it contains no values of secrets."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
