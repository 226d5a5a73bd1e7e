"""The Slurm nodes that a pod must not get, computed once for all pods with the same requirements."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bridge.control.control_loop import Dependencies
from bridge.slurm import states
from bridge.slurm.models import Node, Partition, Snapshot
from bridge.workload import eligibility, node_ownership, pods, pool_selection, resources
from bridge.workload.eligibility import NodeView
from scheduler.devices.device_names import DeviceNames
from scheduler.nodes.node_fit import BoundedCache, Key, NodeFit, most_results
from scheduler.nodes.occupancy import Occupancy
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import NodeFilter, Write


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Placement:
    """The Slurm nodes of a pod's partitions: those to exclude (name -> reason) and the others, sorted.

    ``excluded`` are the sorted names of ``refused``: one tuple for all pods with the same placement.
    """

    refused: Mapping[str, str]
    eligible: tuple[str, ...]
    excluded: tuple[str, ...]

    def summary(self) -> str:
        """Return the reasons with their counts, like the Kubernetes scheduler: ``3 cordoned, 1 too little cpu``."""
        counts = Counter(self.refused.values())
        return ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))

    def may_open(self) -> bool:
        """Whether a refused node fits once it is open, its kubelet is back and the other pods there have ended."""
        return any(map(eligibility.may_pass, self.refused.values()))


class Placements:
    """The placements of pods on the nodes of Kubernetes and Slurm at one time. Results are cached.

    The placement of a pod depends on a few fields of its spec and on its partitions; pods that fit the same nodes for
    the same reasons share one. The number of results that are kept is limited. A node that Slurm's power saving keeps
    down counts as it will be after its start. ``remembered`` holds nodes, by their name in Slurm, that Kubernetes has
    deleted meanwhile, as it does with machines of a cloud.
    """

    def __init__(
        self,
        nodes: list[NodeView],
        slurm_nodes: Mapping[str, Node],
        partitions: Mapping[str, Partition],
        remembered: Mapping[str, NodeView] | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.by_slurm_name = {node.slurm_name: _resumed(node, slurm_nodes.get(node.slurm_name)) for node in nodes}
        self._nodes = list(expected(self.by_slurm_name, slurm_nodes, remembered or {}))
        self._slurm_nodes = slurm_nodes
        self._partitions = partitions
        self._expected = {node.slurm_name: node for node in self._nodes}
        self._fit = NodeFit(self._nodes)
        self._max_results = most_results(len(slurm_nodes))
        self._by_key = BoundedCache[Key, Placement](self._max_results)
        self._bound = BoundedCache[tuple[object, ...], Placement](self._max_results)
        self._drained = frozenset(name for name, node in slurm_nodes.items() if "DRAIN" in node.states)
        self._same = BoundedCache[tuple[int, int], tuple[tuple[str, ...], tuple[str, ...], bool]](self._max_results)
        # a weak reference: one placement for each pod would not be bounded
        self._by_uid: dict[str, tuple[Mapping[str, Any], Key, weakref.ref[Placement]]] = {}
        self._storage = storage or Storage()
        self._stored = _ByStorage(0, self._max_results)

    def of(self, pod: Mapping[str, Any], default_partition: str) -> Placement:
        """Return the placement of a pod."""
        uid = pod["metadata"].get("uid", "")
        cached = self._by_uid.get(uid)
        # the cache replaces objects and never changes them
        placement = cached[2]() if cached is not None and cached[0] is pod else None
        if cached is None or placement is None:
            key = self._fit.key(pod, pods.partitions(pod, default_partition))
            placement = self._by_key.get(key, lambda: self._find(pod, key, default_partition))
            cached = self._by_uid[uid] = (pod, key, weakref.ref(placement))
        if not pod["spec"].get("volumes"):  # before the call: a decision asks for the placements of all pods
            return placement
        needs = self.needs(pod)
        return self._within(cached[1], placement, needs) if needs.restricts else placement

    def forget_all_but(self, uids: Set[str]) -> None:
        """Delete the results for all other pods. Other threads may add pods meanwhile."""
        for by_uid in (self._by_uid, self._stored.needs):
            for uid in list(by_uid):
                if uid not in uids:
                    by_uid.pop(uid, None)

    def needs(self, pod: Mapping[str, Any]) -> pod_volumes.Needs:
        """Return what the PersistentVolumeClaims of a pod require now."""
        if not pod["spec"].get("volumes"):
            return pod_volumes.NOTHING
        needs_by_uid, uid = self._current().needs, pod["metadata"].get("uid", "")
        needs = needs_by_uid.get(uid)
        if needs is None:
            needs = needs_by_uid[uid] = pod_volumes.needs(pod, self._storage)
        return needs

    @property
    def storage_version(self) -> int:
        """The version of the storage objects: placements of pods with claims may change with it."""
        return self._storage.version

    def volume_writes(self, pod: Mapping[str, Any], slurm_node: str) -> tuple[Write, ...]:
        """Return the writes that bind the claims of a pod on a node that :meth:`refusal` accepts; empty if none is due.

        Each claim gets a free volume, or else the annotation for its provisioner.
        """
        needs, node = self.needs(pod), self.by_slurm_name[slurm_node]
        return tuple(NodeFilter(needs, self._storage).writes(node)) if needs.unbound else ()

    def _within(self, key: Key, placement: Placement, needs: pod_volumes.Needs) -> Placement:
        """Return the placement without the nodes that the claims do not allow; one object for equal claims."""

        def make() -> Placement:
            check = NodeFilter(needs, self._storage)
            refused, eligible = dict(placement.refused), []
            for name in placement.eligible:
                if why := check.refusal(self._expected[name]):
                    refused[name] = why
                else:
                    eligible.append(name)
            return _placement(refused, eligible)

        # bound claims have only terms: other volumes do not matter, so the result outlives changes of the storage
        cache = self._current().placements if needs.unbound else self._bound
        return cache.get((key, needs.terms, tuple(claim.shape for claim in needs.unbound)), make)

    def _current(self) -> _ByStorage:
        if self._stored.version != self._storage.version:
            self._stored = _ByStorage(self._storage.version, self._max_results)
        return self._stored

    def same_for_slurm(self, one: tuple[str, ...], other: tuple[str, ...]) -> bool:
        """Whether two tuples of excluded nodes are the same, or differ only by nodes that are drained in Slurm.

        Pods share tuples, so the results are kept by identity; the tuples are kept with them.
        """

        def compare() -> tuple[tuple[str, ...], tuple[str, ...], bool]:
            return one, other, not (set(one) ^ set(other)) - self._drained

        return self._same.get((id(one), id(other)), compare)[2]

    def of_all(self, members: Sequence[Mapping[str, Any]], default_partition: str) -> Placement:
        """Return the placement of pods that share a job: a node counts if it fits all of them."""
        if len(members) == 1:
            return self.of(members[0], default_partition)
        placements = list(
            {id(placement): placement for placement in (self.of(pod, default_partition) for pod in members)}.values()
        )
        if len(placements) == 1:
            return placements[0]
        refused: dict[str, str] = {}
        eligible: set[str] = set()
        for placement in placements:
            for name, why in placement.refused.items():
                refused[name] = eligibility.first_reason(refused.get(name, ""), why)
            eligible |= set(placement.eligible)
        return _placement(refused, sorted(eligible - refused.keys()))

    def _find(self, pod: Mapping[str, Any], key: Key, default_partition: str) -> Placement:
        partition = pods.partitions(pod, default_partition)
        return _placement(*self._fit.placed(pod, key, lambda: self._names(partition)))

    def refusal(self, pod: Mapping[str, Any], slurm_node: str) -> str:
        """Return the reason why Kubernetes would refuse the allocated node for the pod; empty if it would not."""
        node = self.by_slurm_name.get(slurm_node)
        if node is None:
            return "not a Kubernetes node"
        why = eligibility.refusal(pod["spec"], resources.kubelet_requests(pod["spec"]), node)
        needs = self.needs(pod)
        return why or (NodeFilter(needs, self._storage).refusal(node) if needs.restricts else "")

    @cached_property
    def closed(self) -> frozenset[str]:
        """The Slurm nodes that take no new pod: drained, cordoned, not Ready, or not a node of Kubernetes.

        Nodes that Slurm's power saving starts and stops may be absent or not Ready for a while.
        """
        return self._drained | {
            name for name in self._slurm_nodes if not self._is_open(name) and not self.comes_and_goes(name)
        }

    def _is_open(self, slurm_node: str) -> bool:
        node = self.by_slurm_name.get(slurm_node)
        return node is not None and node.ready and not node.cordoned

    def starting(self, slurm_node: str) -> str:
        """Return what is missing until a node that Slurm starts can run a pod; empty if nothing is."""
        in_slurm = self._slurm_nodes.get(slurm_node)
        if in_slurm is not None and states.is_asleep(in_slurm.states):
            return f"Slurm starts node {slurm_node}"
        node = self.by_slurm_name.get(slurm_node)
        if node is None:
            return f"Kubernetes has no node for Slurm's {slurm_node} yet"
        if not node.ready or eligibility.once_up(node).taints != node.taints:
            return f"the kubelet of node {node.name} is not ready yet"
        return ""

    def comes_and_goes(self, slurm_node: str) -> bool:
        """Whether Slurm's power saving starts and stops the node."""
        in_slurm = self._slurm_nodes.get(slurm_node)
        return in_slurm is not None and ("CLOUD" in in_slurm.states or states.is_asleep(in_slurm.states))

    def longest(self, pod: Mapping[str, Any], default_partition: str) -> int:
        """Return the largest time limit of the pod's partitions in minutes; 0 if one has no limit or none is known."""
        limits = [partition.max_minutes for partition in self._partitions_of(pods.partitions(pod, default_partition))]
        return max(limits, default=0) if all(limits) else 0

    def _partitions_of(self, names: str) -> list[Partition]:
        """Return the named partitions, or the default one."""
        if not names:
            return [partition for partition in self._partitions.values() if partition.default]
        return [self._partitions[name] for name in names.split(",") if name in self._partitions]

    def _names(self, partition: str) -> set[str]:
        """Return the nodes of the named partitions, or of the default one; all nodes if Slurm has not shown any."""
        listed = {name for p in self._partitions_of(partition) for name in p.nodes if name in self._slurm_nodes}
        return listed or set(self._slurm_nodes)


