"""No container runtime: commands run on the machine, for sites that allow it. The image is ignored."""

from __future__ import annotations

from bridge.errors import ScriptError
from bridge.script.plan_types import Container
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings


class NoRuntime(Runtime):
    """Processes of the machine, with volumes in a mount namespace of their own."""

    kind = library = "none"
    schemes = ()
    supports_mpi = False
    exec_mounts = True
    folders = ("run/root",)

    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Refuse containers without a command: there is no image whose command could run."""
        if not container.command:
            raise ScriptError(f"{field_path}.command: must be set at this site: it runs no images")

    def has_network(self, config: BuildSettings) -> bool:
        """Return ``True``: processes of the machine always have its network."""
        return True
