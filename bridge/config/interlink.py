"""The section ``pools.interlink`` of the configuration: interLink plugins and API servers as pools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bridge.config.base import Seconds
from bridge.config.pool_kind import RestSection


class InterlinkSection(RestSection):
    """An interLink plugin, or a remote interLink API server, as a pool."""

    title, page = "interLink", "admins/interlink-pools.md"
    url_forms = "http://host:port, https://host:port or unix:///path"

    api: Literal["plugin", "server"] = Field(
        "plugin",
        description="What the address, which may also be unix:///path, is: a `plugin` (sidecar) or an API `server`.",
    )
    capacity: dict[str, str | int] = Field(
        {}, description="Resources of the virtual node; the answer to a ping replaces them, and `taints`."
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
    create_attempts: Annotated[int, Field(ge=1, le=1000)] = Field(
        3, description="Answers 5xx to `/create` until the pod fails."
    )

    @field_validator("capacity")
    @classmethod
    def _capacity(cls, value: dict[str, str | int]) -> dict[str, str | int]:
        return {name: str(amount) for name, amount in value.items()}

    @model_validator(mode="after")
    def _script_fits(self) -> InterlinkSection:
        if self.build_config_file is not None and self.api != "plugin":
            raise ValueError("buildConfigFile requires api plugin: an API server accepts no jobScript")
        return self
