"""``site.toml``: strict TOML, one pydantic model. It has the sections of BuildConfig and of the batch systems.

:mod:`bridge.site.config.sample` makes a documented file from the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from bridge import names
from bridge.clock import Clock
from bridge.config.base import explain
from bridge.config.documents import toml_document
from bridge.errors import ConfigError
from bridge.protocol.model.identifiers import POOL_PATTERN
from bridge.script.buildconfig import BuildConfig
from bridge.script.settings import AbsolutePath, Flavor, Seconds, SettingsPart, with_sections
from bridge.site.batch.batch_interface import BatchSystem, Site
from bridge.site.batch.batch_table import SYSTEMS, defaults
from bridge.workload import quantity

if TYPE_CHECKING:
    BatchKind = str
else:
    BatchKind = Literal[tuple(SYSTEMS)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$", max_length=316)]
Taint = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$")]
LEAST_LOG, LARGEST_LOG = 64 * 2**10, 2**40
"""Bytes. The script searches the start of a line in 64 KiB."""


class Nats(SettingsPart):
    """``[nats]``: the connection to the hub's NATS server. The site connects; nothing listens here."""

    read_at_start = True

    servers: Annotated[list[str], Field(min_length=1)] = Field(
        ["nats://127.0.0.1:4222"], description="URLs: nats://, tls://, ws:// or wss://; no password."
    )
    seed_file: Path | None = Field(
        None, examples=["/home/me/.config/podbridge/site.seed"], description="File with the nkey seed (0600)."
    )
    user: str | None = Field(None, examples=["site"], description="User name, instead of a seed.")
    password_file: Path | None = Field(
        None, examples=["/home/me/.config/podbridge/password"], description="File with its password (0600)."
    )
    ca_file: Path | None = Field(
        None, examples=["/home/me/.config/podbridge/ca.crt"], description="CA certificates; default: the machine's."
    )
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")] = Field(
        names.SUBJECT_PREFIX, description="Prefix of subjects, as at the hub."
    )

    @field_validator("servers")
    @classmethod
    def _urls(cls, value: list[str]) -> list[str]:
        for url in value:
            if not url.startswith(("nats://", "tls://", "ws://", "wss://")):
                raise ValueError(f"{url!r} must begin with nats://, tls://, ws:// or wss://")
            if "@" in url:
                raise ValueError("no credentials in URLs: use seed_file, or user and password_file")
        return value


class Batch(SettingsPart):
    """``[batch]``: the batch system, and how often and how long podbridge queries it."""

    read_at_start = True
    kind: BatchKind = Field("slurm", description="The batch system.")
    period: Seconds | None = Field(
        None, examples=[5], description=f"Seconds between two lists of all jobs; default: {defaults('period')}."
    )
    settle: Seconds = Field(60, description="Seconds until a submission without an answer is repeated.")
    lost_after: Seconds = Field(60, description="Seconds until a job that is no longer listed is lost.")
    arrays: bool = Field(False, description="Pods without bridge.vk.io/array are arrays too.")
    array_wait: Annotated[float, Field(ge=0, le=600)] = Field(
        1, description="Seconds for which pods of an array wait for more of them, at most."
    )
    lag: Annotated[float, Field(ge=0, le=3600)] | None = Field(
        None,
        examples=[15],
        description=f"Seconds that a shared file system may hide a change; default: {defaults('lag')}.",
    )


class Images(SettingsPart):
    """``[images]``: the cache of pulled images, in ``folder``. Images in use are never removed."""

    cache_size: str = Field("20Gi", description="Size of all images; 0: no cache.")
    cache_days: Annotated[float, Field(ge=0, le=3650)] = Field(
        14, description="Days until an unused image is removed; 0: no limit."
    )

    @field_validator("cache_size")
    @classmethod
    def _size(cls, value: str) -> str:
        if quantity.parse(value) < 0:
            raise ValueError(f"{value!r} is not allowed; allowed: 0, or a quantity such as 20Gi")
        return value

    @property
    def most_bytes(self) -> int:
        """``cache_size`` in bytes."""
        return int(quantity.parse(self.cache_size))


class Resources(SettingsPart):
    """``[resources]``: announced resources that replace measured ones."""

    cpu: str | None = Field(None, examples=["128"], description="Kubernetes quantity.")
    memory: str | None = Field(None, examples=["512Gi"], description="Kubernetes quantity.")
    pods: Annotated[int, Field(ge=0)] = Field(10_000, description="Jobs that wait or run at once.")
    extended: dict[str, str] = Field({}, description='E.g. {"nvidia.com/gpu" = "4"}.')
    script: AbsolutePath | None = Field(
        None,
        examples=["/opt/site/resources.sh"],
        description="Program that prints all resources, as an interLink ping.",
    )


class Node(SettingsPart):
    """``[node]``: labels and taints of the virtual node of this pool."""

    labels: dict[Label, Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$", max_length=63)]] = Field(
        {}, description="Of the virtual node."
    )
    taints: list[Taint] = Field([], description="key=value:Effect.")


class ContainerLogs(SettingsPart):
    """``[container_logs]``: limits of a container's output; neither pods nor hubs can change them."""

    max_size: str = Field("10Mi", description="64Ki to 1Ti; as a kubelet's containerLogMaxSize.")
    max_files: Annotated[int, Field(ge=2, le=1000)] = Field(5, description="As a kubelet's containerLogMaxFiles.")

    @field_validator("max_size")
    @classmethod
    def _in_range(cls, value: str) -> str:
        if not LEAST_LOG <= quantity.parse(value) <= LARGEST_LOG:
            raise ValueError("not allowed; allowed: 64Ki to 1Ti")
        return value

    @property
    def max_bytes(self) -> int:
        """``max_size`` in bytes."""
        return quantity.whole(quantity.parse(self.max_size))


