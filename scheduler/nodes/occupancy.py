"""The pods on each node, virtual nodes included, as its kubelet counts them when it admits one more.

A kubelet rejects a pod (``OutOfcpu``) while the requests of the new pod and of all its pods that have not ended exceed
Allocatable. Slurm gives the resources of an ended job to the next job at once, but the containers of the old pod run
until their grace period ends. Slurm does not count pods of other schedulers, such as those of DaemonSets, nor the
number of pods, ephemeral storage, huge pages and host ports; and a node of Slurm may be larger than Allocatable. So
Slurm packs one job after the other on a node that is full already: what a node has refused is remembered.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge import clock
from bridge.kube.prune import claim_volumes
from bridge.kube.prune import host_ports as ports_of
from bridge.workload import links, pods, resources
from bridge.workload.resources import Resources
from scheduler.volumes import pod_volumes

Pod = Mapping[str, Any]
NOTHING: Resources = {}
_ZERO = Decimal(0)
_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds")


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod that is bound to a node and has not ended.

    ``link_key`` is the key of its Slurm job (:func:`bridge.workload.links.key`). ``until`` is the end of the grace
    period of a deleted pod, in seconds since the epoch; 0 for a pod that is not deleted. ``ours``: podbridge's
    scheduler bound the pod, to a node that Slurm allocated. ``claims`` are the keys of its PersistentVolumeClaims.
    """

    uid: str
    key: str
    node: str
    requests: Resources
    ours: bool
    link_key: str
    until: float = 0
    claims: tuple[str, ...] = ()


