"""Server-sent events: each open page learns, at most once a second, that objects have changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from bridge.clock import SYSTEM_CLOCK, Clock

PERIOD = 1.0
"""Seconds between two messages, at least."""
KEEP_ALIVE = 15.0
"""Seconds without a message after which a comment is sent: proxies close silent connections after 30 to 60 s."""
LIFE = 600.0
"""Seconds after which a stream ends; the browser connects again, and its access is checked again."""


class Changes:
    """Counts the seconds in which an object has changed. Any number of changes in a second is one message."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._changed = False
        self._ended = False
        self._number = 0
        self._condition = threading.Condition()

    @property
    def number(self) -> int:
        """The number of the last message."""
        return self._number

    def mark(self, *_: object) -> None:
        """Note that an object has changed; for caches, which call it with the change."""
        self._changed = True

    def run(self, stop: threading.Event) -> None:
        """Send the changes until ``stop`` is set."""
        while not stop.wait(PERIOD):
            self.publish()
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def publish(self) -> None:
        """Send one message if an object has changed since the last call."""
        if self._changed:
            self._changed = False
            with self._condition:
                self._number += 1
                self._condition.notify_all()

    def wait(self, after: int, feed: Feed, timeout: float) -> int:
        """Wait until the number of the last message is not ``after``, at most ``timeout`` seconds; return it."""
        with self._condition:
            self._condition.wait_for(lambda: self._ended or feed.closed or self._number != after, timeout)
            if self._ended:
                feed.closed = True
            return self._number

    def wake(self) -> None:
        """Wake all feeds, of which one was closed."""
        with self._condition:
            self._condition.notify_all()


class Feed(Iterator[bytes]):
    """The stream of one open page, as the body of an answer. ``seen`` is the number that the page has shown."""

    def __init__(self, changes: Changes, seen: int) -> None:
        self.closed = False
        self._changes = changes
        self._seen = seen
        self._begun = False
        self._end = changes.clock.monotonic() + LIFE

    def __next__(self) -> bytes:
        if not self._begun:
            self._begun = True
            return b"retry: 2000\n\n"
        left = self._end - self._changes.clock.monotonic()
        number = self._changes.wait(self._seen, self, max(0.0, min(KEEP_ALIVE, left)))
        if self.closed or self._changes.clock.monotonic() >= self._end:
            raise StopIteration
        if number == self._seen:
            return b": keep-alive\n\n"
        self._seen = number
        return b"id: %d\nevent: change\ndata: %d\n\n" % (number, number)

    def close(self) -> None:
        """End the stream. Any thread may call it."""
        self.closed = True
        self._changes.wake()
