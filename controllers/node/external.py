"""The decision about external nodes: Kubernetes nodes without slurmd that podbridge registers in Slurm. Pure.

A node with the label ``scheduler.slinky.slurm.net/external-node`` is created in Slurm with its Allocatable. Slurm
cannot change the size or the partitions of an external node. So podbridge drains it, waits until it has no job, deletes
it and creates it again; a node without the label, or without a Node object, is drained and deleted in the same way.
Each step follows from what Slurm and Kubernetes show, so a process that starts in the middle continues.

podbridge changes only nodes with its mark (:mod:`bridge.slurm.external_nodes`). A node that an administrator has
drained stays as it is: to delete it and create it again would end the drain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bridge import names
from bridge.clock import parse_rfc3339
from bridge.slurm import external_nodes
from bridge.slurm.external_nodes import ExternalNode
from bridge.slurm.models import Node
from bridge.workload import eligibility, node_ownership, quantity, resources
from bridge.workload.devices.node_gres import NodeGres
from controllers.node.node_actions import Action, Explain, KubeNode, NodeSyncView, Register, Unregister


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done for one node.

    ``drain`` is the cause for a drain in Slurm, empty if there is none. ``belongs_in_slurm``: the node
    keeps its taint while Slurm does not have it yet. ``state`` is
    ``registered``, ``leaving``, ``absent`` or ``refused``; empty for a node that is not and was not external.
    """

    drain: str = ""
    actions: tuple[Action, ...] = ()
    belongs_in_slurm: bool = False
    state: str = ""


STATES = ("registered", "leaving", "absent", "refused")
RESUME_REASON = "podbridge: resumed"
"""The reason that podbridge sends when it resumes a node. slurmctld 24.11 keeps the reason of a resumed node, and a
later drain by slurmctld itself has the reason that the node already has: with podbridge's drain reason, it would look
like a drain by podbridge."""


def plan(view: NodeSyncView, node: KubeNode, slurm_node: Node | None, rivals: Iterable[str]) -> Plan:
    """Plan for one Kubernetes node; ``slurm_node`` is the node in Slurm, ``rivals`` are others that claim the same."""
    name = node["metadata"]["name"]
    is_owned = slurm_node is not None and external_nodes.is_owned(slurm_node, view.cluster)
    limit = view.config.nodes.external_not_ready
    if not is_labelled(node):
        explanation = _explain(node, "")
        if slurm_node is None or not is_owned:
            return Plan(actions=explanation)
        cause = f"Kubernetes node {name} has lost the label {names.EXTERNAL_NODE_LABEL}"
        return Plan(cause, (*explanation, *_unregister(node, slurm_node)), state="leaving")
    if any(rivals):
        return Plan(state="registered" if is_owned else "refused")  # node_decide reports it as a dispute
    if view.devices is not None and name not in view.devices:  # not read yet: neither registered nor changed
        if slurm_node is not None and is_owned:
            return Plan(silence(node, view.time, limit), belongs_in_slurm=True, state="registered")
        if slurm_node is None and view.version.external_nodes:
            return Plan(belongs_in_slurm=True, state="absent")
    try:
        external_node = _external_node(view, node, slurm_node, is_owned)
    except ValueError as error:
        explanation = _explain(node, str(error))
        if slurm_node is not None and is_owned:  # it stays as it is
            return Plan(silence(node, view.time, limit), explanation, belongs_in_slurm=True, state="registered")
        return Plan(actions=explanation, state="refused")
    if slurm_node is None:
        register = (Register(node, external_node),) if _may_register(view, node) else ()
        return Plan(actions=(*_explain(node, ""), *register), belongs_in_slurm=True, state="absent")
    if not external_nodes.is_current(slurm_node, external_node, view.cluster):
        cause = f"the resources, features or topology of external node {name} have changed"
        steps = (*_explain(node, ""), *_unregister(node, slurm_node))
        return Plan(cause, steps, belongs_in_slurm=True, state="leaving")
    explanation = _explain(node, _ignored(external_node, slurm_node))
    return Plan(silence(node, view.time, limit), explanation, belongs_in_slurm=True, state="registered")


def is_labelled(node: KubeNode) -> bool:
    """Whether the node is to be registered in Slurm."""
    return names.EXTERNAL_NODE_LABEL in (node["metadata"].get("labels") or {})


def orphans(view: NodeSyncView, claimed: Iterable[str]) -> Iterator[tuple[KubeNode, Node]]:
    """Yield podbridge's external nodes in Slurm that no Kubernetes node claims, each after a node with only a name."""
    claimed_names = set(claimed)
    for slurm_node in view.snapshot.nodes.values():
        if slurm_node.name not in claimed_names and external_nodes.is_owned(slurm_node, view.cluster):
            yield _named(slurm_node), slurm_node


def abandoned(view: NodeSyncView, claimed: Iterable[str]) -> Iterator[tuple[KubeNode, Node]]:
    """Yield the cloud nodes that podbridge has drained and Slurm has stopped, and that no Kubernetes node claims.

    Their cordon went with the Node object, as Kubernetes deletes it with the machine. Slurm would never start them.
    """
    claimed_names, mark = set(claimed), drain_mark(view.cluster)
    for slurm_node in view.snapshot.nodes.values():
        is_off = {"CLOUD", "POWERED_DOWN"} <= slurm_node.states and slurm_node.name not in claimed_names
        # the mark: the node of another cluster may still be cordoned there
        if is_off and is_ours(slurm_node) and slurm_node.reason.endswith(mark):
            yield _named(slurm_node), slurm_node


def drain_mark(cluster: str) -> str:
    """Return the end of the reason of a drain, which names the installation."""
    return f" [{external_nodes.owner_mark(cluster)}]"


