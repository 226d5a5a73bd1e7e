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
from bridge.workload import eligibility, quantity, resources
from bridge.workload.devices.node_gres import NodeGres
from controllers.node.node_actions import Action, Explain, KubeNode, NodeSyncView, Register, Unregister


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done for one node.

    ``drain`` is the cause for a drain in Slurm, empty if there is none. ``wanted``: the node is to be in Slurm, so it
    keeps its taint while Slurm does not have it. ``state`` is
    ``registered``, ``leaving``, ``absent`` or ``refused``; empty for a node that is not and was not external.
    """

    drain: str = ""
    actions: tuple[Action, ...] = ()
    wanted: bool = False
    state: str = ""


STATES = ("registered", "leaving", "absent", "refused")
RESUME_REASON = "podbridge: resumed"
"""The reason that podbridge sends when it resumes a node. slurmctld 24.11 keeps the reason of a resumed node, and a
later drain by slurmctld itself has the reason that the node already has: with podbridge's drain reason, it would look
like a drain by podbridge."""


def plan(view: NodeSyncView, node: KubeNode, found: Node | None, rivals: Iterable[str]) -> Plan:
    """Plan for one Kubernetes node; ``found`` is the node in Slurm, ``rivals`` are others that claim the same."""
    name = node["metadata"]["name"]
    owned = found is not None and external_nodes.is_owned(found, view.cluster)
    limit = view.config.nodes.external_not_ready
    if not is_labelled(node):
        told = _explain(node, "")
        if found is None or not owned:
            return Plan(actions=told)
        cause = f"Kubernetes node {name} has lost the label {names.EXTERNAL_NODE_LABEL}"
        return Plan(cause, (*told, *_unregister(node, found)), state="leaving")
    if any(rivals):
        return Plan(state="registered" if owned else "refused")  # told as a dispute
    if view.devices is not None and name not in view.devices:  # not read yet: neither registered nor changed
        if found is not None and owned:
            return Plan(silence(node, view.time, limit), wanted=True, state="registered")
        if found is None and view.version.external_nodes:
            return Plan(wanted=True, state="absent")
    try:
        wanted = _wanted(view, node, found, owned)
    except ValueError as error:
        told = _explain(node, str(error))
        if found is not None and owned:  # it stays as it is
            return Plan(silence(node, view.time, limit), told, wanted=True, state="registered")
        return Plan(actions=told, state="refused")
    if found is None:
        register = (Register(node, wanted),) if _may_register(view, node) else ()
        return Plan(actions=(*_explain(node, ""), *register), wanted=True, state="absent")
    if not external_nodes.is_current(found, wanted, view.cluster):
        cause = f"the resources, features or topology of external node {name} have changed"
        steps = (*_explain(node, ""), *_unregister(node, found))
        return Plan(cause, steps, wanted=True, state="leaving")
    told = _explain(node, _ignored(wanted, found))
    return Plan(silence(node, view.time, limit), told, wanted=True, state="registered")


def is_labelled(node: KubeNode) -> bool:
    """Whether the node is to be registered in Slurm."""
    return names.EXTERNAL_NODE_LABEL in (node["metadata"].get("labels") or {})


def orphans(view: NodeSyncView, claimed: Iterable[str]) -> Iterator[tuple[KubeNode, Node]]:
    """Yield podbridge's external nodes in Slurm that no Kubernetes node claims, with what is known of their node."""
    known = set(claimed)
    for found in view.snapshot.nodes.values():
        if found.name not in known and external_nodes.is_owned(found, view.cluster):
            yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": found.name}}, found


def orphan_plan(node: KubeNode, found: Node) -> Plan:
    """Plan for an external node in Slurm without a Kubernetes node."""
    cause = f"no node of this installation in Kubernetes is external node {found.name}"
    return Plan(cause, _unregister(node, found), state="leaving")


def may_delete(found: Node, cluster: str) -> bool:
    """Whether a node in Slurm is podbridge's, drained by podbridge, and without jobs."""
    return external_nodes.is_owned(found, cluster) and is_ours(found) and external_nodes.is_idle(found)


def is_ours(found: Node) -> bool:
    """Whether the node is drained, and podbridge has drained it."""
    return "DRAIN" in found.states and found.reason.startswith(names.DRAIN_REASON_PREFIX)


def _unregister(node: KubeNode, found: Node) -> tuple[Action, ...]:
    return (Unregister(node, found.name),) if is_ours(found) and external_nodes.is_idle(found) else ()


def _wanted(view: NodeSyncView, node: KubeNode, found: Node | None, owned: bool) -> ExternalNode:
    """Return the external node that the Kubernetes node describes; raises ``ValueError`` with the problem."""
    name = eligibility.slurm_name(node)
    if not view.version.external_nodes:
        raise ValueError(f"API version {view.version.name} of slurmrestd has no external nodes: v0.0.44 and later have")
    if found is not None and not owned:
        kind = "an external" if "EXTERNAL" in found.states else "a"
        raise ValueError(f"Slurm has {kind} node {name} that podbridge did not create for this cluster")
    partitions = _words(node, names.EXTERNAL_NODE_PARTITIONS)
    if unknown := [each for each in partitions if each not in view.snapshot.partitions]:
        raise ValueError(f"{names.EXTERNAL_NODE_PARTITIONS}: Slurm has no partition {', '.join(unknown)}")
    offered = resources.allocatable(node)
    return ExternalNode(
        name=name,
        cpus=math.floor(offered.get("cpu", 0)),
        memory_mib=math.floor(offered.get("memory", 0) / quantity.MIB),
        gres=_gres(offered, view.config.gres, (view.devices or {}).get(node["metadata"]["name"], NodeGres())),
        features=tuple(dict.fromkeys([*partitions, *_words(node, names.EXTERNAL_NODE_FEATURES)])),
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


def _words(node: KubeNode, annotation: str) -> tuple[str, ...]:
    text = (node["metadata"].get("annotations") or {}).get(annotation, "")
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _ignored(wanted: ExternalNode, found: Node) -> str:
    """Return the problem that Slurm has ignored gres; empty if it has not."""
    present = {item.partition(":")[0] for item in found.gres.split(",")}
    ignored = sorted({item.partition(":")[0] for item in wanted.gres} - present)
    return f"Slurm ignores gres {', '.join(ignored)}: not in GresTypes of slurm.conf" if ignored else ""


def _may_register(view: NodeSyncView, node: KubeNode) -> bool:
    """Whether the node is Ready, not cordoned, and no longer open to pods of other schedulers."""
    spec = node.get("spec") or {}
    tainted = any(
        taint.get("key") == names.MANAGED_TAINT and taint.get("value") == view.config.scheduler_name
        for taint in spec.get("taints") or ()
    )
    ready = eligibility.readiness(node).get("status") == "True"
    return ready and not spec.get("unschedulable") and (tainted or not view.config.nodes.taint)


def silence(node: KubeNode, time: float, limit: float) -> str:
    """Return the cause for a drain of a node that has not been Ready for ``limit`` seconds; empty if there is none."""
    condition = eligibility.readiness(node)
    if condition.get("status") == "True":
        return ""
    try:
        since = parse_rfc3339(condition.get("lastTransitionTime") or "")
    except ValueError:
        since = 0.0
    late = time - since >= limit
    return f"Kubernetes node {node['metadata']['name']} is not Ready" if late else ""


def _explain(node: KubeNode, problem: str) -> tuple[Action, ...]:
    told = (node["metadata"].get("annotations") or {}).get(names.EXTERNAL_NODE_PROBLEM, "")
    return (Explain(node, problem),) if told != problem else ()
