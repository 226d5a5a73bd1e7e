"""The table of batch systems."""

from __future__ import annotations

from bridge.core import drivers
from bridge.script.runtimes.runtime_table import sections
from bridge.site.batch.batch_interface import BatchSystem
from bridge.site.batch.htcondor import CondorBatch
from bridge.site.batch.local import LocalBatch
from bridge.site.batch.pbs import PbsBatch
from bridge.site.batch.slurm import SlurmBatch

_OWN: tuple[type[BatchSystem], ...] = (SlurmBatch, CondorBatch, PbsBatch, LocalBatch)
SYSTEMS: dict[str, type[BatchSystem]] = drivers.table(
    drivers.BATCH_SYSTEMS,
    BatchSystem,  # type: ignore[type-abstract]
    _OWN,
    reserved=sections(),
)
"""All batch systems by ``batch.kind``: podbridge's own, and those of other packages."""


def defaults(attribute: str) -> str:
    """Return the value of an attribute of each batch system, for people: ``slurm 5, htcondor 10``."""
    return ", ".join(f"{kind} {getattr(system, attribute):g}" for kind, system in SYSTEMS.items())
