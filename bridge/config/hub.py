"""The configuration file of the hub: strict YAML, read into one pydantic model.

The six keys of slurm-bridge (``schedulerName`` to ``partition``) work unchanged. Durations are seconds.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from bridge import names
from bridge.config import policies
from bridge.config.base import (
    DnsName,
    LabelKey,
    LabelSelector,
    LabelValue,
    Memory,
    Port,
    Seconds,
    Section,
    explain,
    has_host,
)
from bridge.config.documents import Loader, yaml_document
from bridge.config.policies import NamespacePolicy
from bridge.config.pools import PoolsSection
from bridge.config.processes import (
    AdmissionSection,
    LeaderElectionSection,
    LoggingSection,
    NodesSection,
    QueuesSection,
    ServingSection,
)
from bridge.errors import ConfigError
from bridge.gres_text import KIND


class SlurmSection(Section):
    """Requests to slurmrestd."""

    user_name: str | None = Field(None, description="Header X-SLURM-USER-NAME; default: the user in the token.")
    jwt_file: Path | None = Field(
        None, description="File with the token; default: $SLURM_JWT_FILE, then $SLURM_JWT itself."
    )
    ca_file: Path | None = Field(None, description="CA certificates; default: those of certifi.")
    cert_file: Path | None = Field(None, description="Client certificate.")
    key_file: Path | None = Field(None, description="Private key of the client certificate.")
    connect_timeout: Seconds = Field(3, description="Time-out of a connection.")
    read_timeout: Seconds = Field(
        15, description="Time-out between two parts of an answer; of a whole answer, twice this time."
    )
    poll_busy: Seconds = Field(0.33, description="Poll period while a job is pending.")
    poll_idle: Seconds = Field(2, description="Poll period while no job is pending.")
    detail_budget: Annotated[int, Field(ge=1, le=100)] = Field(
        4, description="Reasons of pending jobs read per second."
    )
    publish_period: Seconds | None = Field(
        15,
        description="Least time between two writes of the ConfigMap INSTALLATION-slurm with the sums of Slurm, which "
        "users and the web page read; null: none.",
    )


class HintsSection(Section):
    """Hints from Slurm: podbridge polls at once when a job begins or ends. See [hints](../admins/slurm-hints.md)."""

    directory: Path | None = Field(None, description="Directory of named pipes for hints; unset: none.")
    host: str = Field(
        "0.0.0.0",  # noqa: S104  (slurmctld connects from another host)
        description="Address to listen on.",
    )
    port: Port | None = Field(None, description="Port for hints over HTTPS; 0: a free port, null: none.")
    token_file: Path | None = Field(
        None, description="File with the bearer token of hints over HTTPS. Read on change, like the certificate."
    )
    cert_file: Path | None = Field(None, description="Certificate chain of the HTTPS port.")
    key_file: Path | None = Field(None, description="Its private key.")
    max_poll_rate: Annotated[float, Field(gt=0, le=20)] = Field(
        3, description="Polls per second that hints may cause; reading one job counts as a quarter."
    )

    @model_validator(mode="after")
    def _complete(self) -> HintsSection:
        if self.directory is not None and not self.directory.is_absolute():
            raise ValueError(f"directory: must be an absolute path, not {self.directory}")
        needed = {"tokenFile": self.token_file, "certFile": self.cert_file, "keyFile": self.key_file}
        missing = [key for key, value in needed.items() if value is None]
        if self.port is not None and missing:
            raise ValueError(f"port requires {', '.join(needed)}; not set: {', '.join(missing)}")
        return self


class DefaultsSection(Section):
    """What a pod gets that does not request it."""

    memory_per_cpu: Memory | None = Field(
        None,
        description="Memory for each CPU of a pod that requests none, for example 4Gi; unset: Slurm's DefMemPerCPU "
        "or DefMemPerNode, and without these all memory of the node.",
    )


class BrakeSection(Section):
    """The mass-termination guard: if many jobs disappear at once, no pod is terminated for a while."""

    share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="Share of the known jobs that must disappear to engage the guard."
    )
    least: Annotated[int, Field(ge=1)] = Field(10, description="Number of jobs that must disappear too.")
    hold: Seconds = Field(60, description="Time that a job must be missing until its pod is terminated.")


_INSTALLATION = r"[a-z]([-a-z0-9]{0,25}[a-z0-9])?"
PART = "part"
"""Context of the validation of a part of the configuration, which names no pools."""


class Config(Section):
    """The whole file."""

    installation: Annotated[str, Field(pattern=f"^{_INSTALLATION}$")] = Field(
        names.COMPONENT,
        description=(
            "Name of this installation: prefix of its objects, and default of the keys for namespaces and names."
        ),
    )
    scheduler_name: DnsName = Field(
        names.DEFAULT_SCHEDULER_NAME, description="`spec.schedulerName` of pods, and value of the managed-node taint."
    )
    slurm_rest_api: str = Field(
        "http://slurm-restapi.slurm:6820",
        description="URL of slurmrestd, or unix:///path/of/socket; empty: no colocated Slurm, only pools.",
    )
    managed_namespaces: list[DnsName] = Field(
        [names.DEFAULT_NAMESPACE], description="Namespaces whose pods podbridge reviews and schedules."
    )
    managed_namespace_selector: LabelSelector | None = Field(None, description="If set, managedNamespaces is ignored.")
    namespace_policies: list[NamespacePolicy] = Field(
        [], description="Slurm settings of pods; the first match applies."
    )
    default_scheduler_nodes: dict[LabelKey, LabelValue] = Field(
        {}, description="Labels of nodes of the default scheduler, which gets new pods that select one of them."
    )
    mcs_label: str = Field("", description="MCS label of placeholder jobs.")
    partition: str = Field("", description="Partition of pods that name none; empty: Slurm's default.")
    partitions: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$", max_length=1024)]] = Field(
        [], description="Partitions that pods can use and whose nodes this installation manages; empty: all."
    )

    slurm_api_version: Annotated[str, Field(pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+$")] | None = Field(
        None, description="Version of slurmrestd's API, for example v0.0.42; unset: the newest."
    )
    placeholder: Literal["auto", "external", "batch"] = Field(
        "auto", description="Kind of placeholder job; auto: external if Slurm has such jobs, else batch."
    )
    exclusive: bool = Field(False, description="Pods without the annotation get whole nodes (slurm-bridge: true).")
    gres: dict[str, Annotated[str, Field(pattern=f"^{KIND}$")]] = Field(
        {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"}, description="Gres of extended resources, for example gpu:a100."
    )
    device_classes: dict[str, Annotated[str, Field(pattern=f"^{KIND}$")]] = Field(
        {"gpu.nvidia.com": "gpu", "gpu.example.com": "gpu", "dra.cpu": "cpu"},
        description="Gres of DeviceClasses; cpu: the devices are CPUs.",
    )
    busy_node_timeout: Seconds = Field(
        120,
        description=(
            "Time that a bind waits for free capacity on the node, after the last grace period there, "
            "or for volumes. Then the job is cancelled."
        ),
    )
    max_grace_period: Annotated[int, Field(ge=1, le=86400)] = Field(
        300, description="Maximum grace period of pods whose job is over, and of pods for which a bind waits."
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Concurrent calls to the API server and to Slurm."
    )

    defaults: DefaultsSection = DefaultsSection()
    slurm: SlurmSection = SlurmSection()
    hints: HintsSection = HintsSection()
    nodes: NodesSection = NodesSection()
    pools: PoolsSection = PoolsSection()
    admission: AdmissionSection = AdmissionSection()
    leader_election: LeaderElectionSection = LeaderElectionSection()
    queues: QueuesSection = QueuesSection()
    brake: BrakeSection = BrakeSection()
    serving: ServingSection = ServingSection()
    logging: LoggingSection = LoggingSection()

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        """Set the namespaces and names of objects that the file does not set, from ``installation``."""
        name = data.get("installation") if isinstance(data, dict) else None
        if not isinstance(name, str) or not re.fullmatch(_INSTALLATION, name):
            return data
        result = dict(data)
        for section, defaults in _named_after(name).items():
            given = data.get(section, {})
            if isinstance(given, dict):
                result[section] = {**defaults, **given}
        return result

    @field_validator("slurm_rest_api")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://", "unix:///")):
            raise ValueError("must begin with http://, https:// or unix:///, or be empty (no colocated Slurm)")
        if value.startswith("http") and not has_host(value):
            raise ValueError("must have a host after http:// or https://")
        # users read the URL in the ConfigMap INSTALLATION-public, and in messages
        if value.startswith("http") and "@" in value:
            raise ValueError("must have no user and no password; the token of slurm.jwtFile is sent")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _require_a_backend(self, info: ValidationInfo) -> Config:
        if not self.slurm_rest_api and not self.pools.enabled and info.context != PART:
            keys = ", ".join(f"pools.{kind.key}" for kind in self.pools.kinds)
            raise ValueError(f"slurmRestApi is empty and no pool is configured: set it, or one of {keys}")
        if problems := policies.problems(self.namespace_policies, self.partition, self.partitions):
            raise ValueError("; ".join(problems))
        return self


def _named_after(installation: str) -> dict[str, dict[str, str]]:
    """Return the keys that follow the name of the installation, by section."""
    return {
        "admission": {
            "serviceName": names.part_account("admission", installation),
            "serviceNamespace": installation,
            "secretName": f"{installation}-webhook-tls",
            "webhookName": installation,
        },
        "leaderElection": {"namespace": installation},
    }


class _UniqueKeys(Loader):
    """Refuses a mapping with a duplicate key: YAML forbids it, and PyYAML would drop the first value."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in lines:
                raise yaml.YAMLError(f"duplicate key {name}: lines {lines[name]}, {key.start_mark.line + 1}")
            lines[name] = key.start_mark.line + 1
        return node


