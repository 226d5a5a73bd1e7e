"""Where the pods that select and request the same could go: computed once for all of them in a decision. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import eligibility, pool_selection
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.group_states import Pod
from scheduler.places.place_view import PlaceView
from scheduler.places.pool_usage import PlannedUsage


class Shape:
    """The pools for all pods of one decision that select and request the same.

    A pool that is full stays full during a decision, which only adds pods, unless the decision moves a pod
    (:meth:`forget_full`).
    """

    def __init__(
        self,
        view: PlaceView,
        spec: Mapping[str, Any],
        requested: Resources,
        selector: pool_selection.PoolSelector,
    ) -> None:
        self.ordered = selector.ordered(view.pools)
        self._view, self._spec, self._requested = view, spec, requested
        self._refusals: dict[str, str] = {}
        self._full: dict[str, str] = {}
        self._local: str | None = None
        self._fits_local: bool | None = None

    def refusal(self, name: str) -> str:
        """Return the reason why the virtual node of a pool is refused, whatever is on it; empty if it is not."""
        why = self._refusals.get(name)
        if why is None:
            node = self._view.pools[name].node
            why = self._refusals[name] = eligibility.refusal(self._spec, self._requested, node)
        return why

    def full(self, name: str, usage: PlannedUsage) -> str:
        """Return the reason why a pool has no room now; empty if it has room."""
        why = self._full.get(name) or too_full(usage, self._requested, self._view.pools[name].node)
        if why:
            self._full[name] = why
        return why

    def local_full(self, usage: PlannedUsage) -> str:
        """Return the reason why no node of the colocated Slurm has room now; empty if one has. No decision binds there.

        The reason is that of the last node.
        """
        if self._local is None:
            self._local = "no node"
            for node in self._view.nodes:
                refused = eligibility.refusal(self._spec, self._requested, node)
                self._local = refused or too_full(usage, self._requested, node)
                if not self._local:
                    break
        return self._local

    def fits_local(self) -> bool:
        """Whether a node of the colocated Slurm could run the pods, whatever is on it."""
        if self._fits_local is None:
            nodes = self._view.nodes
            self._fits_local = any(not eligibility.refusal(self._spec, self._requested, node) for node in nodes)
        return self._fits_local

    def forget_full(self) -> None:
        """Compute again where there is room."""
        self._full, self._local = {}, None


class Shapes:
    """The shapes of the pods of one decision: most pods request the same as others."""

    def __init__(self, view: PlaceView) -> None:
        self._view = view
        self._by_key: dict[tuple[pool_selection.PoolSelector, str], Shape] = {}

    def of(self, pod: Pod, requested: Resources, selector: pool_selection.PoolSelector) -> Shape:
        """Return the shape of a pod."""
        spec = {name: pod["spec"][name] for name in eligibility.SPEC_FIELDS if name in pod["spec"]}
        key = selector, repr((sorted(requested.items()), spec))
        shape = self._by_key.get(key)
        if shape is None:
            shape = self._by_key[key] = Shape(self._view, spec, requested, selector)
        return shape

    def forget_full(self) -> None:
        """Compute again where there is room."""
        for shape in self._by_key.values():
            shape.forget_full()


def too_full(usage: PlannedUsage, requested: Resources, node: NodeView) -> str:
    """Return the reason why a node has no room for a request now; empty if it has room."""
    used = usage.of(node.name)
    for name in sorted(requested):
        if used.get(name, Decimal(0)) + requested[name] > (node.offered or {}).get(name, Decimal(0)):
            return f"no room for {name} now"
    return ""
