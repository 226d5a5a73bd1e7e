"""``site.toml``: strict TOML, one pydantic model. The sections of BuildConfig stand in it as they are.

What is said of it in documentation is made from the model (:mod:`bridge.site.sample`).
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from bridge import names
from bridge.errors import ConfigError
from bridge.script.buildconfig import AbsolutePath, BuildConfig, Flavor, Part, Words
from bridge.wire.messages import POOL_PATTERN
from bridge.workload import quantity

Seconds = Annotated[float, Field(gt=0, le=86400)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$", max_length=316)]
Taint = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]+(=[A-Za-z0-9._-]*)?:(NoSchedule|PreferNoSchedule|NoExecute)$")]
LEAST_LOG, LARGEST_LOG = 64 * 2**10, 2**40
"""Bytes. The script looks for the start of a line in 64 KiB."""


class Nats(Part):
    """``[nats]``: how the hub is reached; the site dials out, nothing listens here."""

    servers: Annotated[list[str], Field(min_length=1)] = Field(
        ["nats://127.0.0.1:4222"], description="nats://, tls://, ws:// or wss:// URLs; without a password in them."
    )
    seed_file: Path | None = Field(None, description="File with this site's nkey seed (0600).")
    user: str | None = Field(None, description="Instead of a seed: user name.")
    password_file: Path | None = Field(None, description="File with the user's password (0600).")
    ca_file: Path | None = Field(None, description="CA certificates, instead of the machine's own.")
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")] = Field(
        names.SUBJECT_PREFIX, description="Prefix of every subject; the hub's must be the same."
    )
    inbox_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")] | None = Field(
        None, description="Prefix of the subjects of replies to this site; default: _INBOX."
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


class Batch(Part):
    """``[batch]``: which batch system, and how patiently it is watched."""

    kind: Literal["slurm", "htcondor", "local"] = Field("slurm", description="The batch system.")
    period: Seconds | None = Field(
        None, description="Between two looks at all jobs; default: slurm 5, htcondor 10, local 0.5."
    )
    settle: Seconds = Field(60, description="A submit that was not answered is made again no sooner than this.")
    lost_after: Seconds = Field(60, description="A job that the batch system no longer knows counts as lost after it.")
    lag: Annotated[float, Field(ge=0, le=3600)] | None = Field(
        None,
        description="How long a shared folder may take to show the end of a job; default: 15, local 1.",
    )


class Slurm(Part):
    """``[slurm]``: used with ``batch.kind = "slurm"``."""

    bin_dir: AbsolutePath | None = Field(None, description="Folder of sbatch, squeue, ...; default: PATH.")
    timeout: Seconds = Field(30, description="After which a command counts as unanswered.")
    account: str | None = Field(None, description="Default of jobs whose flavor names none.")
    partition: str | None = Field(None, description="Default of jobs whose flavor names none.")
    qos: str | None = Field(None, description="Default of jobs whose flavor names none.")
    options: Words = Field([], description="More words for sbatch, for every job.")
    gres: dict[str, str] = Field(
        {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"}, description="Extended resource -> gres, e.g. gpu:a100."
    )
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        {}, description="Variables of every job; default: PATH, HOME, USER, LOGNAME and LANG as here."
    )
    accounting: Literal["auto", "never"] = Field("auto", description="Whether sacct is asked about vanished jobs.")


class HTCondor(Part):
    """``[htcondor]``: used with ``batch.kind = "htcondor"``."""

    bin_dir: AbsolutePath | None = Field(None, description="Folder of condor_submit, ...; default: PATH.")
    timeout: Seconds = Field(60, description="After which a command counts as unanswered.")
    schedd: str | None = Field(None, description="Name of the schedd; default: this machine's.")
    pool: str | None = Field(None, description="Address of the collector; default: as configured here.")
    submit_lines: Words = Field([], description='More lines for every submit file, e.g. +ProjectName = "x".')
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        {}, description="Variables of every job; default: PATH, HOME, USER, LOGNAME and LANG as here."
    )
    remove_held: bool = Field(True, description="A job that is held ends, with the hold's reason.")


class Local(Part):
    """``[local]``: used with ``batch.kind = "local"``: jobs run on this machine, first come, first served."""

    cpus: Annotated[int, Field(ge=1)] | None = Field(None, description="Given out at most; default: those seen.")
    memory: str | None = Field(None, description="Given out at most; default: the machine's.")
    gpus: Annotated[int, Field(ge=0)] | None = Field(None, description="Default: those in /dev.")
    gpu_resource: str = Field("nvidia.com/gpu", description="Name of the resource that they are offered as.")
    nice: Annotated[int, Field(ge=0, le=19)] = Field(0, description="Niceness of jobs.")
    watch_memory: bool = Field(True, description="A job that outgrows its memory is killed.")
    environment: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(
        {}, description="Variables of every job; default: PATH, HOME, USER, LOGNAME and LANG as here."
    )


class Images(Part):
    """``[images]``: the cache of pulled images, in ``folder``. An image in use is never removed from it."""

    cache_size: str = Field(
        "20Gi", description="Largest size of all images in it; above it the least recently used go; 0: no cache."
    )
    cache_days: Annotated[float, Field(ge=0, le=3650)] = Field(
        14, description="An image that no container has begun with for so many days goes; 0: never for its age."
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


class Resources(Part):
    """``[resources]``: what is announced instead of what is measured."""

    cpu: str | None = Field(None, description="Kubernetes quantity.")
    memory: str | None = Field(None, description="Kubernetes quantity.")
    pods: Annotated[int, Field(ge=0)] = Field(10_000, description="Jobs that may wait or run at once.")
    extended: dict[str, str] = Field({}, description='E.g. {"nvidia.com/gpu" = "4"}.')


class Node(Part):
    """``[node]``: of the virtual node that stands for this pool."""

    labels: dict[Label, Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$", max_length=63)]] = Field(
        {}, description="More labels."
    )
    taints: list[Taint] = Field([], description="More taints: key=value:Effect.")


class ContainerLogs(Part):
    """``[container_logs]``: how much of a container's output is kept; pods and hubs have no say in it."""

    max_size: str = Field("10Mi", description="Kubernetes quantity, 64Ki to 1Ti; as a kubelet's containerLogMaxSize.")
    max_files: Annotated[int, Field(ge=2, le=1000)] = Field(
        5,
        description="As a kubelet's containerLogMaxFiles: a log that is longer than max_size x max_files loses its "
        "oldest part, and max_size x (max_files - 1) are kept.",
    )

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


