"""The section ``pools.nunet`` of the configuration: NuNet DMS instances as pools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from bridge import names
from bridge.config.base import Seconds, Section

NodeName = Annotated[str, Field(pattern=f"^{names.DNS_LABEL}$")]
FieldName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$|^$")]
_CANCEL = re.compile(r"((DELETE|POST|PUT|GET) )?/\S*\{job\}\S*")


class NunetGroupSection(Section):
    """The peers of one virtual node. A peer is in the first group that selects it."""

    name: NodeName = Field(description="Name of the pool and of its virtual node.")
    gpu_types: list[str] = Field(
        [], description="Types of GPU, for example `nvidia.rtx.*`; `none`: no GPU; empty: all peers."
    )
    peers: list[str] = Field([], description="Ids of peers; empty: all.")
    labels: dict[str, str] = Field({}, description="Further labels of the virtual node.")


class NunetSection(Section):
    """A NuNet DMS. See [NuNet](../admins/nunet.md)."""

    name: NodeName = Field(description="Name of the pool and of its virtual node; not used with `groups`.")
    url: str = Field(description="http://host:port[/path] or https://host:port[/path] of the DMS.")
    ca_file: Path | None = Field(None, description="CA certificates; default: those of certifi.")
    cert_file: Path | None = Field(None, description="Client certificate.")
    key_file: Path | None = Field(None, description="Its key; default: in certFile.")
    token_file: Path | None = Field(None, description="File with a bearer token.")
    groups: list[NunetGroupSection] = Field([], description="Virtual nodes; empty: one with all peers.")
    labels: dict[str, str] = Field({}, description="Labels of the virtual nodes.")
    taints: list[str] = Field([], description="Taints of the virtual nodes, `key=value:Effect`.")
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
    gpu_count_field: FieldName = Field(
        "", description="Field of `gpu` for their number; empty: pods with several are refused."
    )
    log_hosts: list[str] = Field(
        [], description="Hosts of log URLs: `host:port`, `host` or `*.domain`; default: that of `url`."
    )
    insecure_logs: bool = Field(False, description="Read logs over http, as with an http `url`.")
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

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            plain = not parts.query and not parts.fragment and "@" not in parts.netloc and parts.port != 0
            valid = plain and parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            valid = False
        if not valid:
            raise ValueError("must be http://host:port or https://host:port, without user and query")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits(self) -> NunetSection:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile requires certFile")
        for key, path in (("caFile", self.ca_file), ("certFile", self.cert_file)):
            if path is not None and not self.url.startswith("https://"):
                raise ValueError(f"{key} requires a url that begins with https://")
        if self.cancel_path and not _CANCEL.fullmatch(self.cancel_path):
            raise ValueError("cancelPath must begin with / and contain {job}, for example /api/v1/job/{job}")
        return self
