"""The sections ``nodes`` and ``queues`` of the configuration: what the controllers write."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bridge.config.base import LabelSelector, Seconds, Section


class NodesSection(Section):
    """Actions of the node controller."""

    selector: LabelSelector | None = Field(
        None, description="Kubernetes nodes of this installation; unset: all but virtual nodes."
    )
    taint: bool = Field(True, description="Taint managed nodes, so that only pods of this scheduler run there.")
    drain: bool = Field(True, description="Drain nodes in Slurm that are cordoned in Kubernetes.")
    cordon: bool = Field(True, description="Cordon nodes in Kubernetes that are drained or down in Slurm.")
    partition_labels: bool = Field(
        False,
        description="Label managed nodes with `partition.bridge.vk.io/NAME`, by which pods select a Slurm partition.",
    )
    external_not_ready: Seconds = Field(60, description="Time until an external node that is not Ready is drained.")
    external_devices: Seconds = Field(30, description="Period of reads of ResourceSlices of external nodes.")
    not_ready: Seconds | None = Field(
        None, description="Time until a node with slurmd that is not Ready is drained in Slurm; null: never."
    )


class QueuesSection(Section):
    """MasterQueues: ClusterQueues of Kueue whose quota follows the pools. See [Kueue](../admins/kueue.md)."""

    enabled: bool = Field(False, description="Write the objects of MasterQueues; needs config/rbac-queues.yaml.")
    release_after: Annotated[float, Field(ge=0, le=86400)] = Field(
        10, description="Time that the virtual node of a held pool must be Ready until it is offered again."
    )
