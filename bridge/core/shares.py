"""The shares of groups and of their members in a limited number of places, so that one of them can't take all."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from bridge.errors import ShareExceededError

_Key = TypeVar("_Key")


class Shares:
    """Counts the places in use. Each group may use half of the places that the others leave free. For any thread.

    So a group alone has half of the places, and there is always one for the first member of one more group.

    ``limit`` is the number of places, ``of_member`` the most of one member: an eighth by default. ``noun``, ``group``
    and ``member`` are the nouns for messages: ``logs``, ``namespace``, ``pod``.
    """

    def __init__(self, limit: int, noun: str, group: str, member: str, *, of_member: int | None = None) -> None:
        self._limit, self._of_member = limit, limit // 8 if of_member is None else of_member
        self._noun, self._group, self._member = noun, group, member
        self._lock = threading.Lock()
        self._groups: Counter[str] = Counter()
        self._members: Counter[tuple[str, str]] = Counter()

    def enter(self, group: str, member: str) -> Callable[[], None]:
        """Take a place; return the function that releases it. Raises :class:`ShareExceededError`."""
        key = group, member
        with self._lock:
            in_use = self._groups[group]
            if in_use >= (self._limit - (self._groups.total() - in_use)) / 2:
                raise ShareExceededError(
                    f"{in_use} {self._noun} of {self._group} {group!r} are open already: end one of them"
                )
            if self._members[key] >= self._of_member:
                raise ShareExceededError(
                    f"{self._of_member} {self._noun} of this {self._member} are open already: end one of them"
                )
            self._groups[group] += 1
            self._members[key] += 1
        place = [key]

        def leave() -> None:
            with self._lock:
                if place:
                    place.clear()
                    _less(self._groups, group)
                    _less(self._members, key)

        return leave

    @property
    def used(self) -> int:
        """The number of places in use."""
        with self._lock:
            return self._groups.total()

    @contextmanager
    def unless_it_fails(self, group: str, member: str) -> Iterator[Callable[[], None]]:
        """Take a place as :meth:`enter`; give it back if the body raises."""
        leave = self.enter(group, member)
        try:
            yield leave
        except BaseException:
            leave()
            raise


def _less(counts: Counter[_Key], key: _Key) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
