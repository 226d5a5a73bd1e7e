"""Which pool runs a pod: the only one, or the one that the pod's toleration of the taint ``pool.vk.io`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from bridge import names
from bridge.errors import SiteDownError
from bridge.pools.pool_interface import Pool
from bridge.serving.http_error import AnswerError
from bridge.workload.pool_selection import tolerated_by_name

Pod = Mapping[str, Any]


class Directory(Protocol):
    """The pools behind one virtual node."""

    def pools(self) -> Mapping[str, Pool]:
        """Return all pools by name."""

    def choose(self, pod: Pod) -> Pool:
        """Return the pool that runs this pod.

        Raises :class:`AnswerError` if the pod names none or several, and :class:`SiteDownError` if its pool has not
        announced itself yet.
        """


class OnePool:
    """A directory of one pool, which runs every pod."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def pools(self) -> Mapping[str, Pool]:
        """Return the pool by its name."""
        return {self._pool.name: self._pool}

    def choose(self, pod: Pod) -> Pool:
        """Return the pool."""
        return self._pool


class ByToleration:
    """A directory of all pools that ``pools`` returns. If there is only one, a pod need not name it."""

    def __init__(self, pools: Callable[[], Mapping[str, Pool]]) -> None:
        self._pools = pools

    def pools(self) -> Mapping[str, Pool]:
        """Return all pools by name."""
        return self._pools()

    def choose(self, pod: Pod) -> Pool:
        """Return the pool that the pod's toleration names."""
        pools = self._pools()
        named = tolerated_by_name((pod.get("spec") or {}).get("tolerations") or ())
        if len(named) == 1 and named[0] != names.ANY_POOL:
            if (pool := pools.get(named[0])) is not None:
                return pool
            raise SiteDownError(f"pool {named[0]!r} is not known; known: {_list(pools)}")
        if len(pools) == 1 and set(named) <= {names.ANY_POOL}:
            return next(iter(pools.values()))
        if not pools:
            raise SiteDownError("no pool has announced itself yet")
        told = ", ".join(named) or "none"
        raise AnswerError(
            422,
            f"spec.tolerations: the pod names {told} with key {names.POOL_TAINT}; allowed: exactly one toleration with "
            f"operator Equal, whose value is one of: {_list(pools)}",
        )


def _list(pools: Mapping[str, Pool]) -> str:
    return ", ".join(sorted(pools)) or "none"
