"""Reads a ``SlurmConfig.yaml`` as the configuration of a site that runs now."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from bridge.logs import kv
from bridge.site.config.site_config import SiteConfig, read_text, validated
from bridge.site.interlink_slurm.conversion import OPENED, Conversion, convert
from bridge.site.service import LiveConfig

log = logging.getLogger(__name__)

POOL = "slurm"


@dataclass(frozen=True, slots=True)
class Opened:
    """A configuration that is read again when its file changes, the server's address, and what has no effect."""

    live: LiveConfig
    listen: str
    warnings: tuple[str, ...]


def open_config(path: Path) -> Opened:
    """Read a file; raises :class:`ConfigError`."""
    opened = _read(path)
    return Opened(LiveConfig(path, None, _load), opened.listen, opened.warnings)


def report(opened: Opened) -> None:
    """Log what the file opens, and each of its keys that has no effect or another one."""
    volumes = opened.live.config.volumes
    log.info(
        "pods have the rights that the interLink Slurm plugin gives them; to withdraw one, convert the configuration",
        extra=kv(limits=",".join(OPENED), host_paths=volumes.host_paths, image_paths=volumes.image_paths),
    )
    for warning in opened.warnings:
        log.warning("configuration of the interLink Slurm plugin", extra=kv(why=warning))
    if not opened.listen.startswith("unix:"):
        log.info(
            "the plugin listened on all interfaces without authentication; podbridge needs Socket, --token-file, "
            "--client-ca or --allow-local-users",
            extra=kv(address=opened.listen),
        )


def _read(path: Path) -> Conversion:
    text = read_text(path, hint="set SLURMCONFIGPATH, or use -SlurmConfigpath FILE or --slurm-config FILE")
    return convert(text, str(path), os.environ, os.getcwd(), POOL)


def _load(path: Path, pool: str | None) -> SiteConfig:
    values = _read(path).values
    return validated(values if pool is None else {**values, "pool": pool}, str(path))
