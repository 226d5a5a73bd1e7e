"""The pools of all kinds, joined under their names."""

from __future__ import annotations

import importlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.clock import Clock
from bridge.core.threads import Supervisor
from bridge.logs import kv
from bridge.pools.pool_interface import Pool

if TYPE_CHECKING:
    from bridge.config.hub import Config  # 2 MiB that the plugin of a site does not need

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolContext:
    """What the pools of each kind are made with.

    ``owner``: the UID that owns the jobs of this process. ``process``: its name for servers. ``leads`` returns whether
    it is the leader. ``interlink``: pods come from an interLink client, not from a hub.
    """

    config: Config
    clock: Clock
    owner: str = ""
    process: str = ""
    leads: Callable[[], bool] = lambda: True
    interlink: bool = False


class PoolSource(ABC):
    """The pools of one kind; by default, the configuration defines them.

    ``server``: what all their sites connect to; empty: nothing. ``every_pod``: in a plugin, the only pool runs also
    pods that do not name it.
    """

    server = ""
    every_pod = False

    @abstractmethod
    def start(self, supervisor: Supervisor) -> None:
        """Start the threads that follow the pools."""

    def stop(self) -> None:  # noqa: B027
        """End in order, after the last request was answered. By default, all threads end with the process."""

    @abstractmethod
    def pools(self) -> Mapping[str, Pool]:
        """Return all known pools by name."""

    @abstractmethod
    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change, with the pool's name, and the UID of a job or an empty string."""

    def remove(self, name: str) -> None:  # noqa: B027
        """Remove a pool that only announcements define; keep a pool that the configuration defines."""

    def problem(self) -> str | None:
        """Return why :attr:`server` cannot be reached; ``None`` if it can, or there is none."""
        return None

    def remembered(self, pool: str) -> int:
        """Return the number of known jobs at a pool, including restored ones."""
        del pool
        return 0


class PoolRegistry(PoolSource):
    """The pools of all sources.

    If two sources have a pool of the same name, the first source has it. The configuration excludes this for pools
    that it names, but a site can announce itself over NATS under the name of a configured pool.
    """

    def __init__(self, sources: Iterable[PoolSource]) -> None:
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

    def problem(self) -> str | None:
        """Return the problem of the first source that has one."""
        return next(filter(None, (source.problem() for source in self._sources)), None)

    def remembered(self, pool: str) -> int:
        """Return the number of known jobs at a pool of any source."""
        return sum(source.remembered(pool) for source in self._sources)


def make(context: PoolContext, only: Collection[str] = ()) -> PoolRegistry:
    """Return the pools of all kinds that the configuration has, or ``only`` of some. Sends no request.

    Raises :class:`bridge.errors.ConfigError`.
    """
    pools = context.config.pools
    return PoolRegistry(
        importlib.import_module(kind.module).make(sections, context)
        for kind in pools.kinds
        if (sections := pools.sections(kind)) and (not only or kind.key in only)
    )
