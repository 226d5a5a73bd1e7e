"""How big the managed nodes are: what a warning about a pod that fits nowhere is measured by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge import names
from bridge.clock import Clock, SystemClock
from bridge.workload import pool_selection
from bridge.workload.resources import Resources, allocatable

REMEMBER = 10.0
"""Seconds that a view is good for: nodes change rarely, and a warning may be wrong for a moment."""
_SYSTEM_CLOCK = SystemClock()


class NodeSizes:
    """Gives the different sizes among the managed nodes.

    ``nodes`` gives raw nodes. Managed are those with our taint; every node, where podbridge is told not to taint.
    """

    def __init__(
        self,
        nodes: Callable[[], Iterable[Mapping[str, Any]]],
        *,
        scheduler: str,
        tainted: bool = True,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> None:
        self._nodes = nodes
        self._scheduler = scheduler
        self._tainted = tainted
        self._clock = clock
        self._lock = threading.Lock()
        self._sizes: Sequence[Resources] = ()
        self._until = float("-inf")

    def __call__(self) -> Sequence[Resources]:
        """Give one entry for all nodes that are alike."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._until:
                sizes = {
                    frozenset(size.items()): size for size in map(allocatable, filter(self._managed, self._nodes()))
                }
                self._sizes = tuple(sizes.values())
                self._until = now + REMEMBER
            return self._sizes

    def _managed(self, node: Mapping[str, Any]) -> bool:
        if pool_selection.is_virtual(node):
            return False
        taints = (node.get("spec") or {}).get("taints") or ()
        return not self._tainted or any(
            taint.get("key") == names.MANAGED_TAINT and taint.get("value") == self._scheduler for taint in taints
        )
