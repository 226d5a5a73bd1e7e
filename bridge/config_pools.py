"""The section ``pools`` of the configuration: NATS, the store of pools, and the virtual nodes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bridge import names
from bridge.config_base import Seconds, Section

SUBJECT = r"^[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*$"
_REDIS = r"rediss?://[^\s@/?#]+(/\d{0,4})?|unix:///[^\s?#]+"


class NatsSection(Section):
    """The NATS server over which pools are reached; without ``servers`` there are no pools."""

    servers: list[Annotated[str, Field(pattern=r"^(nats|tls|ws|wss)://[^\s]+$")]] = Field([])
    seed_file: Path | None = Field(None, description="nkey seed; instead of user and password.")
    user: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    prefix: Annotated[str, Field(pattern=SUBJECT)] = names.SUBJECT_PREFIX
    inbox_prefix: Annotated[str, Field(pattern=SUBJECT)] = Field(
        "_INBOX.hub", description="Where answers come; the server must let this user listen there."
    )


class RedisStoreSection(Section):
    """A redis server; every Kubernetes cluster has a prefix, or a server, of its own."""

    url: str | None = Field(
        None, description="`redis://host:port/database`, `rediss://...` (TLS) or `unix:///socket`; no password in it."
    )
    user: str | None = Field(None, description="ACL user; default: redis' own default user.")
    password_file: Path | None = Field(None, description="Read anew at each connect.")
    ca_file: Path | None = Field(None, description="Authority of a rediss:// server; default: the system's.")
    prefix: Annotated[str, Field(pattern=r"^[0-9A-Za-z_.:-]{1,64}$")] = Field(
        "podbridge", description="Keys are `<prefix>:<cluster>:pools` and `<prefix>:<cluster>:jobs`."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(_REDIS, value):
            raise ValueError(
                "must be redis://host:port/database, rediss://host:port/database or unix:///path, without user, "
                "password or options; those have keys of their own (user, passwordFile, caFile)"
            )
        return value

    @model_validator(mode="after")
    def _fits(self) -> RedisStoreSection:
        if self.user is not None and self.password_file is None:
            raise ValueError("user without passwordFile")
        if self.ca_file is not None and not (self.url or "").startswith("rediss://"):
            raise ValueError("caFile needs a url that begins with rediss://")
        return self


class NatsStoreSection(Section):
    """A key-value bucket of the NATS server of the pools, used over the hub's own connection."""

    bucket: Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")] = "podbridge"
    replicas: Annotated[int, Field(ge=1, le=5)] = Field(1, description="Of a bucket that podbridge makes.")


class StoreSection(Section):
    """Where pools are remembered from one hub to the next."""

    kind: Literal["none", "redis", "nats"] = Field("none", description="`redis`, `nats`, or `none`: nowhere.")
    redis: RedisStoreSection = RedisStoreSection()
    nats: NatsStoreSection = NatsStoreSection()

    @model_validator(mode="after")
    def _complete(self) -> StoreSection:
        if self.kind == "redis" and self.redis.url is None:
            raise ValueError("kind is redis, and redis.url names no server")
        return self


class PoolsSection(Section):
    """Pools and their virtual nodes."""

    nats: NatsSection = NatsSection()
    store: StoreSection = StoreSection()
    silent_after: Seconds = Field(30, description="Without word for so long, a pool's node is NotReady.")
    remove_after: Annotated[float, Field(gt=0)] = Field(
        86400, description="Silent for so long, a pool's node is deleted, once no pod is bound to it."
    )
    policy: Literal["order", "least-loaded", "weight"] = Field(
        "order", description="Which pool a pod goes to, of those that have room for it."
    )
    other_pods: Literal["wait", "default-scheduler"] = Field(
        "wait",
        description="Where no Slurm is configured, what a pod of a managed namespace that asks for no pool does: it "
        "waits and says so, or it stays with the default scheduler.",
    )
    weights: dict[str, Annotated[int, Field(ge=1)]] = Field({}, description="Pool -> weight, for policy weight.")
    submit_timeout: Seconds = Field(60, description="Patience with a site that takes a job.")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(32, description="Calls in flight to one pool.")
    kubelet_port: Annotated[int, Field(ge=0, le=65535)] = names.KUBELET_PORT
    kubelet_cert_dir: Path | None = Field(None, description="Folder with tls.crt and tls.key; default: self-made.")
    node_address: str | None = Field(
        None, description="IP address under which the API server reaches the kubelet port; default $POD_IP."
    )

    @property
    def enabled(self) -> bool:
        """Whether there are pools at all."""
        return bool(self.nats.servers)
