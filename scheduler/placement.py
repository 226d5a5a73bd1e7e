"""Which of Slurm's nodes a pod may not get, worked out once for all pods that ask alike."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.slurm import states
from bridge.slurm.models import Node, Partition
from bridge.workload import eligibility, resources, translate
from bridge.workload.eligibility import NodeView


@dataclass(frozen=True, slots=True)
class Placement:
    """Slurm's nodes of a pod's partitions: those to exclude (name -> why) and those left, sorted."""

    refused: Mapping[str, str]
    eligible: tuple[str, ...]

    def summary(self) -> str:
        """Say why nodes are refused, as kubectl users know it: ``3 cordoned, 1 too little cpu``."""
        counts = Counter(self.refused.values())
        return ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))


class Placements:
    """The nodes of both sides at one moment, and the placements worked out on them so far.

    A pod's placement depends on a few fields of its spec and on its partitions; a thousand pods of one Job share one.
    A node that Slurm's power saving keeps down is judged as it will be once it is up: ``remembered`` holds nodes, by
    Slurm's name, that Kubernetes has deleted meanwhile, as it does with machines of a cloud.
    """

    def __init__(
        self,
        nodes: list[NodeView],
        slurm_nodes: Mapping[str, Node],
        partitions: Mapping[str, Partition],
        remembered: Mapping[str, NodeView] | None = None,
    ) -> None:
        self.by_slurm_name = {node.slurm_name: node for node in nodes}
        self._nodes = list(expected(self.by_slurm_name, slurm_nodes, remembered or {}))
        self._slurm_nodes = slurm_nodes
        self._partitions = partitions
        self._known: dict[str, Placement] = {}
        self._by_uid: dict[str, tuple[Mapping[str, Any], Placement]] = {}

    def of(self, pod: Mapping[str, Any], default_partition: str) -> Placement:
        """Give the placement of a pod."""
        uid = pod["metadata"].get("uid", "")
        seen = self._by_uid.get(uid)
        if seen is None or seen[0] is not pod:  # objects of the cache are never changed, but replaced
            seen = self._by_uid[uid] = (pod, self._find(pod, default_partition))
        return seen[1]

    def _find(self, pod: Mapping[str, Any], default_partition: str) -> Placement:
        partition = (pod["metadata"].get("annotations") or {}).get(names.PARTITION) or default_partition
        spec = pod["spec"]
        shape = json.dumps(
            [
                partition,
                *(spec.get(part) for part in ("nodeSelector", "affinity", "tolerations", "overhead", "resources")),
                *([c.get("resources"), c.get("restartPolicy")] for c in spec.get("initContainers") or ()),
                "/",
                *(c.get("resources") for c in spec.get("containers") or ()),
            ],
            sort_keys=True,
        )
        found = self._known.get(shape)
        if found is None:
            refused, eligible = translate.exclusions(pod, self._nodes, self._names(partition))
            found = self._known[shape] = Placement(refused, tuple(eligible))
        return found

    def refusal(self, pod: Mapping[str, Any], slurm_node: str) -> str:
        """Say why Kubernetes would refuse the node that Slurm gave, or give the empty string."""
        node = self.by_slurm_name.get(slurm_node)
        if node is None:
            return "not a Kubernetes node"
        return eligibility.refusal(pod["spec"], resources.node_requests(pod["spec"]), node)

    def starting(self, slurm_node: str) -> str:
        """Say what is missing until a node that Slurm wakes can take a pod, or return the empty string."""
        other = self._slurm_nodes.get(slurm_node)
        if other is not None and states.is_asleep(other.states):
            return f"Slurm starts node {slurm_node}"
        node = self.by_slurm_name.get(slurm_node)
        if node is None:
            return f"Kubernetes has no node for Slurm's {slurm_node} yet"
        if not node.ready or eligibility.once_up(node).taints != node.taints:
            return f"the kubelet of node {node.name} is not ready yet"
        return ""

    def comes_and_goes(self, slurm_node: str) -> bool:
        """Whether Slurm's power saving starts and stops the node."""
        other = self._slurm_nodes.get(slurm_node)
        return other is not None and ("CLOUD" in other.states or states.is_asleep(other.states))

    def _names(self, partition: str) -> set[str]:
        """List the nodes of the named partitions, of the default one, or all where Slurm has not told."""
        wanted = [self._partitions[name] for name in partition.split(",") if name in self._partitions]
        if not partition:
            wanted = [p for p in self._partitions.values() if p.default]
        listed = {name for p in wanted for name in p.nodes if name in self._slurm_nodes}
        return listed or set(self._slurm_nodes)


def expected(
    nodes: Mapping[str, NodeView], slurm_nodes: Mapping[str, Node], remembered: Mapping[str, NodeView]
) -> Iterator[NodeView]:
    """Yield the nodes that pods may be asked for: those of Kubernetes, and those that come when Slurm wakes them."""
    for name, node in nodes.items():
        other = slurm_nodes.get(name)
        yield eligibility.once_up(node) if other is not None and states.is_asleep(other.states) else node
    for name, other in slurm_nodes.items():
        if name in nodes or not states.is_asleep(other.states):
            continue
        if name in remembered:
            yield eligibility.once_up(remembered[name])
        elif "CLOUD" in other.states:
            yield eligibility.unseen(name)
