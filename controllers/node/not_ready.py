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
    hybrid = [(node, found) for node in nodes if (found := _hybrid(view, node)) is not None]
    silent = [node for node, _ in hybrid if external.silence(node, view.time, 0)]
    many = len(silent) >= LEAST and len(silent) >= MOST * len(hybrid)
    return {
        node["metadata"]["name"]: cause
        for node, found in hybrid
        if (cause := external.silence(node, view.time, limit)) and (not many or external.is_ours(found))
    }


def _hybrid(view: NodeSyncView, node: KubeNode) -> Node | None:
    """Return the node in Slurm if it has slurmd, and if Slurm's power saving does not stop and start it."""
    found = view.snapshot.nodes.get(slurm_name(node))
    if found is None or "EXTERNAL" in found.states or not eligibility.readiness(node):
        return None
    return None if "CLOUD" in found.states or not states.ASLEEP.isdisjoint(found.states) else found
