"""Charliecloud. Source: ch-run(1), ch-image(1), ch-convert(1)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bridge.errors import ScriptError
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import array, word
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import AbsolutePath, BuildSettings, SettingsPart, Words

# ch-run(1) mounts these of the machine itself
_OF_THE_MACHINE = ("/dev/", "/proc/", "/sys/")


class Charliecloud(SettingsPart):
    """``[charliecloud]``: ``ch-run`` and ``ch-image`` in ``bin_dir``, or on PATH."""

    bin_dir: AbsolutePath | None = Field(None, examples=["/opt/charliecloud/bin"])
    options: Words = Field([])


class CharliecloudRuntime(Runtime):
    """``ch-run``, which runs no entry points."""

    kind = library = "charliecloud"
    settings = Charliecloud
    account_files = True

    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Refuse what ch-run has no option for."""
        runtime_images.accept_image(container, field_path, config, image_root, self.schemes)
        runtime_images.accept_lines(container)
        if not container.command:
            raise ScriptError(f"{field_path}.command: must be set at this site: charliecloud runs no entry points")
        for mount in container.mounts:
            if mount.kind != "own" and mount.path.startswith(_OF_THE_MACHINE) and mount.path != "/dev/shm":  # noqa: S108
                raise ScriptError(
                    f"{field_path}.volumeMounts: {mount.path!r} is not allowed at this site: it is the machine's"
                )
        if container.read_only_root:
            raise ScriptError(f"{field_path}.securityContext.readOnlyRootFilesystem: true is not allowed at this site")

    def options(self, plan: Plan) -> list[str]:
        """Return the variables of ``lib/runtime_charliecloud.bash``."""
        own = plan.config.section(Charliecloud)
        return [*runtime_images.options(plan), f"BIN_DIR={word(own.bin_dir or '')}", array("OPTIONS", own.options)]

    def version_command(self, config: BuildSettings) -> list[str]:
        """Return the command of ch-run."""
        return [str(Path(config.section(Charliecloud).bin_dir or "") / "ch-run"), "--version"]
