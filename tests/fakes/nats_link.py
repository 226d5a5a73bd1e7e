"""A NATS link without a network: the thread that sends a message runs its handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.errors import SiteDownError, SiteUnknownOutcomeError


class FakeSubscription:
    def __init__(self, link: FakeLink, subjects: tuple[str, ...], handler: Any) -> None:
        self.link, self.subjects, self.handler = link, subjects, handler

    def close(self) -> None:
        if self in self.link.subscriptions:
            self.link.subscriptions.remove(self)

    drain = close


class FakeLink:
    def __init__(self) -> None:
        self.connected = True
        self.max_payload = 1024 * 1024
        self.subscriptions: list[FakeSubscription] = []
        self.sent: list[tuple[str, bytes]] = []
        self.tasks: list[Callable[[], None]] = []
        self.after: Callable[[], None] = lambda: None
        """Called after each message that was published."""
        self.watchers: list[Callable[[bool], None]] = []

    def subscribe(self, subject: str | tuple[str, ...], handler: Any, queue: str = "", threads: int = 1) -> Any:
        subjects = (subject,) if isinstance(subject, str) else subject
        self.subscriptions.append(FakeSubscription(self, subjects, handler))
        return self.subscriptions[-1]

    def publish(self, subject: str, *messages: bytes) -> None:
        if not self.connected:
            raise SiteDownError("no connection")
        for data in messages:
            self.sent.append((subject, data))
            for handler in self._handlers(subject):
                handler(subject, data, None)
            self.after()

    def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        if not self.connected:
            raise SiteDownError("no connection")
        handlers = self._handlers(subject)
        if not handlers:
            raise SiteDownError("no submitter of the site is connected")
        answers: list[bytes] = []
        handlers[0](subject, data, answers.append)
        if not answers:
            raise SiteUnknownOutcomeError("no answer")
        return answers[0]

    def every(self, seconds: float, chore: Callable[[], None]) -> None:
        self.tasks.append(chore)

    def watch(self, on_change: Callable[[bool], None]) -> None:
        self.watchers.append(on_change)

    def _handlers(self, subject: str) -> list[Any]:
        return [s.handler for s in list(self.subscriptions) if any(matches(p, subject) for p in s.subjects)]


def matches(pattern: str, subject: str) -> bool:
    wanted, found = pattern.split("."), subject.split(".")
    return len(wanted) == len(found) and all(w in ("*", f) for w, f in zip(wanted, found, strict=True))
