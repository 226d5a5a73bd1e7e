"""One module per batch system, one line each in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bridge.clock import Clock
from bridge.site.batch.port import BatchSystem
from bridge.site.config import SiteConfig


def _slurm(config: SiteConfig, clock: Clock) -> BatchSystem:
    from bridge.site.batch.slurm import SlurmBatch

    return SlurmBatch(config)


def _htcondor(config: SiteConfig, clock: Clock) -> BatchSystem:
    from bridge.site.batch.htcondor import CondorBatch

    return CondorBatch(config)


def _local(config: SiteConfig, clock: Clock) -> BatchSystem:
    from bridge.site.batch.local import LocalBatch

    return LocalBatch(Path(config.folder), config.local, clock)


SYSTEMS: dict[str, Callable[[SiteConfig, Clock], BatchSystem]] = {
    "slurm": _slurm,
    "htcondor": _htcondor,
    "local": _local,
}


def make(config: SiteConfig, clock: Clock) -> BatchSystem:
    """Make the batch system that the configuration names."""
    return SYSTEMS[config.batch.kind](config, clock)
