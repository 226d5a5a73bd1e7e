"""Nodes that have not been Ready in Kubernetes for too long, and are drained in Slurm until they are. Pure.

A node with slurmd is drained only if the configuration says so (``nodes.notReady``): its slurmd may run Slurm's own
jobs while its kubelet is down. If most nodes stop being Ready at once, the cause is probably not in the nodes but in
the control plane of Kubernetes, or in the network to it: then no further node is drained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bridge.slurm import states
from bridge.slurm.models import Node
from bridge.workload import eligibility
from bridge.workload.eligibility import slurm_name
from controllers.node import external
from controllers.node.node_actions import KubeNode, NodeSyncView

MOST = 0.55
LEAST = 3
"""If at least ``LEAST`` nodes and the share ``MOST`` of them are not Ready, no further node is drained.

kube-controller-manager stops evictions at the same numbers (--unhealthy-zone-threshold).
"""


def causes(view: NodeSyncView, nodes: Sequence[KubeNode]) -> Mapping[str, str]:
    """Return the causes to drain nodes with slurmd, by the name of the node in Kubernetes."""
    limit = view.config.nodes.not_ready
    if limit is None:
        return {}
    hybrid = [(node, slurm_node) for node in nodes if (slurm_node := _hybrid(view, node)) is not None]
    silent = [node for node, _ in hybrid if external.silence(node, view.time, 0)]
    is_outage = len(silent) >= LEAST and len(silent) >= MOST * len(hybrid)
    return {
        node["metadata"]["name"]: cause
        for node, slurm_node in hybrid
        if (cause := external.silence(node, view.time, limit)) and (not is_outage or external.is_ours(slurm_node))
    }


def _hybrid(view: NodeSyncView, node: KubeNode) -> Node | None:
    """Return the node in Slurm if it has slurmd, and if Slurm's power saving does not stop and start it."""
    slurm_node = view.snapshot.nodes.get(slurm_name(node))
    if slurm_node is None or "EXTERNAL" in slurm_node.states or not eligibility.readiness(node):
        return None
    return None if "CLOUD" in slurm_node.states or not states.ASLEEP.isdisjoint(slurm_node.states) else slurm_node
