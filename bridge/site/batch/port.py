"""The port: what a batch system does for the submitter.

Every method raises :class:`bridge.errors.BatchError`; ``retryable`` where the batch system may answer later.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from bridge.script.buildconfig import Flavor

NAME_PREFIX = "pb-"
"""Of the names of batch jobs: the pod's UID follows."""

Phase = Literal["queued", "running", "ended", "missing"]
"""``missing``: a started job that the batch system no longer knows. Only the watcher says so, of its own."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to ask for: one machine, ``cpus`` of it, ``memory`` bytes, for ``time_limit`` seconds (none: the default).

    ``folder`` is the job's folder; ``flags`` are the user's words, where the site takes any. ``most_seconds`` is the
    site's limit of time, which ``flags`` must keep (none: there is no limit).
    """

    uid: str
    folder: Path
    cpus: int = 1
    memory: int = 0
    gpus: int = 0
    gpu_resource: str = ""
    time_limit: float | None = None
    flavor: Flavor | None = None
    flags: tuple[str, ...] = ()
    most_seconds: float | None = None

    @property
    def name(self) -> str:
        """Name of the batch job: found by it after a submit without an answer."""
        return NAME_PREFIX + self.uid


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job as the batch system tells it. Times are seconds since 1970.

    ``reason`` is CamelCase. An ended job with ``by_itself`` came to the end of its script, whose own record says how;
    the others were ended from outside, and ``reason`` says why.
    """

    id: str
    uid: str
    phase: Phase
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int = 0
    host: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    by_itself: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """CPUs, bytes of memory and devices by extended resource."""

    cpus: int = 0
    memory: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the batch system has in working order, and what of it nobody uses now."""

    total: Amount
    free: Amount


class BatchSystem(Protocol):
    """One batch system. All methods may be called by several threads."""

    kind: str
    period: float
    """Seconds between two looks, unless configured."""
    lag: float
    """Seconds that a shared folder may take to show what a job wrote, unless configured."""
    eager: bool
    """Whether a look is cheap, so that one is taken after every change."""

    def version(self) -> str:
        """Give the version, e.g. ``slurm 24.11.5``."""

    def submit(self, request: JobRequest) -> str:
        """Have a job run; gives its id.

        Raises
        ------
        BatchUnknownOutcomeError
            No answer came: the job may be there, or appear yet.
        BatchError
            It is surely not there.
        """

    def find(self, uid: str) -> str | None:
        """Look by name for the job of a pod."""

    def cancel(self, ids: Collection[str]) -> None:
        """End jobs; those that have ended are no error."""

    def jobs(self) -> dict[str, BatchJob]:
        """Tell of all own jobs whose names begin with :data:`NAME_PREFIX`, by id, in one query."""

    def past(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """Tell how jobs ended that :meth:`jobs` no longer tells of, as far as there are records."""

    def capacity(self) -> Capacity:
        """Measure what there is."""


def job_environment(configured: Mapping[str, str]) -> dict[str, str]:
    """Give the variables of a job: those configured, else a few harmless ones of this process."""
    if configured:
        return dict(configured)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "LANG") if name in os.environ}
    return {"PATH": os.defpath, **kept}
