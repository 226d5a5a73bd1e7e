"""``podbridge submitter convert``: the configuration of another plugin as a documented ``site.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bridge.site.config.sample import documented
from bridge.site.config.site_config import validated
from bridge.site.conversion import build_conf
from bridge.site.interlink_slurm import conversion


@dataclass(frozen=True, slots=True)
class Converted:
    """The text of a ``site.toml``, and what could not be converted."""

    text: str
    warnings: tuple[str, ...]


def convert(text: str, source: str, environ: Mapping[str, str], cwd: str, pool: str) -> Converted:
    """Convert a ``SlurmConfig.yaml`` or a ``build.conf``; raises :class:`bridge.errors.ConfigError`."""
    values: Mapping[str, Any]
    if is_toml(text, source):
        values, warnings = build_conf.convert(text, source, pool)
        origin = f"Converted from {source}, a BuildConfig of the interLink NATS plugin."
        notes = [origin, "Set [nats] servers and its seed_file or user: the plugin reads them from NATS_SERVER."]
    else:
        converted = conversion.convert(text, source, environ, cwd, pool)
        values, warnings = converted.values, list(converted.warnings)
        notes = [
            f"Converted from {source}, a configuration of the interLink Slurm plugin.",
            f"podbridge plugin --slurm-config uses that file as it is, and listens on {converted.listen}.",
            f"{', '.join(conversion.OPENED)}, host_paths and image_paths are open, as the plugin's are.",
        ]
    validated(values, source)
    return Converted(documented(values, [*notes, *warnings]), tuple(warnings))


def is_toml(text: str, source: str) -> bool:
    """Return whether a file is a ``build.conf``: its name says YAML, or its text is TOML."""
    if PurePath(source).suffix in (".yaml", ".yml"):
        return False
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return PurePath(source).suffix in (".toml", ".conf", ".cfg")
    return True
