"""The sections ``nodes`` and ``queues`` of the configuration: what the controllers write."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridge.config.base import LabelSelector, Seconds, Section


class NodesSection(Section):
    """Actions of the node controller."""

    selector: LabelSelector | None = Field(
        None, description="Kubernetes nodes of this installation; unset: all nodes. Virtual nodes are not selected."
    )
    taint: bool = Field(True, description="Taint managed nodes, so that only pods of this scheduler run there.")
    drain: bool = Field(True, description="Drain nodes in Slurm that are cordoned in Kubernetes.")
    cordon: bool = Field(True, description="Cordon nodes in Kubernetes that are drained or down in Slurm.")
    partition_labels: bool = Field(
        False,
        description="Label managed nodes with `partition.bridge.vk.io/NAME` for their Slurm partitions; pods select"
        " a partition by it.",
    )
    external_not_ready: Seconds = Field(
        60, description="Time that an external node is not Ready until it is drained in Slurm."
    )
    external_devices: Seconds = Field(30, description="Period in which the ResourceSlices of external nodes are read.")
    not_ready: Seconds | None = Field(
        None,
        description="Time that a node with slurmd is not Ready until it is drained in Slurm; null: never.",
    )


class QueuesSection(Section):
    """MasterQueues: ClusterQueues of Kueue whose quota follows the pools. See [Kueue](../admins/kueue.md)."""

    enabled: bool = Field(
        False,
        description="Whether the controllers write the objects of MasterQueues; it needs config/rbac-queues.yaml.",
    )
    release_after: Annotated[float, Field(ge=0, le=86400)] = Field(
        10, description="Time for which the virtual node of a held pool must be Ready until it is offered again."
    )
