"""The section ``pools.nunet`` of the configuration: NuNet DMS instances as pools."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bridge.config.base import ObjectName, Seconds, Section
from bridge.config.pool_kind import RestSection

FieldName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$|^$")]
_CANCEL = re.compile(r"((DELETE|POST|PUT|GET) )?/\S*\{job\}\S*")


class NunetGroupSection(Section):
    """The peers of one virtual node. A peer is in the first group that selects it."""

    name: ObjectName = Field(description="Name of the pool and of its virtual node.")
    gpu_types: list[str] = Field(
        [], description="Types of GPU, for example `nvidia.rtx.*`; `none`: no GPU; empty: all peers."
    )
    peers: list[str] = Field([], description="Ids of peers; empty: all.")
    labels: dict[str, str] = Field({}, description="Further labels of the virtual node.")


class NunetSection(RestSection):
    """A NuNet DMS. See [NuNet](../admins/nunet.md)."""

    title, page = "NuNet", "admins/nunet.md"

    groups: list[NunetGroupSection] = Field([], description="Virtual nodes; empty: one of `name` with all peers.")
    services: Literal["refuse", "allow"] = Field(
        "refuse", description="Pods with restartPolicy Always and no time limit."
    )
    send_secrets: bool = Field(False, description="Send Secrets and registry credentials, which the peer can read.")
    defaults: dict[str, str] = Field(
        {}, description="Default values of annotations `nunet.bridge.vk.io/<key>`, by key."
    )
    statuses: dict[str, Literal["queued", "running", "succeeded", "failed", "cancelled"]] = Field(
        {}, description="Meanings of the DMS's words for states of jobs."
    )
    cancel_path: str = Field(
        "",
        description="Path that cancels a job, with `{job}` for its id; before it an HTTP method, if it is not DELETE; "
        "empty: jobs cannot be cancelled.",
    )
    peer_field: FieldName = Field("peer_id", description="Field of the request for the peer; empty: none.")
    log_hosts: list[str] = Field(
        [], description="Hosts of log URLs: `host:port`, `host` or `*.domain`; default: that of `url`."
    )
    poll_period: Seconds = Field(10, description="Period of requests for the state of a job.")
    ping_period: Seconds = Field(15, description="Period of requests for the list of peers.")

    @property
    def virtual_nodes(self) -> list[NunetGroupSection]:
        """The groups; without any, one with all peers."""
        return self.groups or [NunetGroupSection(name=self.name)]

    @property
    def pool_names(self) -> list[str]:
        """Names of the pools."""
        return [group.name for group in self.virtual_nodes]

    @model_validator(mode="after")
    def _path_fits(self) -> NunetSection:
        if self.cancel_path and not _CANCEL.fullmatch(self.cancel_path):
            raise ValueError("cancelPath must begin with / and contain {job}, for example /api/v1/job/{job}")
        return self
