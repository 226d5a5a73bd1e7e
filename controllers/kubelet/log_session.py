"""A session that is attached to a container without input: the log from now on."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.protocol.model.sessions import STDOUT, Exit, Output


class LogSession:
    """Implements :class:`bridge.protocol.model.sessions.Session` with the pieces of a log that is followed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def receive(self) -> Output | Exit:
        """Wait for the next piece, or the end of the log."""
        for piece in self._pieces:
            if piece:
                return Output(STDOUT, piece)
        return Exit(0)

    def send(self, data: bytes) -> None:
        """Drop: the container has no input."""

    def end_input(self) -> None:
        """Do nothing."""

    def resize(self, columns: int, rows: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End the log, at the site too."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()
