"""The limit of the memory for reviews: a parsed review needs up to 30 times the memory of its text.

A user who may create pods can send many of the size that the API server just accepts, also of a dry run, and any client
that reaches the port can send what it likes. If the process runs out of memory, no namespace gets pods. So large
reviews are handled one at a time, and a part of the threads waits for them. The others stay free for small ones.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LARGE = 2**18
"""Bytes of a large review; that of a common pod has 5 to 30 KiB."""
MOST_VALUES = 1_000_000
"""Values in a review, which need 100 to 200 bytes each. Two pods of 1.5 MiB, as etcd stores them, have fewer."""
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
WAIT = 3.0
"""Seconds that a large review waits for the one before it; the API server waits 5 s for the answer."""


class BusyError(Exception):
    """Too many large reviews wait already."""


class LargeReviews:
    """Lets one large review at a time be handled, while at most ``waiting`` others wait."""

    def __init__(self, waiting: int) -> None:
        self._places = threading.Semaphore(waiting + 1)
        self._turn = threading.Lock()

    @contextmanager
    def turn(self, size: int) -> Iterator[None]:
        """Handle a review of ``size`` bytes in the body of ``with``. Raises :class:`BusyError`."""
        if size <= LARGE:
            yield
            return
        if not self._places.acquire(blocking=False):
            raise BusyError
        try:
            if not self._turn.acquire(timeout=WAIT):
                raise BusyError
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._places.release()


def has_too_many_values(body: bytes) -> bool:
    """Whether the JSON text ``body`` has more than :data:`MOST_VALUES` values, counted without parsing it."""
    return _separators(body) > MOST_VALUES and _separators(_TEXT.sub(b"", body)) > MOST_VALUES


def _separators(text: bytes) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))
