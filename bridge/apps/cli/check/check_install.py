"""The checks of ``podbridge check --before-install``: the pods that an installation would evict or keep away.

They read Kubernetes and Slurm only, and no object of podbridge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from admission.raw_pods import MIRROR_ANNOTATION, annotations_of
from bridge import names
from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.kube.resources import PODS
from bridge.workload import node_ownership, pods, pool_selection
from bridge.workload.eligibility import slurm_name
from bridge.workload.pods import Pod
from bridge.workload.tolerations import tolerates_forever

NAMED = 3
"""Largest number of pods in a finding."""
EXEMPT = "bridge.vk.io/guarded-nodes"
"""Label of namespaces whose pods may run on guarded nodes, with the value ``exempt``; see the chart's policies."""
TOLERATE = (
    f"move these pods to other nodes, or let them tolerate {names.MANAGED_TAINT}:NoExecute; "
    "docs/admins/security.md, Exempt a system DaemonSet"
)


def evictions(session: CommandSession) -> Iterator[Finding]:
    """Find the pods on nodes of Slurm that would be evicted, or refused when they are created again, by controller.

    The taint evicts pods that do not tolerate it; the policy of guarded nodes refuses those of namespaces that are not
    exempt.
    """
    if not session.config.nodes.taint:
        yield Finding("ok", "taint", "nodes.taint is false: no pod is evicted or kept away")
        return
    if not session.config.slurm_rest_api:
        yield Finding("warn", "pods", "not checked without Slurm", "fix Slurm first")
        return
    nodes = {node["metadata"]["name"] for node in session.nodes() if _gets_taint(session, node)}
    taint = {"key": names.MANAGED_TAINT, "value": session.config.scheduler_name, "effect": "NoExecute"}
    exempt = {"kube-system", session.config.leader_election.namespace} | {
        each["name"] for each in session.namespaces if (each.get("labels") or {}).get(EXEMPT) == "exempt"
    }
    evicted: dict[str, list[Pod]] = {}
    kept_away: dict[str, list[Pod]] = {}
    for pod in session.listed(PODS.path()):
        spec = pod["spec"]
        if spec.get("nodeName") not in nodes or pods.is_finished(pod):
            continue
        if not tolerates_forever(spec.get("tolerations") or (), taint):
            evicted.setdefault(_controller(pod), []).append(pod)
        elif pod["metadata"]["namespace"] not in exempt and MIRROR_ANNOTATION not in annotations_of(pod):
            kept_away.setdefault(_controller(pod), []).append(pod)
    for controller, members in sorted(evicted.items()):
        yield Finding("warn", "pods", f"{controller}: {_listed(members)} would be evicted", TOLERATE)
    for controller, members in sorted(kept_away.items()):
        text = (
            f"{controller}: {_listed(members)} would stay, but new ones would be refused: the namespace is not exempt"
        )
        namespace = members[0]["metadata"]["namespace"]
        yield Finding(
            "warn", "pods", text, f"kubectl label namespace {namespace} {EXEMPT}=exempt, if you trust its users"
        )
    if not evicted and not kept_away:
        number = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        yield Finding("ok", "pods", f"the taint of {number} would evict no pod")


def _gets_taint(session: CommandSession, node: Mapping[str, Any]) -> bool:
    """Whether an installation with this configuration sets the taint on a node that does not have it yet."""
    slurm_node = session.slurm_nodes.get(slurm_name(node))
    if slurm_node is None or pool_selection.is_virtual(node) or node_ownership.holder(node):
        return False
    return node_ownership.is_possible(session.config, node, slurm_node)


def _controller(pod: Pod) -> str:
    owner = pods.owner_reference(pod)
    namespace = pod["metadata"]["namespace"]
    return (
        f"{namespace}: {owner['kind']} {owner['name']}" if owner is not None else f"{namespace}: without a controller"
    )


def _listed(members: list[Pod]) -> str:
    """Return the number of pods, and the names and nodes of the first ones."""
    placed = sorted(f"{pod['metadata']['name']} on {pod['spec']['nodeName']}" for pod in members)
    more = f", and {len(placed) - NAMED} more" if len(placed) > NAMED else ""
    return f"{len(placed)} pod{'s' if len(placed) > 1 else ''} ({', '.join(placed[:NAMED])}{more})"