class _ByStorage:
    """The results that were computed from one version of the storage objects."""

    def __init__(self, version: int, max_results: int) -> None:
        self.version = version
        self.needs: dict[str, pod_volumes.Needs] = {}
        self.placements = BoundedCache[tuple[object, ...], Placement](max_results)


def _placement(refused: Mapping[str, str], eligible: Iterable[str]) -> Placement:
    return Placement(refused, tuple(eligible), tuple(sorted(refused)))


def _resumed(node: NodeView, in_slurm: Node | None) -> NodeView:
    """Return the node without podbridge's own cordon if it is no longer drained in Slurm: the cordon is about to go."""
    if not node.mirrors_drain or in_slurm is None or states.is_drained(in_slurm.states):
        return node
    return replace(node, cordoned=False)


def expected(
    nodes: Mapping[str, NodeView], slurm_nodes: Mapping[str, Node], remembered: Mapping[str, NodeView]
) -> Iterator[NodeView]:
    """Yield the nodes for pods: those of Kubernetes, and those that appear there after Slurm has started them."""
    for name, node in nodes.items():
        in_slurm = slurm_nodes.get(name)
        yield eligibility.once_up(node) if in_slurm is not None and states.is_asleep(in_slurm.states) else node
    for name, in_slurm in slurm_nodes.items():
        if name in nodes or not states.is_asleep(in_slurm.states):
            continue
        if name in remembered:
            # a cordon goes with the Node object, also one that mirrored a drain
            yield replace(eligibility.once_up(remembered[name]), cordoned=False)
        elif "CLOUD" in in_slurm.states:
            yield eligibility.unseen(name)


