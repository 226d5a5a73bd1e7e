"""The checks of ``podbridge check`` about other installations of podbridge in the same Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.config import installations
from bridge.errors import KubeForbiddenError
from bridge.kube.resources import MUTATING_WEBHOOKS, NAMESPACES
from bridge.workload import node_ownership, pool_selection
from bridge.workload.eligibility import slurm_name

WHAT = "other installations"


def collisions(session: CommandSession) -> Iterator[Finding]:
    """Compare the configuration with the records of the others."""
    own = installations.of(session.config)
    configuration = f"{session.config.admission.webhook_name}-mutate"
    try:
        found = session.kube.get(MUTATING_WEBHOOKS.path())["items"]
    except KubeForbiddenError:
        yield Finding("warn", WHAT, "this user may not list webhook configurations", "run it as an administrator")
        return
    try:
        namespaces = {
            each["metadata"]["name"]: each["metadata"].get("labels") or {}
            for each in session.kube.get(NAMESPACES.path())["items"]
        }
    except KubeForbiddenError:
        namespaces = {}
    for name, other in installations.others(found, configuration):
        if other is None:
            yield Finding("warn", WHAT, f"{name} has no readable record", "upgrade and restart that installation")
            continue
        problems = installations.collisions(own, other, namespaces)
        for problem in problems:
            yield Finding("FAIL", WHAT, f"{other.name}: {problem}", "see docs/admins/several-schedulers.md")
        if not problems:
            yield Finding("ok", WHAT, f"{other.name}: scheduler {other.scheduler}")


def taken_nodes(session: CommandSession) -> Iterator[Finding]:
    """Find the nodes that this installation is to manage, but another scheduler has taken."""
    taken: dict[str, list[str]] = {}
    for node in session.nodes():
        holder, slurm_node = node_ownership.holder(node), session.slurm_nodes.get(slurm_name(node))
        if pool_selection.is_virtual(node) or slurm_node is None or holder in ("", session.config.scheduler_name):
            continue
        if node_ownership.is_possible(session.config, node, slurm_node):
            taken.setdefault(holder, []).append(node["metadata"]["name"])
    for holder, found in sorted(taken.items()):
        text = f"{', '.join(sorted(found))}: taken by scheduler {holder}"
        yield Finding("warn", "nodes", text, "set partitions or nodes.selector, or remove the taint")