class Announcing(Part):
    """``[announce]``."""

    period: Annotated[float, Field(ge=0.2, le=600)] = Field(10, description="Seconds between announcements.")
    capacity_period: Annotated[float, Field(ge=0.2, le=3600)] = Field(
        30, description="Seconds between two measurements of the batch system's resources."
    )


class Logging(Part):
    """``[logging]``: to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class SiteConfig(BuildConfig):
    """The whole file."""

    pool: Annotated[str, Field(pattern=POOL_PATTERN)] = Field(
        "my-pool", description="Name of the pool, and of its virtual node. --pool says the same, or overrides it."
    )
    folder: AbsolutePath = Field(
        "/var/tmp/podbridge",  # noqa: S108
        description="Where jobs are kept: private (0700), the same path on every machine that runs jobs.",
    )
    sync: bool = Field(True, description="A job's folder is forced to disk before the batch system gets the job.")
    one_cpu: bool = Field(
        True, description="The submitter's own threads keep to one processor, which is faster; jobs may use all."
    )
    nats: Nats = Nats()
    batch: Batch = Batch()
    slurm: Slurm = Slurm()
    htcondor: HTCondor = HTCondor()
    local: Local = Local()
    images: Images = Images()
    resources: Resources = Resources()
    node: Node = Node()
    container_logs: ContainerLogs = ContainerLogs()
    announce: Announcing = Announcing()
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _consistent(self) -> SiteConfig:
        known = [flavor.name for flavor in self.flavors]
        twice = {name for name in known if known.count(name) > 1}
        if twice:
            raise ValueError(f"flavors: {', '.join(sorted(twice))} twice")
        if self.default_flavor and self.default_flavor not in known:
            raise ValueError(f"default_flavor: {self.default_flavor!r} is none of the flavors ({', '.join(known)})")
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
        for section, keys in (("resources", ("cpu", "memory")), ("local", ("memory",))):
            for key in keys:
                value = getattr(getattr(self, section), key)
                if value is not None:
                    yield f"{section}.{key}", value
        for name, value in self.resources.extended.items():
            yield f"resources.extended.{name}", value
        for flavor in self.flavors:
            if flavor.memory is not None:
                yield f"flavors.{flavor.name}.memory", flavor.memory
            for name, value in flavor.max_resources.items():
                yield f"flavors.{flavor.name}.max_resources.{name}", value

    def buildconfig(self) -> BuildConfig:
        """Give the part that the hub may read."""
        return BuildConfig.model_validate({name: getattr(self, name) for name in BuildConfig.model_fields})

    def flavor(self, name: str) -> Flavor | None:
        """Give a flavor by its name."""
        return next((flavor for flavor in self.flavors if flavor.name == name), None)

    def most_seconds(self, flavor: Flavor | None) -> float | None:
        """Return the limit of a job's time in seconds: the flavor's and the site's, whichever is shorter."""
        tops = (self.limits.max_time_seconds, flavor.max_time_seconds if flavor else None)
        return min((float(top) for top in tops if top), default=None)


def parse(text: str, source: str = "site.toml", *, pool: str | None = None) -> SiteConfig:
    """Read the TOML ``text``; raises :class:`ConfigError` that names every wrong key and value."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: not TOML: {error}") from error
    if pool is not None:
        data["pool"] = pool
    if "pool" not in data:
        raise ConfigError(f"{source}: pool is not set", hint='write pool = "name" at its top, or use --pool name')
    try:
        return SiteConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{source}: " + "; ".join(_explain(dict(p)) for p in error.errors())) from error


def load(path: Path, pool: str | None = None) -> SiteConfig:
    """Read the file at ``path``."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        hint = "podbridge submitter config > site.toml writes one to begin with"
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}", hint=hint) from error
    return parse(text, str(path), pool=pool)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Give the model that a field holds, alone, in a list or optional; ``None``: it holds a plain value."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _explain(problem: dict[str, Any]) -> str:
    path = tuple(problem["loc"])
    key = ".".join(str(step) for step in path)
    if problem["type"] == "extra_forbidden":
        model: type[BaseModel] = SiteConfig
        for step in path[:-1]:
            field = model.model_fields.get(str(step))
            model = (section_of(field.annotation) if field else None) or model
        keys = list(model.model_fields)
        near = difflib.get_close_matches(str(path[-1]), keys, n=1, cutoff=0.5)
        return f"unknown key {key}" + (f" (did you mean {near[0]}?)" if near else f" (known keys: {', '.join(keys)})")
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{key}: {message} (value: {problem.get('input')!r})" if key else message
