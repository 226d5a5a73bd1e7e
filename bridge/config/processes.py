"""The sections of the configuration for the parts of the hub and for what the controllers write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bridge import names
from bridge.config.base import DnsName, LabelSelector, ObjectName, Port, Seconds, Section, has_host


class AdmissionSection(Section):
    """The webhook."""

    host: str = Field("0.0.0.0", description="Address to listen on.")  # noqa: S104  (the API server is another host)
    port: Port = Field(names.WEBHOOK_PORT, description="Port of the webhook; 0: a free port.")
    url: str | None = Field(None, description="URL of the webhook for the API server, instead of a Service.")
    service_name: ObjectName = Field("podbridge-admission", description="Service of the webhook, if url is unset.")
    service_namespace: ObjectName = Field(
        names.SYSTEM_NAMESPACE, description="Namespace of the Service and the Secret."
    )
    register_webhooks: bool = Field(
        True, alias="register", description="Create and update the webhook configurations at start."
    )
    cert_dir: Path | None = Field(
        None, description="Directory with tls.crt, tls.key and ca.crt, for example from cert-manager."
    )
    secret_name: DnsName = Field(
        "podbridge-webhook-tls", description="Secret for the certificates that podbridge creates."
    )
    cert_validity: Annotated[float, Field(ge=60, le=3650 * 86400)] = Field(
        90 * 86400, description="Validity of the certificates that podbridge creates."
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(16, description="Concurrent reviews.")
    timeout_seconds: Annotated[int, Field(ge=1, le=30)] = Field(5, description="timeoutSeconds of the webhooks.")
    webhook_name: DnsName = Field(names.COMPONENT, description="Prefix of the names of the webhook configurations.")
    trusted_users: list[str] = Field(
        [],
        description=(
            "Users that may set podbridge's label, annotations and finalizer, beside the accounts of "
            "config/rbac.yaml and config/rbac-run.yaml."
        ),
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        # as the API server requires it
        if value is not None and not (re.fullmatch(r"https://[^\s@?#]+", value) and has_host(value)):
            raise ValueError("must be https://HOST:PORT, also with a path, without user, query and fragment")
        return value


class LeaderElectionSection(Section):
    """Leader election: one replica acts at a time."""

    enabled: bool = Field(True, alias="leaderElect", description="Elect a leader; false: for one replica only.")
    namespace: ObjectName = Field(names.SYSTEM_NAMESPACE, description="Namespace of the Leases.")
    lease_duration: Seconds = Field(15, description="Time after a renewal until another replica acquires a Lease.")
    renew_deadline: Seconds = Field(10, description="Time after a renewal until a leader that cannot renew stops.")
    retry_period: Seconds = Field(2, description="Period of attempts to acquire or renew a Lease.")

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElectionSection:
        if not self.lease_duration > self.renew_deadline > self.retry_period:
            raise ValueError("must hold: leaseDuration > renewDeadline > retryPeriod")
        return self


class ServingSection(Section):
    """Health and metrics. Port 0 selects a free port, null disables the server."""

    host: str = Field("0.0.0.0", description="Address to listen on.")  # noqa: S104
    health_port: Port | None = Field(
        names.HEALTH_PORT, description="Port of /livez, /readyz and /healthz; 0: a free port, null: none."
    )
    metrics_port: Port | None = Field(names.METRICS_PORT, description="Port of /metrics; 0: a free port, null: none.")

    @model_validator(mode="after")
    def _different(self) -> ServingSection:
        if self.health_port and self.health_port == self.metrics_port:
            raise ValueError(f"metricsPort: {self.metrics_port} is healthPort, too; allowed: another port")
        return self


class LoggingSection(Section):
    """Logs, written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    format: Literal["auto", "json", "text"] = Field("auto", description="auto: text on a terminal, else json.")


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
    external_devices: Seconds = Field(30, description="Least period of reads of ResourceSlices of external nodes.")
    not_ready: Seconds | None = Field(
        None, description="Time until a node with slurmd that is not Ready is drained in Slurm; null: never."
    )


class QueuesSection(Section):
    """MasterQueues: ClusterQueues of Kueue whose quota follows the pools. See [Kueue](../admins/kueue.md)."""

    enabled: bool = Field(False, description="Write the objects of MasterQueues; needs config/rbac-queues.yaml.")
    release_after: Annotated[float, Field(ge=0, le=86400)] = Field(
        10, description="Time that the virtual node of a held pool must be Ready until it is offered again."
    )
