"""What to do for every node that Kubernetes and Slurm share: pure.

Who drained or cordoned decides who undoes it. A Slurm drain whose reason begins with ``slurm-bridge:`` mirrors a cordon
and is undone with it; any other belongs to Slurm's administrator, is mirrored as a cordon that carries the annotation
``bridge.vk.io/slurm-reason``, and is never undone from this side. A node that somebody uncordons while Slurm still
keeps it out stays uncordoned (the annotation says that it was mirrored already): nobody fights.
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
    """Put the managed-node taint on, or take it off; ``taints`` is the whole new list."""

    node: KubeNode
    taints: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Cordon:
    """Mirror a drain of Slurm's: cordon, with Slurm's words."""

    node: KubeNode
    why: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Slurm gives the node again: undo the mirrored cordon (``unschedulable`` only if it still stands)."""

    node: KubeNode


@dataclass(frozen=True, slots=True)
class Drain:
    """Mirror a cordon of Kubernetes'."""

    node: KubeNode
    slurm_node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Undrain:
    """Undo our own drain."""

    node: KubeNode
    slurm_node: str


@dataclass(frozen=True, slots=True)
class Dispute:
    """Say on the node that others claim the same Slurm node; ``why`` is empty once they don't."""

    node: KubeNode
    why: str


Action = Dispute | Taint | Cordon | Uncordon | Drain | Undrain


@dataclass(frozen=True, slots=True)
class NodeSyncView:
    """All that a decision may depend on."""

    nodes: Iterable[KubeNode]
    snapshot: Snapshot
    version: ApiVersion
    config: Config


def decide(view: NodeSyncView) -> list[Action]:
    """Decide for every Kubernetes node; nothing while Slurm is silent or has named no node at all."""
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
        # a cordon of one of them must not drain the other, nor the reverse
        step = None if others else _in_step(view, node, slurm_node)
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


def _in_step(view: NodeSyncView, node: KubeNode, slurm_node: Node | None) -> Action | None:
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    mirrored = names.SLURM_REASON in (node["metadata"].get("annotations") or {})
    if slurm_node is None:
        return Uncordon(node) if mirrored else None
    out = states.is_drained(slurm_node.states)
    # a node that is down may still carry the reason of a drain of ours that was undone: only a drain can be undone
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
