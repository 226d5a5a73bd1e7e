"""The requests of the pods on each node, updated with each change of the cache."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import pods, resources
from bridge.workload.resources import Resources

Pod = Mapping[str, Any]


class Usage:
    """Requests of bound pods by node. Thread-safe.

    :meth:`changed` is a subscriber of the cache of pods. A pod that is about to be bound counts at once
    (:meth:`assume`), before the cache shows it on its node.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, tuple[str, Resources]] = {}
        self._by_node: dict[str, Resources] = {}

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete."""
        pod = new if new is not None else old
        if pod is None:
            return
        uid = pods.uid(pod)
        if kind == "delete" or pods.is_finished(pod):
            self.forget(uid)
        elif pods.is_bound(pod) and uid not in self._by_uid:
            self.assume(uid, pod["spec"]["nodeName"], requests(pod))

    def assume(self, uid: str, node: str, requested: Resources) -> None:
        """Count a pod on a node."""
        with self._lock:
            self._drop(uid)
            self._by_uid[uid] = (node, requested)
            total = self._by_node.setdefault(node, {})
            for name, value in requested.items():
                total[name] = total.get(name, Decimal(0)) + value

    def forget(self, uid: str) -> None:
        """Stop counting a pod."""
        with self._lock:
            self._drop(uid)

    def counts(self, uid: str) -> bool:
        """Whether a pod counts on a node."""
        return uid in self._by_uid

    def of(self, node: str) -> Resources:
        """Return the requests of the pods on a node, by resource."""
        with self._lock:
            return dict(self._by_node.get(node, {}))

    def _drop(self, uid: str) -> None:
        entry = self._by_uid.pop(uid, None)
        if entry is None:
            return
        node, requested = entry
        total = self._by_node[node]
        for name, value in requested.items():
            total[name] -= value
        if not any(total.values()):
            del self._by_node[node]


class PlannedUsage:
    """The usage of nodes during one decision: that of ``usage`` at its first use, and the pods that the decision binds.

    It changes nothing in ``usage``, in which no pod of the decision counts. ``planned`` are the arguments for
    :meth:`Usage.assume` afterwards.
    """

    def __init__(self, usage: Usage) -> None:
        self.planned: list[tuple[str, str, Resources]] = []
        self._usage = usage
        self._by_node: dict[str, Resources] = {}

    def of(self, node: str) -> Resources:
        """Return the requests of the pods on a node, by resource."""
        used = self._by_node.get(node)
        if used is None:
            used = self._by_node[node] = self._usage.of(node)
        return used

    def plan(self, uid: str, node: str, requested: Resources) -> None:
        """Count a pod on the node that the decision binds it to."""
        self.planned.append((uid, node, requested))
        used = self.of(node)
        for name, value in requested.items():
            used[name] = used.get(name, Decimal(0)) + value


def requests(pod: Pod) -> Resources:
    """Return the requests of the pod on a node, with 1 for the resource ``pods``."""
    return resources.node_requests(pod["spec"])
