"""Reads a ``SlurmConfig.yaml`` as the configuration of a site that runs now."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from bridge.logs import kv
from bridge.site.config.site_config import SiteConfig, read_text, validated
from bridge.site.interlink_slurm.conversion import OPENED, Conversion, convert
from bridge.site.service import LiveConfig

log = logging.getLogger(__name__)

POOL = "slurm"


def open_config(path: Path) -> tuple[LiveConfig, Conversion]:
    """Read a file; return its configuration, which is read again when the file changes, and the rest of its content.

    Raises :class:`ConfigError`.
    """
    return LiveConfig(path, None, _load), _read(path)


def report(config: SiteConfig, conversion: Conversion) -> None:
    """Log what the file opens, and each of its keys that has no effect or another one."""
    volumes = config.volumes
    log.info(
        "pods have the rights that the interLink Slurm plugin gives them; to withdraw one, convert the configuration",
        extra=kv(limits=",".join(OPENED), host_paths=volumes.host_paths, image_paths=volumes.image_paths),
    )
    for warning in conversion.warnings:
        log.warning("configuration of the interLink Slurm plugin", extra=kv(why=warning))
    if not conversion.listen.startswith("unix:"):
        log.info(
            "the plugin listened on all interfaces without authentication; podbridge needs Socket, --token-file, "
            "--client-ca or --allow-local-users",
            extra=kv(address=conversion.listen),
        )


def _read(path: Path) -> Conversion:
    text = read_text(path, hint="set SLURMCONFIGPATH, or use -SlurmConfigpath FILE or --slurm-config FILE")
    return convert(text, str(path), os.environ, os.getcwd(), POOL)


def _load(path: Path, pool: str | None) -> SiteConfig:
    values = _read(path).values
    return validated(values if pool is None else {**values, "pool": pool}, str(path))
