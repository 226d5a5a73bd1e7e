"""The pools of the plugin: their origin, and which of them runs a pod, by its toleration of ``pool.vk.io``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bridge import names
from bridge.errors import SiteDownError
from bridge.pools.pool_interface import Pool
from bridge.serving.http_error import AnswerError
from bridge.workload.pool_selection import tolerated_by_name

Pod = Mapping[str, Any]


class Directory:
    """The pools behind one virtual node, which ``pools`` returns by name. A pod need not name the only one.

    ``every_pod``: the only pool also runs pods that name others.
    """

    def __init__(self, pools: Callable[[], Mapping[str, Pool]], *, every_pod: bool = False) -> None:
        self.pools, self._every_pod = pools, every_pod

    def choose(self, pod: Pod) -> Pool:
        """Return the pool that the pod's toleration names.

        Raises :class:`AnswerError` if the pod names none or several, and :class:`SiteDownError` if its pool has not
        announced itself yet.
        """
        pools = self.pools()
        if self._every_pod:
            return next(iter(pools.values()))
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


def _list(pools: Mapping[str, Pool]) -> str:
    return ", ".join(sorted(pools)) or "none"
