"""The section ``[local]``: the resources of this machine for jobs, and the part that its jobs leave free."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, field_validator

from bridge.errors import BatchError
from bridge.script.settings import SettingsPart
from bridge.site import cpus
from bridge.site.batch.batch_interface import Amount, Capacity, Environment
from bridge.site.batch.local_records import Record
from bridge.workload import quantity


class Local(SettingsPart):
    """``[local]``: used with ``batch.kind = "local"``: jobs run on this machine, first come, first served."""

    read_at_start = True
    cpus: Annotated[int, Field(ge=1)] | None = Field(
        None, examples=[8], description="CPUs for jobs; default: those of the submitter."
    )
    memory: str | None = Field(
        None, examples=["16Gi"], description="Memory for jobs (quantity); default: the machine's."
    )
    gpus: Annotated[int, Field(ge=0)] | None = Field(
        None, examples=[1], description="GPUs for jobs; default: those in /dev."
    )
    gpu_resource: str = Field("nvidia.com/gpu", description="Extended resource of the GPUs.")
    nice: Annotated[int, Field(ge=0, le=19)] = Field(0, description="Niceness of jobs.")
    watch_memory: bool = Field(True, description="Kill jobs that use more memory than they requested.")
    environment: Environment = Field({})

    @field_validator("memory")
    @classmethod
    def _quantity(cls, value: str | None) -> str | None:
        if value is not None:
            quantity.parse(value)
        return value


@dataclass(slots=True)
class MachineResources:
    """CPUs, bytes of memory, and indices of GPUs."""

    cpus: int
    memory: int
    devices: list[int] = field(default_factory=list)

    def fits(self, job: Record) -> bool:
        """Return whether a job fits."""
        return job.cpus <= self.cpus and job.memory <= self.memory and job.gpus <= len(self.devices)

    def beside(self, jobs: Iterable[Record]) -> MachineResources:
        """Return what running jobs leave free."""
        running = [job for job in jobs if job.phase == "running"]
        used = {device for job in running for device in job.devices}
        return MachineResources(
            self.cpus - sum(job.cpus for job in running),
            self.memory - sum(job.memory for job in running),
            [device for device in self.devices if device not in used],
        )

    def capacity(self, jobs: Collection[Record], gpu_resource: str) -> Capacity:
        """Return these resources, and what jobs that run or wait leave of them."""
        free, waiting = self.beside(jobs), [job for job in jobs if job.phase == "queued"]

        def devices(count: int) -> dict[str, int]:
            return {gpu_resource: count} if self.devices else {}

        return Capacity(
            Amount(self.cpus, self.memory, devices(len(self.devices))),
            Amount(
                max(0, free.cpus - sum(job.cpus for job in waiting)),
                max(0, free.memory - sum(job.memory for job in waiting)),
                devices(max(0, len(free.devices) - sum(job.gpus for job in waiting))),
            ),
        )


def measure(config: Local) -> MachineResources:
    """Return the configured resources, or else those of the machine."""
    memory = config.memory and int(quantity.parse(config.memory))
    gpus = _machine_gpus() if config.gpus is None else config.gpus
    return MachineResources(config.cpus or cpus.count(), memory or _machine_memory(), list(range(gpus)))


def _machine_memory() -> int:
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    raise BatchError("/proc/meminfo has no line MemTotal")


def _machine_gpus() -> int:
    with contextlib.suppress(OSError):
        return sum(1 for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name, re.ASCII))
    return 0
