"""What a namespace says about its pods: the annotation that opens pools to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from bridge import names
from bridge.clock import Clock, SystemClock
from bridge.errors import KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import NAMESPACES

REMEMBER = 2.0
"""Seconds that a namespace's annotation is good for: pods come in quick succession."""
MOST_REMEMBERED = 10_000
_SYSTEM_CLOCK = SystemClock()

Read = Callable[[str], Mapping[str, str]]
"""``read(namespace)`` gives its annotations."""


def read_from(client: KubeClient) -> Read:
    """Read annotations from the API server; a namespace that is not there says nothing."""

    def read(namespace: str) -> Mapping[str, str]:
        try:
            found = client.get(NAMESPACES.path(name=namespace), metadata_only=True)
        except KubeNotFoundError:
            return {}
        return dict((found.get("metadata") or {}).get("annotations") or {})

    return read


class Namespaces:
    """Gives the pools that a namespace opens to its pods."""

    def __init__(self, read: Read, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str | None, float]] = {}

    def pools(self, namespace: str) -> str | None:
        """Give the annotation ``bridge.vk.io/pools`` of a namespace as it stands; raises ``Kube*`` errors."""
        now = self._clock.monotonic()
        with self._lock:
            known = self._known.get(namespace)
        if known is not None and now < known[1]:
            return known[0]
        text = self._read(namespace).get(names.POOLS)
        with self._lock:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[namespace] = (text, now + REMEMBER)
        return text
