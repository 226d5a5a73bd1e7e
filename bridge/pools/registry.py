"""The pools of all kinds, joined under their names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bridge.core.threads import Supervisor
from bridge.logs import kv
from bridge.pools.pool_interface import Pool

log = logging.getLogger(__name__)


class PoolSource(Protocol):
    """The pools of one kind."""

    def start(self, supervisor: Supervisor) -> None:
        """Start the threads that follow the pools."""

    def pools(self) -> Mapping[str, Pool]:
        """Return all known pools by name."""

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change, with the pool's name, and the UID of a job or an empty string."""

    def remove(self, name: str) -> None:
        """Remove a pool that only announcements define; keep a pool that the configuration defines."""


class PoolRegistry:
    """The pools of all sources; itself a :class:`PoolSource`.

    If two sources have a pool of the same name, the first source has it. The configuration excludes this for pools
    that it names, but a site can announce itself over NATS under the name of a configured pool.
    """

    def __init__(self, sources: Sequence[PoolSource]) -> None:
        self._sources = tuple(sources)
        self._shadowed: frozenset[str] = frozenset()

    def start(self, supervisor: Supervisor) -> None:
        """Start all sources."""
        for source in self._sources:
            source.start(supervisor)

    def pools(self) -> dict[str, Pool]:
        """Return all known pools by name."""
        pools_by_name: dict[str, Pool] = {}
        shadowed: set[str] = set()
        for source in self._sources:
            source_pools = source.pools()
            shadowed |= source_pools.keys() & pools_by_name.keys()
            pools_by_name = {**source_pools, **pools_by_name}
        if shadowed - self._shadowed:
            log.error("two pools have the same name; the configured one is used", extra=kv(pools=",".join(shadowed)))
        self._shadowed = frozenset(shadowed)
        return pools_by_name

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change of a pool of any source."""
        for source in self._sources:
            source.subscribe(changed)

    def remove(self, name: str) -> None:
        """Remove a pool from all sources."""
        for source in self._sources:
            source.remove(name)
