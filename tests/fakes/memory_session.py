"""A session in memory: the test writes its output and reads its input."""

from __future__ import annotations

import queue

from bridge.errors import BridgeError, SiteUnknownOutcomeError
from bridge.protocol.model.sessions import Exit, Output


class MemorySession:
    """``news`` is the output to come; ``problem`` is raised for input."""

    def __init__(self) -> None:
        self.news: queue.Queue[Output | Exit | BridgeError] = queue.Queue()
        self.input = b""
        self.input_ended = self.closed = False
        self.sizes: list[tuple[int, int]] = []
        self.problem: BridgeError | None = None

    def receive(self) -> Output | Exit:
        news = self.news.get(timeout=20)
        if isinstance(news, BridgeError):
            raise news
        return news

    def send(self, data: bytes) -> None:
        if self.problem is not None:
            raise self.problem
        self.input += data

    def end_input(self) -> None:
        self.input_ended = True

    def resize(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))

    def close(self) -> None:
        self.closed = True
        self.news.put(SiteUnknownOutcomeError("the session is closed"))
