"""The table of container runtimes. Each has a module, and a bash library in ``bridge/script/lib``."""

from __future__ import annotations

from bridge.core import drivers
from bridge.script.runtimes.apptainer import ApptainerRuntime, SingularityRuntime
from bridge.script.runtimes.charliecloud import CharliecloudRuntime
from bridge.script.runtimes.enroot import EnrootRuntime
from bridge.script.runtimes.none import NoRuntime
from bridge.script.runtimes.podman import PodmanRuntime
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings, SettingsPart

_OWN: tuple[type[Runtime], ...] = (
    ApptainerRuntime,
    SingularityRuntime,
    EnrootRuntime,
    PodmanRuntime,
    CharliecloudRuntime,
    NoRuntime,
)
RUNTIMES: dict[str, Runtime] = {
    kind: runtime()
    for kind, runtime in drivers.table(
        drivers.RUNTIMES,
        Runtime,  # type: ignore[type-abstract]
        _OWN,
    ).items()
}
"""All runtimes by ``runtime.kind``: podbridge's own, and those of other packages."""
MPI_KINDS = tuple(kind for kind, runtime in RUNTIMES.items() if runtime.supports_mpi)
SECRETS = tuple(sorted({path for runtime in RUNTIMES.values() for path in runtime.secrets}))
"""Paths in a job's directory that may contain logins of registries."""


def sections() -> dict[str, type[SettingsPart]]:
    """Return the models of the runtimes' sections, by the name of the section."""
    return {kind: runtime.settings for kind, runtime in RUNTIMES.items() if runtime.settings is not None}


def of(config: BuildSettings) -> Runtime:
    """Return the runtime of a site."""
    return RUNTIMES[config.runtime.kind]
