"""What pods take of each node, kept up to date with the cache: nothing is counted anew for every decision."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import pods, resources
from bridge.workload.resources import Resources

Pod = Mapping[str, Any]


class Usage:
    """Requests of bound pods by node. ``changed`` is a subscriber of the pods' cache.

    A pod that was just given a node counts there at once (:meth:`assume`), before the cache shows it bound.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_uid: dict[str, tuple[str, Resources]] = {}
        self._by_node: dict[str, Resources] = {}

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Take a change of the cache."""
        pod = new if new is not None else old
        if pod is None:
            return
        uid = pods.uid(pod)
        if kind == "delete" or pods.is_finished(pod):
            self.forget(uid)
        elif pods.is_bound(pod) and uid not in self._by_uid:
            self.assume(uid, pod["spec"]["nodeName"], requests(pod))

    def assume(self, uid: str, node: str, asked: Resources) -> None:
        """Count a pod on a node."""
        with self._lock:
            self._drop(uid)
            self._by_uid[uid] = (node, asked)
            total = self._by_node.setdefault(node, {})
            for name, value in asked.items():
                total[name] = total.get(name, Decimal(0)) + value

    def forget(self, uid: str) -> None:
        """Count a pod nowhere."""
        with self._lock:
            self._drop(uid)

    def of(self, node: str) -> Resources:
        """Give what pods take of a node, by resource."""
        with self._lock:
            return dict(self._by_node.get(node, {}))

    def _drop(self, uid: str) -> None:
        entry = self._by_uid.pop(uid, None)
        if entry is None:
            return
        node, asked = entry
        total = self._by_node[node]
        for name, value in asked.items():
            total[name] -= value
        if not any(total.values()):
            del self._by_node[node]


def requests(pod: Pod) -> Resources:
    """Give what the pod takes of a node, itself (``pods``) included."""
    return resources.node_requests(pod["spec"])
