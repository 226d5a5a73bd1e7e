"""The checks of ``podbridge check`` about what the cluster has: other installations, shared nodes, and Kueue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.config import installations
from bridge.kube.discovery import is_served
from bridge.kube.resources import MASTER_QUEUES, MUTATING_WEBHOOKS
from bridge.slurm.models import Node
from bridge.workload import node_ownership, pool_selection, quantity
from bridge.workload.eligibility import slurm_name
from bridge.workload.resources import allocatable

OTHERS = "other installations"


def collisions(session: CommandSession) -> Iterator[Finding]:
    """Compare the configuration with the records of the others."""
    own = installations.of(session.config)
    configuration = f"{session.config.admission.webhook_name}-mutate"
    configurations = session.listed(MUTATING_WEBHOOKS.path())
    namespaces = {each["name"]: each.get("labels") or {} for each in session.namespaces}
    for name, other in installations.others(configurations, configuration):
        if other is None:
            yield Finding("warn", OTHERS, f"{name} has no readable record", "upgrade and restart that installation")
            continue
        problems = installations.collisions(own, other, namespaces)
        for problem in problems:
            yield Finding("FAIL", OTHERS, f"{other.name}: {problem}", "see docs/admins/several-schedulers.md")
        if not problems:
            yield Finding("ok", OTHERS, f"{other.name}: scheduler {other.scheduler}")


def taken_nodes(session: CommandSession) -> Iterator[Finding]:
    """Find the nodes that this installation is to manage, but another scheduler has taken."""
    taken: dict[str, list[str]] = {}
    for node in session.nodes():
        holder, slurm_node = node_ownership.holder(node), session.slurm_nodes.get(slurm_name(node))
        if pool_selection.is_virtual(node) or slurm_node is None or holder in ("", session.config.scheduler_name):
            continue
        if node_ownership.is_possible(session.config, node, slurm_node):
            taken.setdefault(holder, []).append(node["metadata"]["name"])
    for holder, nodes in sorted(taken.items()):
        text = f"{', '.join(sorted(nodes))}: taken by scheduler {holder}"
        yield Finding("warn", "nodes", text, "set partitions or nodes.selector, or remove the taint")


NAMED = 3
"""Largest number of nodes in a finding."""


def nodes(session: CommandSession) -> Iterator[Finding]:
    """Find the nodes that both know, and those on which Slurm offers more than Kubernetes."""
    nodes = [node for node in session.nodes() if not pool_selection.is_virtual(node)]
    shared = [node for node in nodes if slurm_name(node) in session.slurm_nodes]
    fix = "use the same names, or set the label slinky.slurm.net/slurm-nodename=NAME on the Kubernetes node"
    text = f"{len(shared)} of {len(nodes)} Kubernetes nodes are Slurm nodes too"
    yield Finding("ok", "nodes", text) if shared else Finding("FAIL", "nodes", text, fix)
    differences = [(node["metadata"]["name"], excess(session.slurm_nodes[slurm_name(node)], node)) for node in shared]
    excesses = sorted((name, text) for name, text in differences if text)
    if excesses:
        shown = "; ".join(f"{name}: {text}" for name, text in excesses[:NAMED])
        more = f"; and {len(excesses) - NAMED} more" if len(excesses) > NAMED else ""
        yield Finding(
            "warn",
            "nodes",
            f"Slurm offers more than Kubernetes, so it starts jobs whose pods do not fit: {shown}{more}",
            "set CoreSpecCount and MemSpecLimit in slurm.conf, so that Slurm offers no more than Allocatable",
        )


def excess(slurm_node: Node, node: Mapping[str, Any]) -> str:
    """Return the CPUs and the memory of which Slurm offers more than Allocatable of the node; empty if neither."""
    offered = allocatable(node)
    excesses = []
    cpus, memory = slurm_node.usable_cpus or slurm_node.cpus, slurm_node.memory_mib - slurm_node.reserved_mib
    if "cpu" in offered and cpus > offered["cpu"]:
        excesses.append(f"{cpus} CPUs, Allocatable {offered['cpu'].normalize():f}")
    if "memory" in offered and memory > (limit := int(offered["memory"] / quantity.MIB)):
        excesses.append(f"{memory} MiB of memory, Allocatable {limit} MiB")
    return ", ".join(excesses)


KUEUE, GROUP = "Kueue", "kueue.x-k8s.io"


def kueue(session: CommandSession) -> Iterator[Finding]:
    """Check that Kueue and the CRD of MasterQueues are installed if they are enabled, and the MasterQueues."""
    groups = {group["name"]: group for group in session.kube.get("/apis").get("groups") or ()}
    enabled = session.config.queues.enabled
    if GROUP not in groups:
        if enabled:
            text = "not installed, but queues.enabled is true"
            yield Finding("FAIL", KUEUE, text, "install Kueue, or set queues.enabled to false")
        else:
            yield Finding("ok", KUEUE, "not installed")
        return
    version = groups[GROUP]["preferredVersion"]["version"]
    if not enabled:
        yield Finding("ok", KUEUE, f"installed, {version}; MasterQueues are off (queues.enabled)")
        return
    if not is_served(session.kube, MASTER_QUEUES):
        fix = "kubectl apply -f config/crds.yaml; with Helm, helm upgrade"
        yield Finding("FAIL", KUEUE, "queues.enabled is true, but the CRD masterqueues.vk.io does not exist", fix)
        return
    queues = session.listed(MASTER_QUEUES.path())
    yield Finding("ok", KUEUE, f"installed, {version}; {len(queues)} MasterQueues")
    for queue in queues:
        name = queue["metadata"]["name"]
        conditions = {c["type"]: c for c in (queue.get("status") or {}).get("conditions") or ()}
        ready = conditions.get("Ready")
        if ready is None:
            fix = "check that podbridge controllers runs with queues.enabled"
            yield Finding("warn", KUEUE, f"MasterQueue {name} has no status", fix)
        elif ready["status"] != "True":
            text = f"MasterQueue {name} is not Ready: {ready.get('reason')}: {ready.get('message', '')}"
            yield Finding("FAIL", KUEUE, text, f"kubectl describe masterqueue {name}; see docs/admins/kueue.md")
