"""Container runtimes: one module each, and one file of bash in ``bridge/script/lib``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bridge.script.buildconfig import BuildConfig
from bridge.script.runtimes import apptainer, charliecloud, enroot, none, podman

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan


class Runtime(Protocol):
    """What a runtime is at the hub: its bash library, the site's options as bash, and what it can't do.

    The library ``lib/runtime_<library>.bash`` defines ``runtime_check``, ``runtime_start I`` (becomes the container;
    calls ``go`` just before, or ``cannot``), ``runtime_exec I WORD...`` (a command in the running container),
    ``runtime_signal I NAME``, ``runtime_pid I``, ``runtime_code I CODE``, ``runtime_oom I``, ``runtime_clean I``,
    ``runtime_remove PATH`` and ``runtime_end``; ``lib/runtime.bash`` has those that most share. ``command_of``,
    ``variables_of`` and ``mounts_of`` tell it about a container.
    """

    library: str
    """Its part of the bash library."""

    def accept(self, container: Container, where: str, config: BuildConfig, image_root: str) -> None:
        """Raise ``ScriptError`` for what this runtime can't do; ``image_root`` is the annotation, or empty."""

    def login(self, secret: bytes) -> tuple[str, bytes]:
        """Say where below ``run/`` the logins of registries go, and how; ``secret`` is docker's ``config.json``."""

    def options(self, plan: Plan) -> list[str]:
        """Give lines of bash: the site's and the pod's options, as arrays."""


_KINDS: dict[str, Runtime] = {
    "apptainer": apptainer,
    "singularity": apptainer,
    "enroot": enroot,
    "podman": podman,
    "charliecloud": charliecloud,
    "none": none,
}


def of(config: BuildConfig) -> Runtime:
    """Give the runtime of a site."""
    return _KINDS[config.runtime.kind]
