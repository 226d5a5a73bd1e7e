"""The decision of the node controller, for every node of both Kubernetes and Slurm. Pure.

The side that drains a node is the side that resumes it. A drain in Slurm whose reason begins with ``slurm-bridge:``
mirrors a cordon and is removed with it. Any other drain belongs to Slurm's administrator: it is mirrored as a cordon
with the annotation ``bridge.vk.io/slurm-reason``, and podbridge never removes it. If a user uncordons a node that is
still drained in Slurm, it stays uncordoned: the annotation shows that the drain was mirrored already. The drain of
a cloud node that Slurm has stopped is removed when Kubernetes deletes the Node object, and its cordon with it.

A node that another scheduler has taken, or that the configuration gives to another installation
(:mod:`bridge.workload.node_ownership`), is left alone.

podbridge also drains external nodes that it replaces or deletes (:mod:`controllers.node.external`), and nodes that are
not Ready for too long (:func:`not_ready_causes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bridge import names
from bridge.config.hub import Config
from bridge.core import isolation
from bridge.slurm import states
from bridge.slurm.models import Node
from bridge.workload import eligibility, node_ownership
from bridge.workload.eligibility import slurm_name
from controllers.node import external
from controllers.node.external import Plan
from controllers.node.node_actions import (
    Action,
    Cordon,
    Dispute,
    Drain,
    KubeNode,
    Label,
    MarkAsleep,
    NodeSyncView,
    Taint,
    Uncordon,
    Undrain,
)


@dataclass(frozen=True, slots=True)
class NodeDecision:
    """The actions, and the number of external nodes by the state of their plan.

    ``taken`` are the nodes that this installation is to manage, but another scheduler has taken: name -> scheduler.
    """

    actions: list[Action] = field(default_factory=list)
    external: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)


def decide(view: NodeSyncView) -> NodeDecision:
    """Decide for every node of Kubernetes and Slurm. Return no actions while Slurm does not answer or has no nodes."""
    # after an error, the nodes in the snapshot are old: an uncordon could undo a newer drain
    if not view.snapshot.sequence or view.snapshot.error or not view.snapshot.nodes:
        return NodeDecision()
    actions: list[Action] = []
    plans: list[Plan] = []
    nodes, taken = [], {}
    failed: list[KubeNode] = []
    for node in view.nodes:
        try:
            slurm_node = view.snapshot.nodes.get(slurm_name(node))
            possible, holder = node_ownership.is_possible(view.config, node, slurm_node), node_ownership.holder(node)
            if possible and holder in ("", view.config.scheduler_name):
                nodes.append(node)
            elif holder == view.config.scheduler_name:
                actions.append(_release(view, node, slurm_node))
            elif possible and (slurm_node is not None or external.is_labelled(node)):
                taken[node["metadata"]["name"]] = holder
        except Exception as error:
            _report(node, error)
            failed.append(node)
    rivals = eligibility.rivals(nodes)
    silent = not_ready_causes(view, nodes)
    for node in nodes:
        try:
            new_actions, plan = _decide_node(view, node, rivals.get(node["metadata"]["name"], ()), silent)
        except Exception as error:
            _report(node, error)
            continue
        actions += new_actions
        plans.append(plan)
    # a node for which the decision has failed is no orphan
    for node, orphan in external.orphans(view, map(slurm_name, [*nodes, *failed])):
        try:
            plan = external.orphan_plan(node, orphan)
            drain = [] if states.is_drained(orphan.states) else [_drain(node, orphan, plan.drain)]
        except Exception as error:
            _report(node, error)
            continue
        actions += [*plan.actions, *drain]
        plans.append(plan)
    if view.version.node_updates:
        # every node of Kubernetes: one that this installation does not manage may still have its cordon
        off = external.abandoned(view, map(slurm_name, view.nodes))
        actions += [Undrain(node, slurm_node.name) for node, slurm_node in off]
    counts = {state: sum(plan.state == state for plan in plans) for state in external.STATES}
    return NodeDecision(actions, counts, taken)


def _report(node: KubeNode, error: Exception) -> None:
    isolation.report("node", str(node["metadata"]["name"]), error)


def _decide_node(
    view: NodeSyncView, node: KubeNode, claimants: tuple[str, ...], silent: Mapping[str, str]
) -> tuple[list[Action], Plan]:
    """Decide for one node of this installation; ``claimants`` are the other nodes that claim its Slurm node."""
    slurm_node = view.snapshot.nodes.get(slurm_name(node))
    plan = external.plan(view, node, slurm_node, claimants)
    others = claimants if slurm_node is not None else ()
    actions: list[Action | None] = [
        _taint(view.config, node, slurm_node is not None or plan.belongs_in_slurm),
        _label(node, slurm_node if view.config.nodes.partition_labels else None),
        _mark_asleep(view, node, slurm_node),
        _dispute(node, others),
        *plan.actions,
        # a cordon of one node must not drain another, and a drain must not cordon it
        None if others else _sync_cordon(view, node, slurm_node, plan, silent),
    ]
    return [action for action in actions if action is not None], plan


def _release(view: NodeSyncView, node: KubeNode, slurm_node: Node | None) -> Action:
    """Return the next step for a node that this installation has taken and does not manage any more.

    The taint is removed last: no other installation changes the node before.
    """
    if slurm_node is not None and external.is_ours(slurm_node) and view.version.node_updates:
        return Undrain(node, slurm_node.name)
    if names.SLURM_REASON in (node["metadata"].get("annotations") or {}):
        return Uncordon(node)
    if labels := _label(node, None):
        return labels
    if mark := _mark_asleep(view, node, None):
        return mark
    taints = (node.get("spec") or {}).get("taints") or ()
    return Taint(node, tuple(taint for taint in taints if taint.get("key") != names.MANAGED_TAINT))


def _taint(config: Config, node: KubeNode, managed: bool) -> Taint | None:
    managed_taint = {"key": names.MANAGED_TAINT, "value": config.scheduler_name, "effect": "NoExecute"}
    taints = tuple((node.get("spec") or {}).get("taints") or ())
    own_taints = [t for t in taints if t.get("key") == names.MANAGED_TAINT and t.get("value") == config.scheduler_name]
    if managed and config.nodes.taint:
        return None if own_taints else Taint(node, (*taints, managed_taint))
    return Taint(node, tuple(t for t in taints if t not in own_taints)) if own_taints else None


def _label(node: KubeNode, slurm_node: Node | None) -> Label | None:
    labels = node["metadata"].get("labels") or {}
    changes = node_ownership.partition_label_changes(labels, slurm_node.partitions if slurm_node is not None else ())
    return Label(node, changes) if changes else None


def _mark_asleep(view: NodeSyncView, node: KubeNode, slurm_node: Node | None) -> MarkAsleep | None:
    """Return the change of the mark of a node that Slurm has stopped: without its quota, Kueue admits no job to it.

    A node that Slurm has started keeps the mark until its kubelet is Ready: its quota does not fall in between.
    """
    marked = names.SLURM_ASLEEP in (node["metadata"].get("annotations") or {})
    asleep = False
    if view.config.queues.enabled and slurm_node is not None:
        is_waking = marked and eligibility.readiness(node).get("status") != "True"
        asleep = states.is_asleep(slurm_node.states) or (is_waking and not states.is_drained(slurm_node.states))
    return MarkAsleep(node, asleep) if asleep != marked else None


def _dispute(node: KubeNode, others: tuple[str, ...]) -> Dispute | None:
    recorded = (node["metadata"].get("annotations") or {}).get(names.SLURM_NAME_CONFLICT, "")
    rivalry = eligibility.rivalry(slurm_name(node), others) if others else ""
    return Dispute(node, rivalry) if recorded != rivalry else None


def _sync_cordon(
    view: NodeSyncView, node: KubeNode, slurm_node: Node | None, plan: Plan, silent: Mapping[str, str]
) -> Action | None:
    config = view.config.nodes
    cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    mirrored = names.SLURM_REASON in (node["metadata"].get("annotations") or {})
    if slurm_node is None:
        return Uncordon(node) if mirrored else None
    # UNKNOWN, the state after a restart of slurmctld, is no drain
    is_drained = states.is_drained(slurm_node.states)
    # a node that is down may still have the reason of a drain that podbridge has removed
    is_own_drain = external.is_ours(slurm_node)
    if is_drained and not is_own_drain:
        # mirrored and not cordoned: a user has uncordoned the node, and podbridge does not cordon it again
        if config.cordon and not mirrored and not cordoned:
            # slurmctld keeps the reason of an earlier drain by podbridge, which says nothing about this state
            stale = slurm_node.reason.startswith((names.DRAIN_REASON_PREFIX, external.RESUME_REASON))
            reason = "no reason given" if stale else slurm_node.reason or "no reason given"
            return Cordon(node, f"{'+'.join(sorted(slurm_node.states))}: {reason}")
        return None
    if mirrored:
        return Uncordon(node)
    # in 22.05, slurmrestd can only read nodes (v0.0.36 to v0.0.38)
    if not view.version.node_updates:
        return None
    cause = plan.drain or silent.get(node["metadata"]["name"], "")
    if not cause and cordoned and config.drain:
        cause = f"Kubernetes node {node['metadata']['name']} is cordoned"
    if cause:
        return None if is_drained or states.is_starting(slurm_node.states) else _drain(node, slurm_node, cause)
    return Undrain(node, slurm_node.name) if is_own_drain else None


def _drain(node: KubeNode, slurm_node: Node, cause: str) -> Drain:
    return Drain(node, slurm_node.name, f"{names.DRAIN_REASON_PREFIX} {cause}")


# --- nodes that are not Ready -----------------------------------------------------------------------------------------
OUTAGE_SHARE = 0.55
OUTAGE_NODES = 3
"""If so many nodes, and this share of them, are not Ready, no further node is drained.