class Announcing(SettingsPart):
    """``[announce]``: announcements to the hub."""

    period: Annotated[float, Field(ge=0.2, le=600)] = Field(10, description="Seconds between announcements.")
    capacity_period: Annotated[float, Field(ge=0.2, le=3600)] = Field(
        30, description="Seconds between measurements of the resources."
    )


class Logging(SettingsPart):
    """``[logging]``: to standard error."""

    read_at_start = True

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class _SiteConfig(BuildConfig):
    """The file without the sections of the batch systems."""

    pool: Annotated[str, Field(pattern=POOL_PATTERN)] = Field(
        "my-pool", description="Name of the pool and of its virtual node."
    )
    folder: AbsolutePath = Field(
        "/var/tmp/podbridge",  # noqa: S108
        description="Directory of jobs: private (0700), one path on all machines.",
    )
    adopt_from: AbsolutePath | None = Field(
        None,
        examples=["/home/me/.local/interlink/jobs"],
        description="DataRootFolder of an interLink Slurm plugin, to adopt its jobs.",
    )
    sync: bool = Field(True, description="Write a job's directory to disk (fsync) before its submission.")
    one_cpu: bool = Field(True, description="Run the submitter itself on one processor, which is faster.")
    nats: Nats = Nats()
    batch: Batch = Batch()
    images: Images = Images()
    resources: Resources = Resources()
    node: Node = Node()
    container_logs: ContainerLogs = ContainerLogs()
    announce: Announcing = Announcing()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _consistent(self) -> _SiteConfig:
        names = [flavor.name for flavor in self.flavors]
        repeated_names = {name for name in names if names.count(name) > 1}
        if repeated_names:
            raise ValueError(f"flavors: {', '.join(sorted(repeated_names))} twice")
        if self.default_flavor and self.default_flavor not in names:
            raise ValueError(f"default_flavor: {self.default_flavor!r} is none of the flavors ({', '.join(names)})")
        for key, value in self._quantities():
            try:
                quantity.parse(value)
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from error
        if self.nats.seed_file and (self.nats.user or self.nats.password_file):
            raise ValueError("nats: either seed_file, or user and password_file")
        return self

    def _quantities(self) -> Iterator[tuple[str, str]]:
        yield "limits.default_memory", self.limits.default_memory
        for key, value in (("cpu", self.resources.cpu), ("memory", self.resources.memory)):
            if value is not None:
                yield f"resources.{key}", value
        for name, value in self.resources.extended.items():
            yield f"resources.extended.{name}", value
        for flavor in self.flavors:
            if flavor.memory is not None:
                yield f"flavors.{flavor.name}.memory", flavor.memory
            for key in ("max_resources", "max_group_resources"):
                for name, value in getattr(flavor, key).items():
                    yield f"flavors.{flavor.name}.{key}.{name}", value

    def buildconfig(self) -> BuildConfig:
        """Return the part that the hub may read."""
        return BuildConfig.model_validate({name: getattr(self, name) for name in BuildConfig.model_fields})

    def flavor(self, name: str) -> Flavor | None:
        """Return a flavor by its name; ``None``: there is none."""
        return next((flavor for flavor in self.flavors if flavor.name == name), None)

    def most_seconds(self, flavor: Flavor | None) -> float | None:
        """Return the limit of a job's time in seconds: the flavor's and the site's, whichever is shorter."""
        tops = (self.limits.max_time_seconds, flavor.max_time_seconds if flavor else None)
        return min((float(top) for top in tops if top), default=None)


if TYPE_CHECKING:
    SiteConfig = _SiteConfig
else:
    SiteConfig = with_sections("SiteConfig", _SiteConfig, {kind: made.settings for kind, made in SYSTEMS.items()})

READ_AT_START = (
    *("pool", "folder", "adopt_from", "sync", "one_cpu"),
    *(name for name, field in SiteConfig.model_fields.items() if getattr(field.annotation, "read_at_start", False)),
)
"""Keys and sections whose change applies after a restart."""


def make_batch_system(config: SiteConfig, clock: Clock) -> BatchSystem:
    """Return the batch system that the configuration names."""
    system = SYSTEMS[config.batch.kind]
    site = Site(Path(config.folder), tuple(config.flavors), clock)
    return system(config.section(system.settings), site)


def parse(text: str, source: str = "site.toml", *, pool: str | None = None) -> SiteConfig:
    """Read the TOML ``text``; raises :class:`ConfigError`, which names every wrong key and value."""
    data = toml_document(text, source)
    if pool is not None:
        data["pool"] = pool
    if "pool" not in data:
        raise ConfigError(f"{source}: pool is not set", hint='write pool = "name" at its top, or use --pool name')
    return validated(data, source)


def validated(data: Mapping[str, Any], source: str) -> SiteConfig:
    """Return the configuration with these keys; raises :class:`ConfigError`, which names every wrong one."""
    try:
        return SiteConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(explain(dict(p), SiteConfig) for p in error.errors())) from error


def load(path: Path, pool: str | None = None) -> SiteConfig:
    """Read the file at ``path``."""
    text = read_text(path, hint="podbridge submitter config > site.toml writes one to begin with")
    return parse(text, str(path), pool=pool)


def read_text(path: Path, hint: str) -> str:
    """Return the text of a configuration file; raises :class:`ConfigError` with ``hint`` if it cannot be read."""
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}", hint=hint) from error
