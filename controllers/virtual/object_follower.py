"""Follows the ConfigMaps and Secrets in volumes of pods at sites: reads their versions periodically.

Each object is read once for all pods, and only its metadata. podbridge may neither list nor watch these objects.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bridge.clock import Clock
from bridge.errors import KubeError
from bridge.logs import kv
from controllers.virtual.pod_state import ObjectKey
from controllers.virtual.reference_reader import ReferenceReader

log = logging.getLogger(__name__)

F = TypeVar("F")
TICK = 5.0
"""Maximum seconds between two checks for new objects."""
JITTER = 0.1


class ObjectFollower:
    """Reads the version of each object every ``period`` seconds, or less often if the limit of reads requires it.

    ``followed`` returns the objects to follow, with what ``tell`` gets with the version of each.
    """

    def __init__(
        self,
        reader: ReferenceReader,
        followed: Callable[[], Mapping[ObjectKey, Sequence[F]]],
        tell: Callable[[F, ObjectKey, str], None],
        period: float,
        clock: Clock,
    ) -> None:
        self._reader, self._followed, self._tell, self._period, self._clock = reader, followed, tell, period, clock
        self._due: dict[ObjectKey, float] = {}

    def run(self, wait: Callable[[float], bool]) -> None:
        """Follow the objects until ``wait``, which waits for some seconds, returns that the process stops."""
        while not wait(min(TICK, self._period / 4)):
            self.read_due(wait)

    def read_due(self, wait: Callable[[float], bool]) -> None:
        """Read the versions of the objects that are due, the longest overdue first, for at most a period."""
        followed, began = self._followed(), self._clock.monotonic()
        # spread over half a period: after a start, all objects are new at once
        first = {key: began + self._period * random.uniform(0.5, 1) for key in followed.keys() - self._due.keys()}  # noqa: S311
        self._due = {key: self._due[key] for key in followed.keys() & self._due.keys()} | first
        for key in sorted((key for key, due in self._due.items() if due <= began), key=self._due.__getitem__):
            if wait(self._reader.wait_for_reads([key])) or self._clock.monotonic() - began > self._period:
                return
            self._due[key] = self._clock.monotonic() + self._period * random.uniform(1 - JITTER, 1)  # noqa: S311
            try:
                version = self._reader.version(key)
            except KubeError as error:
                log.debug("an object of a volume could not be read", extra=kv(object="/".join(key), error=error))
                continue
            for follower in followed[key]:
                self._tell(follower, key, version)
