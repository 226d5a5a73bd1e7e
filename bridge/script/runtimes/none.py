"""No container runtime: commands run on the host, for sites that allow it. The image is not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import ScriptError
from bridge.script.buildconfig import BuildConfig

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

library = "none"


def accept(container: Container, where: str, config: BuildConfig, image_root: str) -> None:
    """Refuse containers without a command: there is no image whose own could be run."""
    if not container.command:
        raise ScriptError(f"{where}.command: nothing is not allowed at this site, which runs no images: name a command")


def login(secret: bytes) -> tuple[str, bytes]:
    """Keep it where the others do; nothing is pulled."""
    return "docker/config.json", secret


def options(plan: Plan) -> list[str]:
    """Nothing to say."""
    return []
