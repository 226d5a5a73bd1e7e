"""The Slurm partition of a pod, and the labels that show the partitions of a node. Pure.

Kueue can add a node selector to the pods that it admits, and no annotation. So the label of a partition in
``spec.nodeSelector`` selects this partition, before the annotation and the configured one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge import names

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_VALUE = "true"


def of(pod: Mapping[str, Any], default: str) -> str:
    """Return the partitions of a pod, comma separated; ``default`` if it names none."""
    annotations = pod["metadata"].get("annotations") or {}
    return ",".join(selected(pod["spec"])) or annotations.get(names.PARTITION) or default


def source(pod: Mapping[str, Any]) -> str:
    """Return the field of a pod that names its partitions, for messages."""
    return "spec.nodeSelector" if selected(pod["spec"]) else names.PARTITION


def selected(spec: Mapping[str, Any]) -> list[str]:
    """Return the partitions that the node selector of a pod names, sorted."""
    prefix, selector = names.PARTITION_LABEL_PREFIX, spec.get("nodeSelector") or {}
    return sorted(key.removeprefix(prefix) for key, value in selector.items() if key.startswith(prefix) and value)


def label(partition: str) -> dict[str, str]:
    """Return the label of a partition. Raises ``ValueError`` if its name cannot be part of a label."""
    if not _LABEL.fullmatch(partition):
        raise ValueError(
            f"{partition!r} is not allowed; allowed: a partition whose name has at most 63 letters, digits, '-', '_' "
            f"and '.', and begins and ends with a letter or digit"
        )
    return {names.PARTITION_LABEL_PREFIX + partition: _VALUE}


def label_changes(labels: Mapping[str, str], partitions: Iterable[str]) -> dict[str, str | None]:
    """Return the labels that a node of these partitions lacks, and with ``None`` the labels to remove.

    A partition whose name cannot be part of a label has none.
    """
    desired = {key: value for name in partitions if _LABEL.fullmatch(name) for key, value in label(name).items()}
    stale = (key for key in labels if key.startswith(names.PARTITION_LABEL_PREFIX) and key not in desired)
    missing = {key: value for key, value in desired.items() if labels.get(key) != value}
    return {**missing, **dict.fromkeys(stale)}
