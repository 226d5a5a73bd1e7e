"""The decision of the node controller, for every node of both Kubernetes and Slurm. Pure.

The side that drains a node is the side that resumes it. A drain in Slurm whose reason begins with ``slurm-bridge:``
mirrors a cordon and is removed with it. Any other drain belongs to Slurm's administrator: it is mirrored as a cordon
with the annotation ``bridge.vk.io/slurm-reason``, and podbridge never removes it. If a user uncordons a node that is
still drained in Slurm, it stays uncordoned: the annotation shows that the drain was mirrored already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.config import Config
from bridge.slurm import states
from bridge.slurm.models import ApiVersion, Node, Snapshot
from bridge.workload import eligibility
from bridge.workload.eligibility import slurm_name

KubeNode = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Taint:
    """Add or remove the managed-node taint; ``taints`` is the whole new list."""

    node: KubeNode
    taints: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cordon:
    """Mirror a drain in Slurm: cordon the node, with Slurm's reason."""

    node: KubeNode
    why: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    """The node is no longer drained in Slurm: remove the mirrored cordon, if it still exists."""

    node: KubeNode


@dataclass(frozen=True, slots=True)
class Drain:
    """Mirror a cordon in Kubernetes: drain the node in Slurm."""

    node: KubeNode
    slurm_node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """Remove podbridge's own drain."""

    node: KubeNode
    slurm_node: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """Set or remove the annotation that other nodes claim the same Slurm node; ``why`` is empty to remove it."""

    node: KubeNode
    why: str


Action = Dispute | Taint | Cordon | Uncordon | Drain | Undrain


@dataclass(frozen=True, slots=True)
class NodeSyncView:
    """All data that a decision depends on."""

    nodes: Iterable[KubeNode]
    snapshot: Snapshot
    version: ApiVersion
    config: Config


def decide(view: NodeSyncView) -> list[Action]:
    """Decide for every Kubernetes node; without actions while Slurm does not answer or has no nodes."""
    if not view.snapshot.sequence or view.snapshot.error or not view.snapshot.nodes:
        return []
    actions: list[Action] = []
    nodes = list(view.nodes)
    rivals = eligibility.rivals(nodes)
    for node in nodes:
        slurm_node = view.snapshot.nodes.get(slurm_name(node))
        taint = _taint(view.config, node, slurm_node)
        if taint is not None:
            actions.append(taint)
        others = rivals.get(node["metadata"]["name"], ()) if slurm_node is not None else ()
        dispute = _dispute(node, others)
        if dispute is not None:
            actions.append(dispute)
        # a cordon of one node must not drain another, and a drain must not cordon it
        step = None if others else _sync_cordon(view, node, slurm_node)
        if step is not None:
            actions.append(step)
    return actions


def _taint(config: Config, node: KubeNode, slurm_node: Node | None) -> Taint | None:
    wanted = {"key": names.MANAGED_TAINT, "value": config.scheduler_name, "effect": "NoExecute"}
    taints = tuple((node.get("spec") or {}).get("taints") or ())
    ours = [t for t in taints if t.get("key") == names.MANAGED_TAINT and t.get("value") == config.scheduler_name]
    if slurm_node is not None and config.nodes.taint:
        return None if ours else Taint(node, (*taints, wanted))
    return Taint(node, tuple(t for t in taints if t not in ours)) if ours else None


def _dispute(node: KubeNode, others: tuple[str, ...]) -> Dispute | None:
    said = (node["metadata"].get("annotations") or {}).get(names.SLURM_NAME_CONFLICT, "")
    wanted = eligibility.rivalry(slurm_name(node), others) if others else ""
    return Dispute(node, wanted) if said != wanted else None


def _sync_cordon(view: NodeSyncView, node: KubeNode, slurm_node: Node | None) -> Action | None:
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    mirrored = names.SLURM_REASON in (node["metadata"].get("annotations") or {})
    if slurm_node is None:
        return Uncordon(node) if mirrored else None
    out = states.is_drained(slurm_node.states)
    # a node that is down may still have the reason of a drain that podbridge has removed
    ours = "DRAIN" in slurm_node.states and slurm_node.reason.startswith(names.DRAIN_REASON_PREFIX)
    if out and not ours:
        if view.config.nodes.cordon and not mirrored and not cordoned:
            stale = slurm_node.reason.startswith(names.DRAIN_REASON_PREFIX)
            reason = "no reason given" if stale else slurm_node.reason or "no reason given"
            return Cordon(node, f"{'+'.join(sorted(slurm_node.states))}: {reason}")
        return None
    if mirrored:
        return Uncordon(node)
    if not view.version.node_updates or not view.config.nodes.drain:
        return None
    if cordoned and not out:
        reason = f"{names.DRAIN_REASON_PREFIX} Kubernetes node {node['metadata']['name']} is cordoned"
        return Drain(node, slurm_node.name, reason)
    if not cordoned and ours:
        return Undrain(node, slurm_node.name)
    return None
