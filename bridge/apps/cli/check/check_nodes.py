"""The check that compares what Slurm and Kubernetes offer on the nodes that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.slurm.models import Node
from bridge.workload import pool_selection, quantity
from bridge.workload.eligibility import slurm_name
from bridge.workload.resources import allocatable

NAMED = 3
"""Largest number of nodes in a finding."""


def nodes(session: CommandSession) -> Iterator[Finding]:
    """Find the nodes that both know, and those on which Slurm offers more than Kubernetes."""
    found = [node for node in session.nodes() if not pool_selection.is_virtual(node)]
    shared = [node for node in found if slurm_name(node) in session.slurm_nodes]
    result = "ok" if shared else "FAIL"
    fix = (
        ""
        if shared
        else "use the same names, or set the label slinky.slurm.net/slurm-nodename=NAME on the Kubernetes node"
    )
    yield Finding(result, "nodes", f"{len(shared)} of {len(found)} Kubernetes nodes are Slurm nodes too", fix)
    excesses = {
        str(node["metadata"]["name"]): text
        for node in shared
        if (text := excess(session.slurm_nodes[slurm_name(node)], node))
    }
    if excesses:
        shown = "; ".join(f"{name}: {text}" for name, text in sorted(excesses.items())[:NAMED])
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
    found = []
    cpus, memory = slurm_node.usable_cpus or slurm_node.cpus, slurm_node.memory_mib - slurm_node.reserved_mib
    if "cpu" in offered and cpus > offered["cpu"]:
        found.append(f"{cpus} CPUs, Allocatable {offered['cpu'].normalize():f}")
    if "memory" in offered and memory > (limit := int(offered["memory"] / quantity.MIB)):
        found.append(f"{memory} MiB of memory, Allocatable {limit} MiB")
    return ", ".join(found)