class CurrentPlacements:
    """Makes new placements after a change of what they depend on. Used by the loop alone; workers read ``current``."""

    def __init__(
        self, dependencies: Dependencies, storage: Storage, occupancy: Occupancy, device_names: DeviceNames
    ) -> None:
        self._dependencies, self._storage = dependencies, storage
        self._occupancy, self._device_names = occupancy, device_names
        self.current = Placements([], {}, {})
        self._changes = 0
        self._inputs: tuple[object, ...] = ()
        self._node_names: list[str] = []
        self._remembered: dict[str, NodeView] = {}

    def node_changed(self) -> None:
        """Compute the placements again. Called by the thread of the cache of nodes alone."""
        self._changes += 1

    def of(self, snapshot: Snapshot, time: float) -> Placements:
        """Return the placements; ``time`` is in seconds since 1970."""
        config, slurm = self._dependencies.config, self._dependencies.slurm
        lasting = self._occupancy.lasting(time - config.busy_node_timeout)
        # only Slurm's nodes: a pod of another scheduler anywhere else must not cause new placements
        taken = {name: lasting[name] for name in self._node_names if name in lasting}
        # not all states of the nodes: the others change with each job, and would cause new placements each time
        asleep = frozenset(name for name, node in snapshot.nodes.items() if states.is_asleep(node.states))
        partitions = tuple(sorted(snapshot.partitions.items()))
        extended = frozenset(self._device_names.class_by_resource) if slurm.version.allocations else frozenset[str]()
        # Slurm allocates drained nodes to no job, so pending jobs need not exclude them
        drained = frozenset(name for name, node in snapshot.nodes.items() if "DRAIN" in node.states)
        inputs = (self._changes, taken, frozenset(snapshot.nodes), asleep, drained, partitions, extended)
        if inputs != self._inputs:
            real_nodes = (node for node in self._dependencies.nodes.items() if not pool_selection.is_virtual(node))
            selected = (node for node in real_nodes if node_ownership.is_selected(config, node))
            nodes = [eligibility.with_devices(node, extended) for node in eligibility.views(selected, lasting)]
            self._node_names = [node.name for node in nodes if node.slurm_name in snapshot.nodes]
            nodes_by_name = self._remembered | {node.slurm_name: node for node in nodes if not node.rivals}
            self._remembered = {name: node for name, node in nodes_by_name.items() if name in snapshot.nodes}
            self.current = Placements(nodes, snapshot.nodes, snapshot.partitions, self._remembered, self._storage)
            self._inputs = inputs
        return self.current
