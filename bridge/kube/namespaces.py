"""Labels and annotations of namespaces, with a cache: labels select a policy, annotations open pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NAMESPACES

REMEMBER = 2.0
"""Default seconds to cache a namespace: pods are often created in quick succession."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The labels and annotations of a namespace."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def pools(self) -> str | None:
        """The value of the annotation ``bridge.vk.io/pools``."""
        return self.annotations.get(names.POOLS)


Read = Callable[[str], Namespace]
"""``read(name)`` returns the namespace; raises ``Kube*`` errors."""


def read_from(client: KubeClient) -> Read:
    """Return a function that reads namespaces; a missing one has no labels and no annotations."""

    def read(name: str) -> Namespace:
        try:
            namespace = client.get(NAMESPACES.path(name=name), metadata_only=True)
        except KubeNotFoundError:
            return Namespace()
        return of(namespace)

    return read


def of(namespace: Mapping[str, Any]) -> Namespace:
    """Return the labels and annotations of a raw namespace."""
    metadata = namespace.get("metadata") or {}
    return Namespace(metadata.get("labels") or {}, metadata.get("annotations") or {})


class Namespaces:
    """Reads namespaces and caches them for ``remember`` seconds."""

    def __init__(self, read: Read, clock: Clock = SYSTEM_CLOCK, remember: float = REMEMBER) -> None:
        self._read = read
        self._remember = remember
        self._known: SingleFlightCache[Namespace] = SingleFlightCache(clock)

    def get(self, name: str) -> Namespace:
        """Return a namespace; raises ``Kube*`` errors."""
        return self._known.get(name, lambda: (self._read(name), self._remember))