class Occupancy:
    """The occupants of every node. Thread-safe.

    :meth:`changed` is a subscriber of caches of pods; it calls ``on_change`` when it has changed an occupant. A pod
    that is about to be bound counts at once (:meth:`assume`), before a cache shows it on its node. ``max_grace``: the
    seconds after which a deleted pod of another scheduler counts as one that stays.
    """

    def __init__(
        self, scheduler_name: str, on_change: Callable[[], None] = lambda: None, max_grace: float = 300
    ) -> None:
        self._scheduler_name = scheduler_name
        self._max_grace = max_grace
        self._lock = threading.Lock()
        self._by_uid: dict[str, Occupant] = {}
        self._by_node: dict[str, dict[str, Occupant]] = {}
        self._by_claim: dict[str, dict[str, Occupant]] = {}
        self._used: dict[str, Resources] = {}
        self._foreign: dict[str, Resources] = {}
        self._ending: dict[str, Occupant] = {}
        self._assumed: set[str] = set()
        self._refused: dict[str, Resources] = {}
        self._on_change = on_change

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Apply a change of a cache: ``kind`` is add, update or delete."""
        pod = new if new is not None else old
        if pod is None:
            return
        uid, node = pods.uid(pod), pod["spec"].get("nodeName", "")
        with self._lock:
            counted = self._by_uid.get(uid)
            if kind == "delete" or pods.is_finished(pod):
                self._leave(uid)
                has_changed = counted is not None
            else:
                until = self._until(pod)
                has_changed = bool(node) and (
                    counted is None
                    or (counted.until, counted.node) != (until, node)
                    or (old is not None and _sizes(old) != _sizes(pod))
                )
                if has_changed:
                    # moved, or resized; a deletion frees nothing yet, so refusals of the node stay
                    if counted is not None and counted.until == until:
                        self._leave(uid)
                    self._add(self.occupant(pod, node, until))
                if node:
                    self._assumed.discard(uid)
                elif counted is not None and uid not in self._assumed:
                    # etcd was restored from a backup that is older than the binding
                    self._leave(uid)
                    has_changed = True
        if has_changed:
            self._on_change()

    def occupant(self, pod: Pod, node: str, until: float = 0) -> Occupant:
        """Return the pod as an occupant of a node, without counting it."""
        ours = pod["spec"].get("schedulerName") == self._scheduler_name
        requests = resources.kubelet_requests(pod["spec"])
        claims = pod_volumes.claim_keys(pod)
        return Occupant(pods.uid(pod), pods.key(pod), node, requests, ours, links.key(pod), until, claims)

    def assume(self, occupant: Occupant) -> None:
        """Count a pod on the node that it is about to be bound to."""
        with self._lock:
            self._add(occupant)
            # after _add, which removes an earlier assumption about the pod
            self._assumed.add(occupant.uid)

    def correct(self, open_pods: Container[str], is_binding: Callable[[str], bool]) -> None:
        """Remove assumed pods that are still open and have no bind in progress: their bind has failed."""
        with self._lock:
            for uid in [uid for uid in self._assumed if uid in open_pods and not is_binding(uid)]:
                self._leave(uid)

    def refuse(self, node: str, taken: Resources) -> None:
        """Remember that the node had no room: ``taken`` is what its pods took of what a new pod lacked.

        :meth:`lasting` returns it until a pod leaves the node.
        """
        with self._lock:
            # a pod that leaves ends the refusal; on a node without pods, none would
            if node in self._by_node:
                self._refused[node] = _largest(self._refused.get(node, NOTHING), taken)

    def of(self, node: str) -> list[Occupant]:
        """Return the occupants of a node."""
        with self._lock:
            return list(self._by_node.get(node, {}).values())

    def users(self, claim: str) -> list[Occupant]:
        """Return the occupants of all nodes that use a PersistentVolumeClaim (``namespace/name``)."""
        with self._lock:
            return list(self._by_claim.get(claim, {}).values())

    def used(self, node: str) -> Resources:
        """Return the sum of the requests of the occupants of a node."""
        with self._lock:
            return self._used.get(node, NOTHING)

    def lasting(self, overdue: float) -> dict[str, Resources]:
        """Return, by node, what its pods take that Slurm does not count and that does not end soon.

        These are the requests of the pods of other schedulers until they are deleted, those of all pods whose grace
        period ended before ``overdue`` (seconds since the epoch), and what :meth:`refuse` has remembered.
        """
        with self._lock:
            result = dict(self._foreign)
            for occupant in self._ending.values():
                if occupant.until < overdue:
                    result[occupant.node] = _sum(result.get(occupant.node, {}), occupant.requests, 1)
            for node, taken in self._refused.items():
                result[node] = _largest(result.get(node, NOTHING), taken)
            return result

    def _until(self, pod: Pod) -> float:
        """Return the end of a deleted pod's grace period; 0 if it is not deleted.

        The end of its job shortens the grace period of a pod of podbridge. Until then, Slurm counts the pod.
        """
        metadata = pod["metadata"]
        if not (deleted := metadata.get("deletionTimestamp")):
            return 0
        until = clock.parse_rfc3339(deleted)
        if pod["spec"].get("schedulerName") == self._scheduler_name:
            return until
        return until - max(0.0, float(metadata.get("deletionGracePeriodSeconds") or 0) - self._max_grace)

    # --- under the lock -----------------------------------------------------------------------------------------------
    def _add(self, occupant: Occupant) -> None:
        self._remove(occupant.uid)
        self._by_uid[occupant.uid] = occupant
        self._by_node.setdefault(occupant.node, {})[occupant.uid] = occupant
        for claim in occupant.claims:
            self._by_claim.setdefault(claim, {})[occupant.uid] = occupant
        self._count(occupant, 1)
        if occupant.until:
            self._ending[occupant.uid] = occupant

    def _leave(self, uid: str) -> None:
        """Remove a pod that takes less of its node than before: the node may have room for what it has refused."""
        if (occupant := self._by_uid.get(uid)) is not None:
            self._refused.pop(occupant.node, None)
        self._remove(uid)

    def _remove(self, uid: str) -> None:
        self._assumed.discard(uid)
        occupant = self._by_uid.pop(uid, None)
        if occupant is None:
            return
        self._ending.pop(uid, None)
        self._count(occupant, -1)
        for claim in occupant.claims:
            users = self._by_claim[claim]
            users.pop(uid, None)
            if not users:
                del self._by_claim[claim]
        occupants = self._by_node[occupant.node]
        del occupants[uid]
        if not occupants:
            del self._by_node[occupant.node]
            del self._used[occupant.node]

    def _count(self, occupant: Occupant, sign: int) -> None:
        node = occupant.node
        self._used[node] = _sum(self._used.get(node, {}), occupant.requests, sign)
        if not occupant.ours and not occupant.until:
            foreign = _sum(self._foreign.get(node, {}), occupant.requests, sign)
            if foreign:
                self._foreign[node] = foreign
            else:
                self._foreign.pop(node, None)


class PlannedOccupancy:
    """The occupants of every node during one decision: those of ``occupancy``, and the pods that the decision binds.

    It changes nothing in ``occupancy``. ``planned`` are the pods to pass to :meth:`Occupancy.assume` afterwards, and
    ``refused`` the nodes without room with what their pods take, to pass to :meth:`Occupancy.refuse`.
    """

    def __init__(self, occupancy: Occupancy) -> None:
        self.planned: list[Occupant] = []
        self.refused: list[tuple[str, Resources]] = []
        self._occupancy = occupancy
        self._by_node: dict[str, list[Occupant]] = {}
        self._used: dict[str, Resources] = {}

    def occupant(self, pod: Pod, node: str) -> Occupant:
        """Return the pod as an occupant of a node, without counting it."""
        return self._occupancy.occupant(pod, node)

    def plan(self, occupant: Occupant) -> None:
        """Count a pod on the node that the decision binds it to."""
        node = occupant.node
        self.planned.append(occupant)
        self._by_node.setdefault(node, []).append(occupant)
        used = self._used.get(node)
        self._used[node] = occupant.requests if used is None else _sum(used, occupant.requests, 1)

    def refuse(self, node: str, taken: Resources) -> None:
        """Note a node without room for a pod, with what its pods take of what the pod lacks."""
        self.refused.append((node, taken))

    def withdraw(self, count: int) -> None:
        """Remove the last ``count`` planned pods: their group does not start as a whole."""
        for occupant in self.planned[len(self.planned) - count :]:
            self._by_node[occupant.node].remove(occupant)
            self._used[occupant.node] = _sum(self._used[occupant.node], occupant.requests, -1)
        del self.planned[len(self.planned) - count :]

    def of(self, node: str) -> list[Occupant]:
        """Return the occupants of a node."""
        return self._occupancy.of(node) + self._by_node.get(node, [])

    def users(self, claim: str) -> list[Occupant]:
        """Return the occupants of all nodes that use a PersistentVolumeClaim (``namespace/name``)."""
        return self._occupancy.users(claim) + [occupant for occupant in self.planned if claim in occupant.claims]

    def used(self, node: str) -> Resources:
        """Return the sum of the requests of the occupants of a node."""
        used, planned = self._occupancy.used(node), self._used.get(node)
        return used if planned is None else _sum(used, planned, 1)

    def lacking(self, node: str, requests: Resources, offered: Resources) -> Resources:
        """Return what a node has too little of for more requests, with what its pods take of it, sorted.

        ``offered`` is the node's Allocatable. Of a host port that is in use, the result has the one in use.
        """
        used, planned = self._occupancy.used(node), self._used.get(node, NOTHING)
        conflicts = resources.port_conflicts(requests, itertools.chain(used, planned))
        shortages: Resources = {other: requests[name] for name, others in conflicts.items() for other in others}
        for name, value in requests.items():
            # eligibility.refusal has excluded a node whose Allocatable lacks the resource
            if name in offered:
                taken = used.get(name, _ZERO) + planned.get(name, _ZERO)
                if value + taken > offered[name]:
                    shortages[name] = taken
        return dict(sorted(shortages.items())) if shortages else shortages


def selector(scheduler_name: str) -> str:
    """Return the field selector of the pods of other schedulers that have a node and have not ended."""
    open_phases = ",".join(f"status.phase!={phase}" for phase in pods.FINISHED)
    return f"spec.schedulerName!={scheduler_name},spec.nodeName!=,{open_phases}"


def prune(pod: Pod) -> dict[str, Any]:
    """Return the part of a pod that :meth:`Occupancy.changed` reads, with summed requests: a third of its memory."""
    spec = pod["spec"]
    # kube-scheduler allows any number of requests for nothing
    requests = {name: str(value) for name, value in resources.pod_requests(spec).items() if value}
    claims = claim_volumes(spec)
    is_host_network = bool(spec.get("hostNetwork"))
    ports = [port for container in resources.lasting_containers(spec) for port in ports_of(container, is_host_network)]
    return {
        "metadata": {key: pod["metadata"][key] for key in _METADATA if key in pod["metadata"]},
        "spec": {
            "schedulerName": spec.get("schedulerName"),
            "nodeName": spec.get("nodeName"),
            "resources": {"requests": requests},
            **({"volumes": claims} if claims else {}),
            **({"hostNetwork": is_host_network, "containers": [{"ports": ports}]} if ports else {}),
        },
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _sum(one: Resources, other: Resources, sign: int) -> Resources:
    """Return a new sum without zeros; readers may still use the old one."""
    result = dict(one)
    for name, value in other.items():
        result[name] = result.get(name, _ZERO) + sign * value
        if not result[name]:
            del result[name]
    return result


def _largest(one: Resources, other: Resources) -> Resources:
    """Return a new mapping with the larger value of each name."""
    return {name: max(one.get(name, _ZERO), other.get(name, _ZERO)) for name in {**one, **other}}


def _sizes(pod: Pod) -> list[object]:
    """Return what a resize in place can change."""
    spec = pod["spec"]
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return [spec.get("resources"), *(container.get("resources") for container in containers)]
