"""What is known of one job at the site: what was asked for, what the batch system says, what the script wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.site.batch.port import BatchJob


@dataclass(frozen=True, slots=True)
class Meta:
    """The request without its script. ``attempted_at``: when the batch system was last asked.

    ``owner``: the cluster that submitted it; empty in folders of versions that kept none.
    """

    namespace: str
    name: str
    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    time_limit: float | None
    flags: tuple[str, ...]
    flavor: str
    grace: float
    submitted_at: float
    attempted_at: float
    attempts: int = 1
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """``cancel.json``: the end is wanted after ``grace`` seconds.

    ``at`` is for people: the clock of the machine that took the request. The grace period is counted from when the
    submitter on duty first reads this, by its own clock.
    """

    at: float
    grace: float
    forget: bool = False


@dataclass(frozen=True, slots=True)
class BatchObservation:
    """``batch.json``: what the batch system says, and when it was first heard to."""

    at: float
    job: BatchJob


@dataclass(frozen=True, slots=True)
class JobRecord:
    """All that a job's folder says. ``pod`` and ``containers`` are the script's own records, not checked yet."""

    uid: str
    meta: Meta
    job_id: str = ""
    started: bool = False
    started_job: str = ""
    pod: dict[str, Any] | None = None
    containers: tuple[tuple[str, dict[str, Any]], ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    batch: BatchJob | None = None
    batch_at: float = 0.0
    """When the batch system was first heard to say so."""
    cancel: Cancellation | None = None
    found_at: float = 0.0
    """When this process began to look: only from then on can it have heard why something ended."""

    @property
    def final(self) -> bool:
        """Whether the script wrote down its end."""
        return self.pod is not None and self.pod.get("phase") in ("Succeeded", "Failed")
