"""Which nodes fit which pods, computed apart for what pods may use and for what they request.

Most pods differ in their requests, and most nodes do not differ in what they offer. So labels, affinity and taints are
compared once for each selection of nodes, and requests once for each kind of node. Requests with the same outcome have
the same placement, and the memory does not grow with the number of pods.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from bridge.workload import eligibility, resources
from bridge.workload.eligibility import NodeView
from bridge.workload.tolerations import remembered

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST_NODES = 200_000
"""Largest number of nodes in all results of one kind together: about 20 MB."""
LEAST_RESULTS = 16
MOST_SHAPES = 4096
"""Number of different requests of pods whose result is kept."""

Selection = tuple[dict[str, str], list[tuple[str, int]], list[tuple[str, int]]]
"""The nodes that a pod may not use (name in Slurm -> reason); those of them that are only closed, and the others, both
with their kinds."""
Key = tuple[str, tuple[str, ...]]
"""What a pod may use, and why each kind of node does not fit its requests (empty: it fits)."""


class BoundedCache(Generic[K, V]):
    """The values that were used last, at most ``max_size`` of them. Thread-safe; a value may be made twice."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._lock = threading.Lock()
        self._values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; make it if it is not kept."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._values[key] = value
                return value
        value = make()
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._max_size:
                del self._values[next(iter(self._values))]
        return value

    def __len__(self) -> int:
        return len(self._values)


def most_results(nodes: int) -> int:
    """Return how many results about so many nodes are kept."""
    return max(LEAST_RESULTS, MOST_NODES // max(1, nodes))


class NodeFit:
    """The nodes by their name in Slurm, and their kinds: nodes of one kind offer the same and have as much taken."""

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self._nodes = {node.slurm_name: node for node in nodes}
        self._kinds: list[NodeView] = []
        self._kind_of: dict[str, int] = {}
        numbers: dict[object, int] = {}
        for name, node in self._nodes.items():
            offered = None if node.offered is None else frozenset(node.offered.items())
            kind = self._kind_of[name] = numbers.setdefault((offered, frozenset(node.taken.items())), len(numbers))
            if kind == len(self._kinds):
                self._kinds.append(node)
        max_results = most_results(len(self._nodes))
        self._keys = BoundedCache[str, Key](MOST_SHAPES)
        self._selections = BoundedCache[str, Selection](max_results)

    def key(self, pod: Mapping[str, Any], partition: str) -> Key:
        """Return the key of the pod's placement: the same for all pods that fit the same nodes for the same reasons."""
        spec = pod["spec"]
        selection_fields = [partition, *(spec.get(part) for part in eligibility.SPEC_FIELDS)]
        request_fields = [
            *(spec.get(part) for part in ("overhead", "resources")),
            *([c.get("resources"), c.get("restartPolicy")] for c in spec.get("initContainers") or ()),
            "/",
            *(c.get("resources") for c in spec.get("containers") or ()),
            *resources.host_ports(spec),
        ]
        shape = json.dumps([selection_fields, request_fields], sort_keys=True)
        return self._keys.get(shape, lambda: (json.dumps(selection_fields, sort_keys=True), self._shortages(spec)))

    def placed(
        self, pod: Mapping[str, Any], key: Key, slurm_nodes: Callable[[], Collection[str]]
    ) -> tuple[dict[str, str], list[str]]:
        """Return the nodes that Kubernetes would refuse for the pod (name -> reason), and the others, sorted.

        Of the nodes ``slurm_nodes``, which follow from the key. A Slurm node that is not a Kubernetes node is refused
        too: it has no kubelet to start the pod.
        """
        barred, closed, usable = self._selections.get(key[0], lambda: self._select(pod["spec"], slurm_nodes()))
        refused, eligible, shortages = dict(barred), [], key[1]
        for name, kind in closed:
            refused[name] = eligibility.first_reason(barred[name], shortages[kind])
        for name, kind in usable:
            if why := shortages[kind]:
                refused[name] = why
            else:
                eligible.append(name)
        return refused, eligible

    def _shortages(self, spec: Mapping[str, Any]) -> tuple[str, ...]:
        requests = resources.kubelet_requests(spec)
        return tuple([eligibility.shortage(requests, node) for node in self._kinds])

    def _select(self, spec: Mapping[str, Any], slurm_nodes: Iterable[str]) -> Selection:
        refused: dict[str, str] = {}
        closed: list[tuple[str, int]] = []
        usable: list[tuple[str, int]] = []
        covers = remembered(spec.get("tolerations") or ())
        for name in sorted(slurm_nodes):
            node = self._nodes.get(name)
            if why := "not a Kubernetes node" if node is None else eligibility.mismatch(spec, node, covers):
                refused[name] = why
                if eligibility.may_pass(why):
                    closed.append((name, self._kind_of[name]))
            else:
                usable.append((name, self._kind_of[name]))
        return refused, closed, usable
