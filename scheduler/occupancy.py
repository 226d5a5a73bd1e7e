"""Which pods a node holds: what its kubelet counts when it accepts or rejects one more.

A kubelet rejects a pod (``OutOfcpu``) while the requests of all its pods that have not ended, and the new pod's, exceed
Allocatable. Slurm gives the room of a job that has ended to the next one at once, but the containers of the old pod run
on for their grace period; and Slurm counts no pod that is not its own, such as those of DaemonSets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge import clock
from bridge.workload import pods, resources
from bridge.workload.resources import Resources

Pod = Mapping[str, Any]
_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod that has a node and has not ended.

    ``until`` is when the grace period of a deleted pod is over, in seconds since the epoch; 0 for a pod that nobody
    deleted. ``ours`` says that Slurm gave the node.
    """

    uid: str
    key: str
    node: str
    requests: Resources
    ours: bool
    until: float = 0


class Occupancy:
    """The occupants of every node. ``changed`` is a subscriber of caches of pods, ``on_change`` is called when it has
    changed something.

    A pod that is about to be bound counts at once (:meth:`assume`), before a cache shows it on its node.
    """

    def __init__(self, scheduler_name: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._scheduler_name = scheduler_name
        self._lock = threading.Lock()
        self._by_uid: dict[str, Occupant] = {}
        self._by_node: dict[str, dict[str, Occupant]] = {}
        self._used: dict[str, Resources] = {}
        self._foreign: dict[str, Resources] = {}
        self._ending: dict[str, Occupant] = {}
        self._assumed: set[str] = set()
        self._on_change = on_change

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Take a change of a cache."""
        pod = new if new is not None else old
        if pod is None:
            return
        uid, node = pods.uid(pod), pod["spec"].get("nodeName", "")
        with self._lock:
            known = self._by_uid.get(uid)
            if kind == "delete" or pods.is_finished(pod):
                self._remove(uid)
                news = known is not None
            else:
                until = _until(pod)
                news = bool(node) and (known is None or (known.until, known.node) != (until, node))
                if news:
                    self._add(self._occupant(pod, node, until))
                if node:
                    self._assumed.discard(uid)
        if news:
            self._on_change()

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod on the node that it is about to be bound to."""
        with self._lock:
            self._add(self._occupant(pod, node, 0))
            self._assumed.add(pods.uid(pod))

    def correct(self, open_pods: Container[str], is_binding: Callable[[str], bool]) -> None:
        """Drop assumptions about pods that are still open though no bind of theirs is under way."""
        with self._lock:
            for uid in [uid for uid in self._assumed if uid in open_pods and not is_binding(uid)]:
                self._remove(uid)

    def of(self, node: str) -> list[Occupant]:
        """Return the occupants of a node."""
        with self._lock:
            return list(self._by_node.get(node, {}).values())

    def lacking(self, pod: Pod, node: str, offered: Resources) -> list[str]:
        """Return the resources of which a node that offers ``offered`` has too little left for the pod, sorted."""
        requests = resources.node_requests(pod["spec"])
        with self._lock:
            used = self._used.get(node, {})
            return sorted(
                name
                for name, value in requests.items()
                if name in offered and value + used.get(name, Decimal(0)) > offered[name]
            )

    def lasting(self, overdue: float) -> dict[str, Resources]:
        """Return by node what Slurm can't count on: used by pods that are not its own, or not by pods that end.

        A pod counts as one that does not end when its grace period was over before ``overdue`` (seconds since the
        epoch). Another scheduler's pod counts until somebody deletes it.
        """
        with self._lock:
            result = dict(self._foreign)
            for occupant in self._ending.values():
                if occupant.until < overdue:
                    result[occupant.node] = _sum(result.get(occupant.node, {}), occupant.requests, 1)
            return result

    # --- under the lock -----------------------------------------------------------------------------------------------
    def _occupant(self, pod: Pod, node: str, until: float) -> Occupant:
        ours = pod["spec"].get("schedulerName") == self._scheduler_name
        return Occupant(pods.uid(pod), pods.key(pod), node, resources.node_requests(pod["spec"]), ours, until)

    def _add(self, occupant: Occupant) -> None:
        self._remove(occupant.uid)
        self._by_uid[occupant.uid] = occupant
        self._by_node.setdefault(occupant.node, {})[occupant.uid] = occupant
        self._count(occupant, 1)
        if occupant.until:
            self._ending[occupant.uid] = occupant

    def _remove(self, uid: str) -> None:
        self._assumed.discard(uid)
        occupant = self._by_uid.pop(uid, None)
        if occupant is None:
            return
        self._ending.pop(uid, None)
        self._count(occupant, -1)
        others = self._by_node[occupant.node]
        del others[uid]
        if not others:
            del self._by_node[occupant.node]
            del self._used[occupant.node]

    def _count(self, occupant: Occupant, sign: int) -> None:
        node = occupant.node
        self._used[node] = _sum(self._used.get(node, {}), occupant.requests, sign)
        if not occupant.ours and not occupant.until:
            rest = _sum(self._foreign.get(node, {}), occupant.requests, sign)
            if rest:
                self._foreign[node] = rest
            else:
                self._foreign.pop(node, None)


def selector(scheduler_name: str) -> str:
    """Return the field selector of the pods of other schedulers that have a node and have not ended."""
    open_phases = ",".join(f"status.phase!={phase}" for phase in pods.FINISHED)
    return f"spec.schedulerName!={scheduler_name},spec.nodeName!=,{open_phases}"


def reduce(pod: Pod) -> dict[str, Any]:
    """Keep of a pod what :meth:`Occupancy.changed` reads, its requests summed: a third of what they are otherwise."""
    spec = pod["spec"]
    requests = {name: str(value) for name, value in resources.pod_requests(spec).items()}
    return {
        "metadata": {key: pod["metadata"][key] for key in _METADATA if key in pod["metadata"]},
        "spec": {
            "schedulerName": spec.get("schedulerName"),
            "nodeName": spec.get("nodeName"),
            "resources": {"requests": requests},
        },
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _until(pod: Pod) -> float:
    deleted = pod["metadata"].get("deletionTimestamp")
    return clock.parse_rfc3339(deleted) if deleted else 0


def _sum(one: Resources, other: Resources, sign: int) -> Resources:
    """Return a new sum without zeros: earlier ones may still be in use."""
    result = dict(one)
    for name, value in other.items():
        result[name] = result.get(name, Decimal(0)) + sign * value
        if not result[name]:
            del result[name]
    return result
