"""The pools of the plugin: their origin, and which of them runs a pod, by its toleration of ``pool.vk.io``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.core.threads import Supervisor
from bridge.errors import SiteDownError
from bridge.pools import registry
from bridge.pools.pool_interface import Pool
from bridge.serving.http_error import AnswerError
from bridge.workload.pool_selection import tolerated_by_name

Pod = Mapping[str, Any]


class Directory:
    """The pools behind one virtual node, which ``pools`` returns by name. A pod need not name the only one."""

    def __init__(self, pools: Callable[[], Mapping[str, Pool]]) -> None:
        self.pools = pools

    def choose(self, pod: Pod) -> Pool:
        """Return the pool that the pod's toleration names.

        Raises :class:`AnswerError` if the pod names none or several, and :class:`SiteDownError` if its pool has not
        announced itself yet.
        """
        pools = self.pools()
        named = tolerated_by_name((pod.get("spec") or {}).get("tolerations") or ())
        if len(named) == 1 and named[0] != names.ANY_POOL:
            if (pool := pools.get(named[0])) is not None:
                return pool
            raise SiteDownError(f"pool {named[0]!r} is not known; known: {_list(pools)}")
        if len(pools) == 1 and set(named) <= {names.ANY_POOL}:
            return next(iter(pools.values()))
        if not pools:
            raise SiteDownError("no pool has announced itself yet")
        listed = ", ".join(named) or "none"
        raise AnswerError(
            422,
            f"spec.tolerations: the pod names {listed} with key {names.POOL_TAINT}; allowed: exactly one toleration "
            f"with operator Equal, whose value is one of: {_list(pools)}",
        )


class OnePool(Directory):
    """A directory of one pool, which runs every pod."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(lambda: {pool.name: pool})
        self._pool = pool

    def choose(self, pod: Pod) -> Pool:
        """Return the pool."""
        return self._pool


class PoolSource:
    """The origin of the pools."""

    clock: Clock
    directory: Directory

    def start(self, supervisor: Supervisor) -> None:
        """Start the threads that follow the pools."""
        raise NotImplementedError

    def stop(self) -> None:
        """End in order, after the last request was answered. By default, all threads end with the process."""

    def checks(self) -> Mapping[str, Callable[[], str | None]]:
        """Return readiness checks by name; none: the process is ready when a pool accepts jobs."""
        return {}


class RemotePools(PoolSource):
    """The pools of sites elsewhere. ``server``: what their sites connect to; empty: nothing."""

    def __init__(self, pools: registry.PoolSource, server: str = "") -> None:
        self.clock, self.directory = SYSTEM_CLOCK, Directory(pools.pools)
        self._pools, self._server = pools, server

    def start(self, supervisor: Supervisor) -> None:
        """Connect and follow the pools."""
        self._pools.start(supervisor)

    def checks(self) -> Mapping[str, Callable[[], str | None]]:
        """Return the readiness checks: the connection, not the sites behind it."""
        return {self._server: self._pools.problem} if self._server else {}


def _list(pools: Mapping[str, Pool]) -> str:
    return ", ".join(sorted(pools)) or "none"
