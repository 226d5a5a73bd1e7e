"""The use of CPU and memory by the containers of running jobs, as a site measures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from bridge.protocol.model.identifiers import Uid
from bridge.protocol.model.jobs import MOST_CONTAINERS, Text

_RECORD = ConfigDict(extra="ignore")
_LARGEST = 2**62
MOST_JOBS = 500
"""Jobs in one request."""

Amount = Annotated[float, Field(ge=0, le=_LARGEST, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class ContainerUse:
    """The use of one run of a container: the one after so many ``restarts``.

    ``cpu``: seconds of CPU time since its start. ``memory``: bytes of its working set.
    """

    name: Text
    restarts: int
    cpu: Amount
    memory: Annotated[int, Field(ge=0, le=_LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True, config=_RECORD)
class JobUsage:
    """The use of the running containers of a job, measured ``at``, in seconds since 1970."""

    job: Uid
    at: Amount
    containers: Annotated[Sequence[ContainerUse], AfterValidator(lambda found: found[:MOST_CONTAINERS])]
