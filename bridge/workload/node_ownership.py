"""The Kubernetes nodes of an installation, and the labels that show their partitions. Pure, on raw nodes.

Several installations of podbridge may run in one Kubernetes cluster. ``nodes.selector`` and ``partitions`` select the
nodes of each. The managed-node taint, whose value is the scheduler's name, marks a node as taken: the API server allows
one taint with this key, so one installation gets it, and the others do not use the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge import names
from bridge.config.hub import Config
from bridge.slurm.models import Node

KubeNode = Mapping[str, Any]
_PARTITION_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def is_selected(config: Config, node: KubeNode) -> bool:
    """Whether ``nodes.selector`` selects the node."""
    selector = config.nodes.selector
    return selector is None or selector.matches(node["metadata"].get("labels") or {})


def is_possible(config: Config, node: KubeNode, slurm_node: Node | None) -> bool:
    """Whether the configuration lets this installation manage the node; ``slurm_node`` is the node in Slurm.

    A node that is not in Slurm has the partitions of its annotation, if it is to be registered as an external node.
    """
    if not is_selected(config, node):
        return False
    if slurm_node is not None:
        partitions = slurm_node.partitions
    elif names.EXTERNAL_NODE_LABEL in (node["metadata"].get("labels") or {}):
        text = (node["metadata"].get("annotations") or {}).get(names.EXTERNAL_NODE_PARTITIONS, "")
        partitions = tuple(word.strip() for word in text.split(","))
    else:
        return True
    return not config.partitions or not set(config.partitions).isdisjoint(partitions)


def is_taken_by(node: KubeNode, scheduler: str) -> bool:
    """Whether the node has the managed-node taint of this scheduler."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any((taint.get("key"), taint.get("value")) == (names.MANAGED_TAINT, scheduler) for taint in taints)


def holder(node: KubeNode) -> str:
    """Return the scheduler that has taken the node; empty if the node does not have the managed-node taint."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return next((str(t.get("value") or "") for t in taints if t.get("key") == names.MANAGED_TAINT), "")


def partition_label(partition: str) -> dict[str, str]:
    """Return the label of a partition. Raises ``ValueError`` if its name cannot be part of a label."""
    if not _PARTITION_LABEL.fullmatch(partition):
        raise ValueError(
            f"{partition!r} is not allowed; allowed: a partition whose name has at most 63 letters, digits, '-', '_' "
            f"and '.', and begins and ends with a letter or digit"
        )
    return {names.PARTITION_LABEL_PREFIX + partition: "true"}


def partition_label_changes(labels: Mapping[str, str], partitions: Iterable[str]) -> dict[str, str | None]:
    """Return the labels that a node of these partitions lacks, and with ``None`` the labels to remove.

    A partition whose name cannot be part of a label has none.
    """
    desired = {
        key: value
        for name in partitions
        if _PARTITION_LABEL.fullmatch(name)
        for key, value in partition_label(name).items()
    }
    stale = (key for key in labels if key.startswith(names.PARTITION_LABEL_PREFIX) and key not in desired)
    missing = {key: value for key, value in desired.items() if labels.get(key) != value}
    return {**missing, **dict.fromkeys(stale)}