def _named(slurm_node: Node) -> KubeNode:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": slurm_node.name}}


def orphan_plan(node: KubeNode, slurm_node: Node) -> Plan:
    """Plan for an external node in Slurm without a Kubernetes node."""
    cause = f"no node of this installation in Kubernetes is external node {slurm_node.name}"
    return Plan(cause, _unregister(node, slurm_node), state="leaving")


def may_delete(slurm_node: Node, cluster: str) -> bool:
    """Whether a node in Slurm is podbridge's, drained by podbridge, and without jobs."""
    return external_nodes.is_owned(slurm_node, cluster) and is_ours(slurm_node) and external_nodes.is_idle(slurm_node)


def is_ours(slurm_node: Node) -> bool:
    """Whether the node is drained, and podbridge has drained it."""
    return "DRAIN" in slurm_node.states and slurm_node.reason.startswith(names.DRAIN_REASON_PREFIX)


def _unregister(node: KubeNode, slurm_node: Node) -> tuple[Action, ...]:
    return (Unregister(node, slurm_node.name),) if is_ours(slurm_node) and external_nodes.is_idle(slurm_node) else ()


def _external_node(view: NodeSyncView, node: KubeNode, slurm_node: Node | None, is_owned: bool) -> ExternalNode:
    """Return the external node that the Kubernetes node describes; raises ``ValueError`` with the problem."""
    name = eligibility.slurm_name(node)
    if not view.version.external_nodes:
        raise ValueError(f"API version {view.version.name} of slurmrestd has no external nodes: v0.0.44 and later have")
    if slurm_node is not None and not is_owned:
        kind = "an external" if "EXTERNAL" in slurm_node.states else "a"
        raise ValueError(f"Slurm has {kind} node {name} that podbridge did not create for this cluster")
    partitions = _split_annotation(node, names.EXTERNAL_NODE_PARTITIONS)
    if unknown := [partition for partition in partitions if partition not in view.snapshot.partitions]:
        raise ValueError(f"{names.EXTERNAL_NODE_PARTITIONS}: Slurm has no partition {', '.join(unknown)}")
    offered = resources.allocatable(node)
    return ExternalNode(
        name=name,
        # rounded down, as the memory: Slurm has whole CPUs and MiB, and the kubelet rejects a pod above Allocatable
        cpus=math.floor(offered.get("cpu", 0)),
        memory_mib=math.floor(offered.get("memory", 0) / quantity.MIB),
        gres=_gres(offered, view.config.gres, (view.devices or {}).get(node["metadata"]["name"], NodeGres())),
        # a node joins a partition by a feature of the same name (NodeSet in slurm.conf)
        features=tuple(dict.fromkeys([*partitions, *_split_annotation(node, names.EXTERNAL_NODE_FEATURES)])),
        topology=(node["metadata"].get("annotations") or {}).get(names.TOPOLOGY_SPEC, "").strip(),
    )


def _gres(offered: resources.Resources, table: Mapping[str, str], by_slices: NodeGres) -> tuple[str, ...]:
    """Return the gres of a node by Allocatable, and by its devices those that Allocatable does not name."""
    counts: dict[str, int] = {}
    for resource in resources.extended(offered):
        if resource in table and (count := math.floor(offered[resource])) > 0:
            counts[table[resource]] = counts.get(table[resource], 0) + count
    advertised = {gres.partition(":")[0] for gres in counts}
    if by_slices.problem and not advertised:
        raise ValueError(by_slices.problem)
    counts |= {gres: count for gres, count in by_slices.counts.items() if gres.partition(":")[0] not in advertised}
    plain = {gres for gres in counts if ":" not in gres}
    if mixed := sorted(gres for gres in counts if gres.partition(":")[0] in plain and gres not in plain):
        raise ValueError(f"gres {mixed[0]} and gres {mixed[0].partition(':')[0]} cannot be on one node in Slurm")
    return tuple(f"{gres}:{count}" for gres, count in sorted(counts.items()))


def _split_annotation(node: KubeNode, annotation: str) -> tuple[str, ...]:
    text = (node["metadata"].get("annotations") or {}).get(annotation, "")
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _ignored(external_node: ExternalNode, slurm_node: Node) -> str:
    """Return the problem that Slurm has ignored gres; empty if it has not."""
    present = {item.partition(":")[0] for item in slurm_node.gres.split(",")}
    ignored = sorted({item.partition(":")[0] for item in external_node.gres} - present)
    return f"Slurm ignores gres {', '.join(ignored)}: not in GresTypes of slurm.conf" if ignored else ""


def _may_register(view: NodeSyncView, node: KubeNode) -> bool:
    """Whether the node is Ready, not cordoned, and no longer open to pods of other schedulers."""
    config = view.config
    is_closed = not config.nodes.taint or node_ownership.is_taken_by(node, config.scheduler_name)
    ready = eligibility.readiness(node).get("status") == "True"
    return ready and is_closed and not (node.get("spec") or {}).get("unschedulable")


def silence(node: KubeNode, time: float, limit: float) -> str:
    """Return the cause for a drain of a node that has not been Ready for ``limit`` seconds; empty if there is none."""
    condition = eligibility.readiness(node)
    if condition.get("status") == "True":
        return ""
    try:
        since = parse_rfc3339(condition.get("lastTransitionTime") or "")
    except ValueError:
        # a condition without a time counts as old: nothing says that the node was Ready lately
        since = 0.0
    is_late = time - since >= limit
    return f"Kubernetes node {node['metadata']['name']} is not Ready" if is_late else ""


def _explain(node: KubeNode, problem: str) -> tuple[Action, ...]:
    recorded = (node["metadata"].get("annotations") or {}).get(names.EXTERNAL_NODE_PROBLEM, "")
    return (Explain(node, problem),) if recorded != problem else ()
