"""What the sections of all pool kinds have in common, and the lines of their table in bridge/config/pools.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from bridge.config.base import ObjectName, Section, has_host


class PoolKindSection(Section):
    """What the configuration says about pools of one kind. ``page``: its page of the documentation, in docs."""

    title: ClassVar[str]
    page: ClassVar[str]

    @property
    def pool_names(self) -> list[str]:
        """Names of the pools that it defines; others may announce themselves."""
        return []

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers; none: the section is not used."""
        return []


class RestSection(PoolKindSection):
    """Pools behind one REST API."""

    url_forms: ClassVar[str] = "http://host:port or https://host:port"

    name: ObjectName = Field(description="Name of the pool and of its virtual node.")
    url: str = Field(description="Address: http://host:port or https://host:port. A path after the port is kept.")
    ca_file: Path | None = Field(None, description="CA certificates; default: those of certifi.")
    cert_file: Path | None = Field(None, description="Client certificate.")
    key_file: Path | None = Field(None, description="Its key; default: in certFile.")
    token_file: Path | None = Field(None, description="File with a bearer token.")
    labels: dict[str, str] = Field({}, description="Labels of the virtual node.")
    taints: list[str] = Field([], description="Taints of the virtual node, `key=value:Effect`.")

    @property
    def pool_names(self) -> list[str]:
        """The name."""
        return [self.name]

    @property
    def urls(self) -> list[str]:
        """The address."""
        return [self.url]

    @property
    def files(self) -> dict[str, Path]:
        """The files of TLS by key."""
        files = {"caFile": self.ca_file, "certFile": self.cert_file, "keyFile": self.key_file}
        return {key: path for key, path in files.items() if path is not None}

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        is_socket = "unix:" in cls.url_forms and re.fullmatch(r"unix:///[^?#]+", value)
        if not is_socket and not (re.fullmatch(r"https?://[^/@?#]+(/[^?#]*)?", value) and has_host(value)):
            raise ValueError(f"must be {cls.url_forms}, without user and query; for a bearer token set tokenFile")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("keyFile requires certFile")
        if self.files and not self.url.startswith("https://"):
            raise ValueError(f"{next(iter(self.files))} requires a url that begins with https://")
        return self


@dataclass(frozen=True, slots=True)
class PoolKind:
    """A kind of pool. ``key``: its key in ``pools``.

    ``module``: has ``make(sections, context)``, which returns a :class:`bridge.pools.registry.PoolSource`. It is
    imported only if the configuration has such pools: the clients of a kind take 0.1 s and some MiB.
    """

    key: str
    section: type[PoolKindSection]
    module: str
