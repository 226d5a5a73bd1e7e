"""The section ``pools.interlink`` of the configuration: interLink plugins and API servers as pools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from bridge.config.base import Seconds, Section

PoolName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
URL_FORMS = "http://host:port, https://host:port or unix:///path"


class InterlinkSection(Section):
    """An interLink plugin, or a remote interLink API server, as a pool."""

    name: PoolName = Field(description="Name of the pool and of its virtual node.")
    url: str = Field(description=f"Address: {URL_FORMS}. A path after the port is kept, for a proxy.")
    api: Literal["plugin", "server"] = Field(
        "plugin", description="What the address is: a `plugin` (sidecar) or an interLink API `server`."
    )
    ca_file: Path | None = Field(None, description="CA certificates; default: the system's.")
    cert_file: Path | None = Field(None, description="Client certificate.")
    key_file: Path | None = Field(None, description="Its key; default: in certFile.")
    token_file: Path | None = Field(None, description="File with a bearer token.")
    capacity: dict[str, str | int] = Field(
        {}, description="Resources of the virtual node; the answer to a ping replaces them."
    )
    labels: dict[str, str] = Field({}, description="Labels of the virtual node.")
    taints: list[str] = Field(
        [], description="Taints of the virtual node, `key=value:Effect`; the answer to a ping replaces them."
    )
    service_account_tokens: bool = Field(False, description="Send pods with the token of their service account.")
    build_config_file: Path | None = Field(
        None,
        description=(
            "TOML file with script settings of [sites](../sites/sites.md): podbridge sends its script "
            "as `jobScript`. Only with api `plugin`."
        ),
    )
    poll_period: Seconds = Field(5, description="Period of requests for the states of all jobs.")
    ping_period: Seconds = Field(10, description="Period of pings.")
    batch: Annotated[int, Field(ge=1, le=1000)] = Field(
        100, description="Pods in one `/status` request; 1 for plugins that answer only for the first."
    )
    timeout: Seconds = Field(30, description="Time-out of a request, except `/create`.")
    late_create: Seconds = Field(
        60,
        description=(
            "Time after `pools.submitTimeout` until an unanswered `/create` is repeated, if the plugin "
            "does not know the pod."
        ),
    )
    method: Literal["auto", "GET", "POST"] = Field(
        "auto", description="HTTP method of `/status` and `/getLogs`. `auto`: GET, else POST."
    )
    create_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Answers 5xx to `/create` until the pod fails."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            valid = not parts.query and not parts.fragment and "@" not in parts.netloc
            if parts.scheme == "unix":
                valid = valid and not parts.netloc and len(parts.path) > 1
            else:
                valid = valid and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"must be {URL_FORMS}, without user and query; for a bearer token set tokenFile")
        return value.rstrip("/")

    @field_validator("capacity")
    @classmethod
    def _capacity(cls, value: dict[str, str | int]) -> dict[str, str | int]:
        return {name: str(amount) for name, amount in value.items()}

    @model_validator(mode="after")
    def _fits(self) -> InterlinkSection:
        for key, path in (("caFile", self.ca_file), ("certFile", self.cert_file)):
            if path is not None and not self.url.startswith("https://"):
                raise ValueError(f"{key} requires a url that begins with https://")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile requires certFile")
        if self.build_config_file is not None and self.api != "plugin":
            raise ValueError("buildConfigFile requires api plugin: an API server accepts no jobScript")
        return self