kube-controller-manager stops evictions at the same numbers (--unhealthy-zone-threshold).
"""


def not_ready_causes(view: NodeSyncView, nodes: Sequence[KubeNode]) -> Mapping[str, str]:
    """Return the causes to drain nodes with slurmd, by the name of the node in Kubernetes.

    A node with slurmd is drained only if the configuration says so (``nodes.notReady``): its slurmd may run Slurm's own
    jobs while its kubelet is down. If most nodes stop being Ready at once, the cause is probably not in the nodes but
    in the control plane of Kubernetes, or in the network to it: then no further node is drained.
    """
    limit = view.config.nodes.not_ready
    if limit is None:
        return {}
    hybrid = [(node, slurm_node) for node in nodes if (slurm_node := _hybrid(view, node)) is not None]
    silent = [node for node, _ in hybrid if external.silence(node, view.time, 0)]
    is_outage = len(silent) >= OUTAGE_NODES and len(silent) >= OUTAGE_SHARE * len(hybrid)
    return {
        node["metadata"]["name"]: cause
        for node, slurm_node in hybrid
        # a node that podbridge has drained keeps its cause in an outage: without one, it would be resumed
        if (cause := external.silence(node, view.time, limit)) and (not is_outage or external.is_ours(slurm_node))
    }


def _hybrid(view: NodeSyncView, node: KubeNode) -> Node | None:
    """Return the node in Slurm if it has slurmd, and if Slurm's power saving does not stop and start it."""
    slurm_node = view.snapshot.nodes.get(slurm_name(node))
    if slurm_node is None or "EXTERNAL" in slurm_node.states or not eligibility.readiness(node):
        return None
    return None if "CLOUD" in slurm_node.states or not states.ASLEEP.isdisjoint(slurm_node.states) else slurm_node
