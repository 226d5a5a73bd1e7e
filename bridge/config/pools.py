"""The section ``pools`` of the configuration: NATS, the store of pools, and the virtual nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, IPvAnyAddress, create_model, field_validator, model_validator

from bridge import names
from bridge.config.base import NameOrAny, Port, Seconds, Section, has_host
from bridge.config.interlink import InterlinkSection
from bridge.config.nunet import NunetSection
from bridge.config.pool_kind import PoolKind, PoolKindSection

SUBJECT = r"^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$"
_REDIS = r"rediss?://[^\s@/?#]+(/[0-9]{0,4})?"


class NatsSection(PoolKindSection):
    """The NATS server of the pools; without ``servers`` there are no pools."""

    title, page = "NATS", "admins/nats.md"

    servers: list[Annotated[str, Field(pattern=r"^(nats|tls|ws|wss)://[^\s]+$")]] = Field(
        [], description="URLs with nats://, tls://, ws:// or wss://; empty: no pools over NATS."
    )
    seed_file: Path | None = Field(None, description="File with the nkey seed, instead of user and password.")
    user: str | None = Field(None, description="User name, instead of a seed; requires passwordFile.")
    password_file: Path | None = Field(None, description="File with the password of the user.")
    ca_file: Path | None = Field(
        None, description="CA certificates of tls:// or wss:// servers; default: the system's."
    )
    prefix: Annotated[str, Field(pattern=SUBJECT)] = Field(
        names.SUBJECT_PREFIX, description="Prefix of all subjects, as at the sites."
    )
    inbox_prefix: Annotated[str, Field(pattern=SUBJECT)] = Field(
        "_INBOX.hub", description="Prefix of the subjects of answers."
    )

    @field_validator("servers")
    @classmethod
    def _addresses(cls, value: list[str]) -> list[str]:
        # logs, and arguments of the plugin, contain the URLs
        if any("@" in url or not has_host(url) for url in value):
            raise ValueError("each must have a host, no user and no password; set seedFile, or user and passwordFile")
        return value

    @property
    def urls(self) -> list[str]:
        """The servers."""
        return self.servers


class RedisStoreSection(Section):
    """A redis server. Each Kubernetes cluster needs its own prefix or its own server."""

    url: str | None = Field(
        None, description="`redis://host:port/database`, `rediss://...` (TLS) or `unix:///socket`, without a password."
    )
    user: str | None = Field(None, description="ACL user; default: redis's `default`.")
    password_file: Path | None = Field(None, description="File with the password; read at each connect.")
    ca_file: Path | None = Field(None, description="CA certificate of a rediss:// server; default: the system's.")
    prefix: Annotated[str, Field(pattern=r"^[0-9A-Za-z_.:-]{1,64}$")] = Field(
        "podbridge", description="Prefix of the keys `<prefix>:<cluster>:pools` and `<prefix>:<cluster>:jobs`."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        is_socket = value is None or re.fullmatch(r"unix:///[^\s?#]+", value)
        if value is not None and not is_socket and not (re.fullmatch(_REDIS, value) and has_host(value)):
            raise ValueError(
                "must be redis://host:port/database, rediss://host:port/database or unix:///path, without user, "
                "password or options; set user, passwordFile and caFile instead"
            )
        return value

    @model_validator(mode="after")
    def _fits(self) -> RedisStoreSection:
        if self.user is not None and self.password_file is None:
            raise ValueError("user requires passwordFile")
        # the file would have no effect, and the connection no TLS
        if self.ca_file is not None and not (self.url or "").startswith("rediss://"):
            raise ValueError("caFile requires a url that begins with rediss://")
        return self


class NatsStoreSection(Section):
    """A key-value bucket of the pools' NATS server, used over the hub's connection."""

    bucket: Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")] = Field(
        "podbridge", description="Bucket, which podbridge creates."
    )
    replicas: Annotated[int, Field(ge=1, le=5)] = Field(1, description="Replicas of a new bucket.")


class StoreSection(Section):
    """The store of pools, which survives a restart of the hub."""

    kind: Literal["none", "redis", "nats"] = Field("none", description="`redis`, `nats` or `none`.")
    redis: RedisStoreSection = RedisStoreSection()
    nats: NatsStoreSection = NatsStoreSection()

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        if self.kind == "redis" and self.redis.url is None:
            raise ValueError("kind redis requires redis.url")
        return self


class RaceSection(Section):
    """Late binding: pods that are queued at several pools at once. See [Late binding](../users/late-binding.md)."""

    enabled: bool = Field(False, description="Pods may [race](../users/late-binding.md); needs config/rbac-race.yaml.")
    places: Annotated[int, Field(ge=2, le=16)] = Field(3, description="Places for one pod, at most.")
    wait: Annotated[float, Field(ge=5, le=3600)] = Field(60, description="Time that a started job waits for its grant.")


class ExposeSection(Section):
    """Services reach [exposed pods](../users/run-pods.md#services) by ports of the controllers."""

    ports: Annotated[str, Field(pattern=r"^([0-9]{1,5}-[0-9]{1,5})?$")] = Field(
        "", description="Range of ports of the controllers, for example `20000-20999`; empty: no pod is exposed."
    )
    address: IPvAnyAddress | None = Field(
        None, description="IP address by which pods and nodes reach the controllers; default: $POD_IP."
    )
    drain: Annotated[float, Field(ge=0, le=3600)] = Field(
        15,
        description="Seconds for which open connections go on while the controllers stop.",
    )

    @field_validator("ports")
    @classmethod
    def _range(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if value and not 1024 <= int(first) <= int(last) <= 65535:
            raise ValueError(f"{value} is not allowed; allowed: FIRST-LAST from 1024 to 65535")
        return value

    @property
    def numbers(self) -> range:
        """The ports; empty: no pod is exposed."""
        first, _, last = self.ports.partition("-")
        return range(int(first), int(last) + 1) if self.ports else range(0)


class _PoolsSection(Section):
    """Pools and their virtual nodes."""

    kinds: ClassVar[tuple[PoolKind, ...]] = ()

    nats: NatsSection = NatsSection()
    store: StoreSection = StoreSection()
    silent_after: Seconds = Field(30, description="Silence of the site until the virtual node is NotReady.")
    remove_after: Annotated[float, Field(gt=0)] = Field(
        86400, description="Silence of the site until a virtual node without pods is deleted."
    )
    policy: Literal["order", "least-loaded", "weight", "soonest"] = Field(
        "order",
        description="How a pool with free capacity is [selected](../admins/pools.md#which-pools-a-pod-may-use).",
    )
    other_pods: Literal["wait", "default-scheduler"] = Field(
        "wait",
        description=(
            "Without a colocated Slurm: pods that request no pool stay pending, or go to the default scheduler."
        ),
    )
    weights: dict[str, Annotated[int, Field(ge=1)]] = Field(
        {}, description="Weights of pools (default 1), for policy weight and MasterQueues."
    )
    race: RaceSection = RaceSection()
    expose: ExposeSection = ExposeSection()
    reach: list[NameOrAny] = Field(
        [], description='Pools whose pods may [reach Services](../users/run-pods.md#reach-services); `["*"]`: all.'
    )
    volume_period: Seconds = Field(60, description="Period of reads of a ConfigMap or Secret in a volume at a site.")
    volume_reads: Annotated[float, Field(gt=0, le=1000)] = Field(20, description="Maximum of such reads per second.")
    submit_timeout: Seconds = Field(60, description="Time-out of a submission to a site.")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(32, description="Concurrent calls to one pool.")
    kubelet_port: Port = Field(names.KUBELET_PORT, description="Port of the kubelet API; 0: a free port.")
    kubelet_cert_dir: Path | None = Field(
        None, description="Directory with tls.crt and tls.key; default: a certificate of podbridge."
    )
    node_address: str | None = Field(None, description="IP address of the kubelet API; default: $POD_IP.")

    @property
    def enabled(self) -> bool:
        """Whether pools are configured."""
        return any(self.sections(kind) for kind in self.kinds)

    def may_reach(self, pool: str) -> bool:
        """Whether pods of a pool may reach Services."""
        return pool in self.reach or "*" in self.reach

    @property
    def named(self) -> tuple[str, ...]:
        """The names of the pools that the configuration defines. The others announce themselves over NATS."""
        return tuple(name for kind in self.kinds for section in self.sections(kind) for name in section.pool_names)

    def sections(self, kind: PoolKind) -> list[PoolKindSection]:
        """Return the sections of one kind that are used."""
        value: PoolKindSection | list[PoolKindSection] = getattr(self, kind.key)
        return [section for section in (value if isinstance(value, list) else [value]) if section.urls]

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if twice := sorted({name for name in self.named if self.named.count(name) > 1}):
            raise ValueError(f"more than one pool has the name {', '.join(twice)}")
        return self


def with_kinds(kinds: tuple[PoolKind, ...]) -> type[_PoolsSection]:
    """Return the section ``pools`` with a list of sections for each kind that it has no field for."""
    fields: dict[str, Any] = {
        kind.key: (list[kind.section], Field([], description=f"[{kind.section.title} pools](../{kind.section.page})."))  # type: ignore[name-defined]
        for kind in kinds
        if kind.key not in _PoolsSection.model_fields
    }
    model = create_model("PoolsSection", __base__=_PoolsSection, __doc__=_PoolsSection.__doc__, **fields)
    model.kinds = kinds
    return model


KINDS = (
    PoolKind("interlink", InterlinkSection, "bridge.pools.interlink.interlink_pool"),
    PoolKind("nunet", NunetSection, "bridge.pools.nunet.nunet_pool"),
    # the last one: a site must not take the name of a configured pool over NATS
    PoolKind("nats", NatsSection, "bridge.pools.submitter.submitter_source"),
)
"""The table of pool kinds. If two have a pool of the same name, the first one has it."""

if TYPE_CHECKING:
    PoolsSection = _PoolsSection
else:
    PoolsSection = with_kinds(KINDS)
