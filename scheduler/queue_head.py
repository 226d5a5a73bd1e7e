"""The pending jobs that Slurm probably starts next: only their excluded nodes are kept up to date."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from bridge.slurm.models import Job, ObservedJob
from bridge.slurm.states import is_pending

HEAD = 1000
"""Number of jobs of each partition. Slurm's backfill scheduler considers 500 by default (``bf_max_job_test``)."""
PERIOD = 2.0
"""Seconds for which the head is kept: to sort 10,000 jobs took a third of a decision about all pods."""


class QueueHead:
    """The head of the queue, computed at most every ``PERIOD`` seconds."""

    def __init__(self) -> None:
        self._head: Set[int] = frozenset()
        self._until = -math.inf

    def of(self, jobs: Mapping[int, ObservedJob], now: float) -> Set[int] | None:
        """Return the ids of the jobs that Slurm probably starts next; ``None`` if there are so few that all count.

        ``now`` is in monotonic seconds.
        """
        if len(jobs) <= HEAD:
            return None
        if now >= self._until:
            self._head, self._until = head(jobs), now + PERIOD
        return self._head


def head(jobs: Mapping[int, ObservedJob]) -> Set[int]:
    """Return the ids of the first ``HEAD`` pending jobs of podbridge in each partition."""
    jobs_by_partition: dict[str, list[Job]] = {}
    for observed in jobs.values():
        if not observed.missing and is_pending(observed.job.states):
            jobs_by_partition.setdefault(observed.job.partition, []).append(observed.job)
    return {job.job_id for queue in jobs_by_partition.values() for job in sorted(queue, key=start_order)[:HEAD]}


def start_order(job: Job) -> tuple[float, float, int]:
    """Return a key by which jobs sort as Slurm probably starts them: by priority, then by expected start."""
    return (-job.priority, job.start_time or math.inf, job.job_id)
