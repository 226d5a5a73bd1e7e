"""BuildConfig: how a site wants scripts to be built. It contains no secrets: every hub may read it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from bridge.script import settings
from bridge.script.runtimes import runtime_table as runtimes

if TYPE_CHECKING:
    Kind = str
    _Settings = settings.BuildSettings
else:
    Kind = Literal[tuple(runtimes.RUNTIMES)]
    _Settings = settings.with_sections("BuildSettings", settings.BuildSettings, runtimes.sections())


class RuntimeConfig(settings.RuntimeSection):
    """``[runtime]``: the container runtime."""

    kind: Kind = "apptainer"


class BuildConfig(_Settings):
    """Everything that a hub must know to build scripts for a pool: the settings, and a section for each runtime."""

    runtime: RuntimeConfig = RuntimeConfig()

    def dump(self) -> dict[str, Any]:
        """Return it as data for JSON."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with any value."""
        text = json.dumps(self.dump(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
