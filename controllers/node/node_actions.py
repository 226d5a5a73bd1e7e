"""The actions of the node controller, and the view from which it decides on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.config.hub import Config
from bridge.slurm.external_nodes import ExternalNode
from bridge.slurm.models import Snapshot
from bridge.slurm.versions import ApiVersion
from bridge.workload.devices.node_gres import NodeGres

KubeNode = Mapping[str, Any]
"""A raw node of Kubernetes. Of a node that Kubernetes has deleted, only the name is known."""


@dataclass(frozen=True, slots=True)
class NodeSyncView:
    """All data that a decision depends on. ``cluster`` is the UID of kube-system, ``time`` in seconds since the epoch.

    ``nodes`` are the nodes of Kubernetes without the virtual ones. ``devices`` are the gres by the ResourceSlices of
    external nodes, ``None`` if they are not counted (:class:`~controllers.node.device_reader.DeviceReader`).
    """

    nodes: Iterable[KubeNode]
    snapshot: Snapshot
    version: ApiVersion
    config: Config
    cluster: str = ""
    time: float = 0
    devices: Mapping[str, NodeGres] | None = None


@dataclass(frozen=True, slots=True)
class _NodeAction:
    """An action for a node."""

    node: KubeNode


@dataclass(frozen=True, slots=True)
class Taint(_NodeAction):
    """Add or remove the managed-node taint; ``taints`` is the whole new list."""

    taints: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Label(_NodeAction):
    """Change the labels of the node's partitions; ``None`` removes a label."""

    labels: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class MarkAsleep(_NodeAction):
    """Set or remove the annotation that Slurm's power saving has stopped the node, and starts it for a job."""

    asleep: bool


@dataclass(frozen=True, slots=True)
class Cordon(_NodeAction):
    """Mirror a drain in Slurm: cordon the node, with Slurm's reason."""

    why: str


class Uncordon(_NodeAction):
    """The node is no longer drained in Slurm: remove the mirrored cordon, if it still exists."""


@dataclass(frozen=True, slots=True)
class Drain(_NodeAction):
    """Drain the node in Slurm: it is cordoned in Kubernetes, or an external node that cannot be used as it is."""

    slurm_node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Undrain(_NodeAction):
    """Remove podbridge's own drain."""

    slurm_node: str


@dataclass(frozen=True, slots=True)
class Dispute(_NodeAction):
    """Set or remove the annotation that other nodes claim the same Slurm node; ``why`` is empty to remove it."""

    why: str


@dataclass(frozen=True, slots=True)
class Register(_NodeAction):
    """Create the node in Slurm as an external node."""

    external_node: ExternalNode


@dataclass(frozen=True, slots=True)
class Unregister(_NodeAction):
    """Delete the external node in Slurm, which is drained and has no job."""

    slurm_node: str


@dataclass(frozen=True, slots=True)
class Explain(_NodeAction):
    """Set or remove the annotation that the node is not registered as described; ``problem`` is empty to remove it."""

    problem: str


Patch = Dispute | Taint | Label | MarkAsleep | Cordon | Uncordon | Explain
"""An action that is one patch of the node in Kubernetes."""
SlurmDrain = Drain | Undrain
Action = Patch | SlurmDrain | Register | Unregister
