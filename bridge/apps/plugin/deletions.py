"""What the plugin remembers of deleted pods. For any thread: each request and the repeated cancellations have one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bridge.pools.pool_interface import Pool

Pod = Mapping[str, Any]
MOST_DELETED = 10_000
"""Deleted pods to remember, whose state is requested from the site; beyond it, the view of the pool counts. Also the
limit of cancellations to repeat."""


class Deletions:
    """All state is guarded by one lock, which is never held during a request to a site."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._creating: list[str] = []  # a UID for each request: a client may repeat one that is in progress
        self._undelivered: dict[str, Pod] = {}
        self._ending: dict[str, Pool | None] = {}
        """The pool that follows the job; ``None``: the site lists it, but no event reports that it is gone."""
        self._cancelled: dict[str, None] = {}  # the last ones in order, at sites that do not remember them

    @contextmanager
    def creating(self, uid: str) -> Iterator[None]:
        """While a request creates the pod."""
        with self._lock:
            self._creating.append(uid)
        try:
            yield
        finally:
            with self._lock:
                self._creating.remove(uid)

    def refuses_creation(self, uid: str) -> bool:
        """Whether the pod was deleted before a request that creates it."""
        with self._lock:
            return uid in self._undelivered or uid in self._cancelled

    def is_deleted(self, uid: str) -> bool:
        """Whether the pod's job was cancelled, and its site has not said that it is gone."""
        with self._lock:
            return uid in self._ending

    # --- cancellations that sites have not answered -------------------------------------------------------------------
    def undelivered(self) -> dict[str, Pod]:
        """Return the pods whose cancellation is to be repeated, the next one first."""
        with self._lock:
            return dict(self._undelivered)

    def repeat(self, uid: str, pod: Pod) -> None:
        """Repeat the cancellation later. One that is repeated already keeps its place."""
        with self._lock:
            if uid in self._undelivered or len(self._undelivered) < MOST_DELETED:
                self._undelivered[uid] = pod

    def postpone(self, uid: str) -> None:
        """Repeat the cancellation after the others, unless it was delivered meanwhile."""
        with self._lock:
            if (pod := self._undelivered.pop(uid, None)) is not None:
                self._undelivered[uid] = pod

    def delivered(self, uid: str) -> None:
        """Do not repeat the cancellation."""
        with self._lock:
            self._undelivered.pop(uid, None)

    # --- sites that do not remember cancellations ---------------------------------------------------------------------
    def begin(self, uid: str) -> tuple[bool, bool]:
        """Refuse creations of the pod from now on.

        Return whether this is the first cancellation, and whether a request creates the pod now.
        """
        with self._lock:
            is_first = uid not in self._cancelled
            self._cancelled[uid] = None
            if len(self._cancelled) > MOST_DELETED:
                del self._cancelled[next(iter(self._cancelled))]
            return is_first, uid in self._creating

    def withdraw(self, uid: str) -> None:
        """Accept creations of the pod again: the cancellation was about another one."""
        with self._lock:
            self._cancelled.pop(uid, None)

    # --- jobs that end ------------------------------------------------------------------------------------------------
    def ends(self, uid: str, followed: Pool | None) -> None:
        """Note that the job of a deleted pod ends; ``followed``: the pool that has to follow it."""
        with self._lock:
            if len(self._ending) >= MOST_DELETED and self._ending[oldest := next(iter(self._ending))] is None:
                del self._ending[oldest]
            self._ending[uid] = followed

    def has_room(self) -> bool:
        """Whether one more ending job may be followed."""
        with self._lock:
            return len(self._ending) < MOST_DELETED

    def followed(self) -> dict[str, Pool]:
        """Return the pools of the followed jobs that end, by UID."""
        with self._lock:
            return {uid: pool for uid, pool in self._ending.items() if pool is not None}

    def gone(self, uid: str) -> None:
        """Note that the site has no job of the pod any more, or that a followed job has ended."""
        with self._lock:
            self._ending.pop(uid, None)
