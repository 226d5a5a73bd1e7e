"""The configuration file: strict YAML, one pydantic model.

slurm-bridge's own six keys (``schedulerName`` to ``partition``, first below) work as they are. Durations are seconds.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from bridge import names, namespace_policies
from bridge.config_base import DnsName, LabelSelector, Seconds, Section, known_keys
from bridge.config_pools import PoolsSection
from bridge.errors import ConfigError
from bridge.namespace_policies import NamespacePolicy


class AdmissionSection(Section):
    """The webhook."""

    host: str = "0.0.0.0"  # noqa: S104  (the API server calls from elsewhere)
    port: Annotated[int, Field(ge=0, le=65535)] = names.WEBHOOK_PORT
    url: str | None = Field(
        None, description="URL under which the API server reaches the webhook, instead of a Service."
    )
    service_name: str = "podbridge-admission"
    service_namespace: str = names.SYSTEM_NAMESPACE
    register_webhooks: bool = Field(True, alias="register", description="Write the webhook configurations at start.")
    cert_dir: Path | None = Field(None, description="Folder with tls.crt, tls.key and ca.crt, e.g. from cert-manager.")
    secret_name: str = Field("podbridge-webhook-tls", description="Where the self-made certificates are kept.")
    cert_validity: Annotated[float, Field(ge=60)] = 90 * 86400
    threads: Annotated[int, Field(ge=1, le=256)] = 16
    timeout_seconds: Annotated[int, Field(ge=1, le=30)] = 5
    webhook_name: DnsName = Field("podbridge", description="Prefix of the names of the two webhook configurations.")
    trusted_users: list[str] = Field(
        [],
        description="Users that may write podbridge's own label, annotation and finalizer, besides the accounts of "
        "helm/rbac.yaml and helm/rbac-run.yaml, and the one that runs admission.",
    )


class LeaderElectionSection(Section):
    """The lease that lets one replica act at a time."""

    enabled: bool = Field(True, alias="leaderElect")
    namespace: str = names.SYSTEM_NAMESPACE
    lease_duration: Seconds = 15
    renew_deadline: Seconds = 10
    retry_period: Seconds = 2

    @model_validator(mode="after")
    def _ordered(self) -> LeaderElectionSection:
        if not self.lease_duration > self.renew_deadline > self.retry_period:
            raise ValueError("must hold: leaseDuration > renewDeadline > retryPeriod")
        return self


class KubernetesSection(Section):
    """How the API server is spoken to."""

    qps: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        None, description="Requests a second of scheduler and controllers; null: as fast as the server takes them."
    )
    burst: Annotated[int, Field(ge=1, le=100_000)] = Field(100, description="Requests at once, where qps is set.")


class SlurmSection(Section):
    """How slurmrestd is spoken to."""

    user_name: str | None = Field(None, description="X-SLURM-USER-NAME; default: the name in the token.")
    jwt_file: Path | None = Field(None, description="Default: $SLURM_JWT_FILE, then the value of $SLURM_JWT.")
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    connect_timeout: Seconds = 3
    read_timeout: Seconds = 15
    poll_busy: Seconds = Field(0.4, description="Period of the poller while something is pending.")
    poll_idle: Seconds = Field(2, description="Period of the poller while nothing is.")
    detail_budget: Annotated[int, Field(ge=1, le=100)] = Field(
        4, description="Pending jobs whose reason is refreshed in each poll: a fixed load, however many wait."
    )


class NodesSection(Section):
    """What the node controller does."""

    taint: bool = Field(True, description="Taint managed nodes so that only this scheduler's pods run there.")
    drain: bool = Field(True, description="Cordoned in Kubernetes -> drained in Slurm.")
    cordon: bool = Field(True, description="Drained or down in Slurm -> cordoned in Kubernetes.")


class BrakeSection(Section):
    """The brake on mass ending: many jobs that vanish at once end no pod for a while."""

    share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="Share of the known jobs that has to vanish for the brake to engage."
    )
    least: Annotated[int, Field(ge=1)] = Field(10, description="Number of jobs that has to vanish, at least.")
    hold: Seconds = Field(60, description="Time for which jobs must be missing before the brake lets their pods end.")


class ServingSection(Section):
    """Health and metrics; port 0 takes a free one, null switches off."""

    host: str = "0.0.0.0"  # noqa: S104
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = names.HEALTH_PORT
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = names.METRICS_PORT


class LoggingSection(Section):
    """Logs go to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Config(Section):
    """The whole file."""

    scheduler_name: DnsName = names.DEFAULT_SCHEDULER_NAME
    slurm_rest_api: str = Field(
        "http://slurm-restapi.slurm:6820",
        description="URL, or unix:///path/of/socket; empty: no Slurm beside the kubelets, only pools.",
    )
    managed_namespaces: list[DnsName] = Field([names.DEFAULT_NAMESPACE])
    managed_namespace_selector: LabelSelector | None = Field(None, description="If set, the list is ignored.")
    namespace_policies: list[NamespacePolicy] = Field(
        [],
        description="What pods may ask of Slurm, by namespace: the first that selects it holds. See admission.md.",
    )
    mcs_label: str = ""
    partition: str = Field("", description="Slurm partition of pods that name none; empty: Slurm's default.")

    slurm_api_version: Annotated[str, Field(pattern=r"^v\d+\.\d+\.\d+$")] | None = None
    placeholder: Literal["auto", "external", "batch"] = "auto"
    exclusive: bool = Field(
        False, description="Whether a pod that says nothing takes whole nodes (slurm-bridge: true)."
    )
    gres: dict[str, str] = Field(
        {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"}, description="Extended resource -> gres, e.g. gpu:a100."
    )
    busy_node_timeout: Seconds = Field(
        120,
        description="How long a bind waits for room on the node that Slurm gave, counted from the last grace period "
        "there; then the job is given back, and pods that have not ended by then count as pods that never end.",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        8, description="Calls in flight to the API server and to Slurm."
    )

    kubernetes: KubernetesSection = KubernetesSection()
    slurm: SlurmSection = SlurmSection()
    nodes: NodesSection = NodesSection()
    pools: PoolsSection = PoolsSection()
    admission: AdmissionSection = AdmissionSection()
    leader_election: LeaderElectionSection = LeaderElectionSection()
    brake: BrakeSection = BrakeSection()
    serving: ServingSection = ServingSection()
    logging: LoggingSection = LoggingSection()

    @field_validator("slurm_rest_api")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://", "unix:///")):
            raise ValueError("must begin with http://, https:// or unix:///, or be empty (no colocated Slurm)")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _some_place(self) -> Config:
        if not self.slurm_rest_api and not self.pools.enabled:
            raise ValueError("slurmRestApi is empty and pools.nats.servers names no server: there is nowhere to run")
        if problems := namespace_policies.problems(self.namespace_policies, self.partition):
            raise ValueError("; ".join(problems))
        return self


def parse(text: str, source: str = "configuration") -> Config:
    """Read the YAML ``text``; raises :class:`ConfigError` that names every wrong key and value."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must be a mapping of keys, not {type(data).__name__}")
    # helm renders an empty selector as {}: slurm-bridge's own chart does so to say "none"
    if data.get("managedNamespaceSelector") == {}:
        data = {k: v for k, v in data.items() if k != "managedNamespaceSelector"}
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        problems = [_explain(dict(problem)) for problem in error.errors()]
        raise ConfigError(f"{source}: " + "; ".join(problems)) from error


def load(path: Path | None) -> Config:
    """Read the file at ``path``, or the defaults when there is none."""
    if path is None:
        return Config()
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    return parse(text, str(path))


def jwt_source(config: Config) -> Path | str | None:
    """Say where the Slurm token comes from: a file that is read again when it changes, a value, or nowhere."""
    if config.slurm.jwt_file is not None:
        return config.slurm.jwt_file
    if os.environ.get("SLURM_JWT_FILE"):
        return Path(os.environ["SLURM_JWT_FILE"])
    return os.environ.get("SLURM_JWT")


def _section_at(path: tuple[Any, ...]) -> type[BaseModel]:
    model: type[BaseModel] = Config
    for step in path:
        for name, field in model.model_fields.items():
            if step in (name, field.alias):
                model = _model_in(field.annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Find the section in the type of a field: itself, optional, or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _explain(problem: dict[str, Any]) -> str:
    path = tuple(problem["loc"])
    key = ".".join(str(step) for step in path)
    if problem["type"] == "extra_forbidden":
        keys = known_keys(_section_at(path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        return f"unknown key {key}" + (f" (did you mean {near[0]}?)" if near else f" (known keys: {', '.join(keys)})")
    value = problem.get("input")
    shown = re.sub(r"://.*@", "://***@", repr(value))  # it may be a password
    return f"{key}: {problem['msg']} (value: {shown})" if key else problem["msg"]
