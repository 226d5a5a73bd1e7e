"""The section ``[local]`` of ``site.toml``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from bridge.script.settings import SettingsPart
from bridge.site.batch.batch_interface import Environment
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
