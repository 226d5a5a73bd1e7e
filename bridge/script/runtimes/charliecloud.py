"""Charliecloud. Source: ch-run(1), ch-image(1), ch-convert(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.errors import ScriptError
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import array, word
from bridge.script.runtimes import images

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

library = "charliecloud"
login = images.login
_OF_THE_MACHINE = ("/dev/", "/proc/", "/sys/")


def accept(container: Container, where: str, config: BuildConfig, image_root: str) -> None:
    """Refuse what ch-run has no word for."""
    images.accept_image(container, where, config, image_root, library)
    images.accept_lines(container)
    if not container.command:
        raise ScriptError(f"{where}.command: nothing is not allowed at this site: charliecloud runs no entry points")
    for mount in container.mounts:
        if mount.kind != "own" and mount.path.startswith(_OF_THE_MACHINE):
            raise ScriptError(f"{where}.volumeMounts: {mount.path!r} is not allowed at this site: it is the machine's")
    if container.read_only_root:
        raise ScriptError(f"{where}.securityContext.readOnlyRootFilesystem: true is not allowed at this site")


def options(plan: Plan) -> list[str]:
    """Give the site's options, in words."""
    own = plan.config.charliecloud
    return [*images.options(plan), f"BIN_DIR={word(own.bin_dir or '')}", array("OPTIONS", own.options)]
