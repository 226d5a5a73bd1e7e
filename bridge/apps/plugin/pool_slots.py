"""Limits the requests that use one pool at once: a site that does not answer must not hold the threads of the others.

A virtual kubelet sends one request for each new pod, without a limit, and fails the pod for good at the first error. So
a request waits for a slot as long as the pool accepts others. It is refused only if the pool has accepted none for a
while.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.errors import SiteDownError

STALLED_AFTER = 10.0
"""Seconds without an accepted request after which a pool without a free slot counts as stalled."""


class PoolSlots:
    """The slots in use, by pool. Thread-safe."""

    def __init__(self, stalled_after: float = STALLED_AFTER) -> None:
        self._stalled_after = stalled_after
        self._changed = threading.Condition()
        self._used: Counter[str] = Counter()
        self._accepted_at: dict[str, float] = {}

    @contextmanager
    def hold(self, pool: str, most: int) -> Iterator[None]:
        """Wait for one of ``most`` slots and hold it. If the block raises no error, the pool has accepted a request.

        Raises :class:`SiteDownError` if the pool is stalled.
        """
        with self._changed:
            if not self._used[pool]:
                self._accepted_at[pool] = time.monotonic()
            while self._used[pool] >= most:
                left = self._accepted_at[pool] + self._stalled_after - time.monotonic()
                if left <= 0:
                    raise SiteDownError(f"pool {pool}: {most} requests wait for an answer of the site")
                self._changed.wait(left)
            self._used[pool] += 1
        try:
            yield
            self._accepted_at[pool] = time.monotonic()
        finally:
            with self._changed:
                self._used[pool] -= 1
                self._changed.notify_all()
