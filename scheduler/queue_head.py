"""The pending jobs that Slurm probably starts next: only their excluded nodes are kept up to date."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

from bridge.slurm.models import Job, ObservedJob
from bridge.slurm.states import is_pending

HEAD = 1000
"""Number of jobs of each partition. Slurm's backfill scheduler considers 500 by default (``bf_max_job_test``)."""


class QueueHead:
    """The first ``HEAD`` pending jobs of podbridge in each partition; computed when it is needed."""

    def __init__(self, jobs: Mapping[int, ObservedJob]) -> None:
        self._jobs = jobs

    def __contains__(self, job_id: int) -> bool:
        return len(self._jobs) <= HEAD or job_id in self._head

    @cached_property
    def _head(self) -> set[int]:
        queues: dict[str, list[Job]] = {}
        for known in self._jobs.values():
            if not known.missing and is_pending(known.job.states):
                queues.setdefault(known.job.partition, []).append(known.job)
        return {job.job_id for queue in queues.values() for job in sorted(queue, key=start_order)[:HEAD]}


def start_order(job: Job) -> tuple[float, float, int]:
    """Return a key by which jobs sort as Slurm probably starts them: by priority, then by expected start."""
    return (-job.priority, job.start_time or math.inf, job.job_id)