def parse(text: str, source: str = "configuration", *, whole: bool = True) -> Config:
    """Parse the YAML ``text``; raises :class:`ConfigError`, which names all wrong keys and values.

    ``whole=False``: the text is a part of a configuration, so it need not name Slurm or a pool.
    """
    data = yaml_document(text, source, _UniqueKeys)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must be a mapping of keys, not {type(data).__name__}")
    # the chart of slurm-bridge renders an absent selector as {}
    if data.get("managedNamespaceSelector") == {}:
        data = {k: v for k, v in data.items() if k != "managedNamespaceSelector"}
    try:
        config = Config.model_validate(data, context=None if whole else PART)
    except ValidationError as error:
        problems = [explain(dict(problem), Config) for problem in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(problems)) from error
    if problem := protected_namespace(config):
        raise ConfigError(f"{source}: {problem}")
    return config


def unmanaged_namespaces(config: Config) -> frozenset[str]:
    """Return the namespaces that are never managed.

    While the webhook is down, no pod could start there: none of the control plane, and none of podbridge.
    """
    return names.KUBERNETES_NAMESPACES | {config.admission.service_namespace}


def protected_namespace(config: Config) -> str:
    """Return what is wrong with the list of managed namespaces; empty if nothing is."""
    if config.managed_namespace_selector is not None:  # it never selects such a namespace
        return ""
    wrong = sorted(unmanaged_namespaces(config) & {*config.managed_namespaces})
    if not wrong:
        return ""
    owner = "it belongs to Kubernetes" if wrong[0] in names.KUBERNETES_NAMESPACES else "podbridge runs in it"
    return (
        f"managedNamespaces: {wrong[0]!r} is not allowed: {owner}, and its pods could not start while the webhook is "
        f"down; allowed: any other namespace"
    )


def pools_only(config: Config) -> bool:
    """Return whether pods that request no pool stay with the default scheduler."""
    return not config.slurm_rest_api and config.pools.other_pods == "default-scheduler"


def load(path: Path | None) -> Config:
    """Read the file at ``path``; ``None``: the defaults. Raises :class:`ConfigError`."""
    if path is None:
        return Config()
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read the configuration {path}: not UTF-8: {error}") from error
    return parse(text, str(path))


def jwt_source(config: Config) -> Path | str | None:
    """Return the source of the Slurm token: a file (read again when it changes), the token itself, or ``None``."""
    if config.slurm.jwt_file is not None:
        return config.slurm.jwt_file
    if os.environ.get("SLURM_JWT_FILE"):
        return Path(os.environ["SLURM_JWT_FILE"])
    return os.environ.get("SLURM_JWT")
