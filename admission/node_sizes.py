"""The allocatable resources of the managed nodes, for the warning about a pod that fits on no node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.workload import node_ownership, pool_selection
from bridge.workload.resources import Resources, allocatable

REMEMBER = 10.0
"""Seconds to cache the sizes: nodes change rarely, and only a warning depends on them."""


class NodeSizes:
    """Returns the distinct sizes of the managed nodes.

    ``nodes`` returns raw nodes. Nodes with podbridge's taint are managed; with ``tainted`` false, all nodes are.
    """

    def __init__(
        self,
        nodes: Callable[[], Iterable[Mapping[str, Any]]],
        *,
        scheduler: str,
        tainted: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._nodes = nodes
        self._scheduler = scheduler
        self._tainted = tainted
        self._clock = clock
        self._lock = threading.Lock()
        self._sizes: Sequence[Resources] = ()
        self._until = float("-inf")

    def __call__(self) -> Sequence[Resources]:
        """Return one entry for each distinct size."""
        with self._lock:
            now = self._clock.monotonic()
            if now >= self._until:
                sizes = map(allocatable, filter(self._managed, self._nodes()))
                self._sizes = tuple({frozenset(size.items()): size for size in sizes}.values())
                self._until = now + REMEMBER
            return self._sizes

    def _managed(self, node: Mapping[str, Any]) -> bool:
        if pool_selection.is_virtual(node):
            return False
        return not self._tainted or node_ownership.is_taken_by(node, self._scheduler)
