"""How long a job probably waits in the queue of a place: from the jobs that were submitted there. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from bridge.slurm import states
from bridge.slurm.models import Job

HISTORY = 3600.0
"""Seconds for which the wait of a job that has started counts."""
SHORT = 10.0
"""Seconds below which a wait counts as none: less than the time between two answers of a batch system."""

NOT_QUEUED = ("Dependency", "JobHeld", "JobHold", "RequeueHold", "BeginTime", "Held")
"""Beginnings of the reasons of pending jobs that do not wait their turn: Slurm's, and those of PBS and HTCondor."""
Times = tuple[float, float | None]
"""When a job was submitted, and when it started, in seconds since 1970; ``None``: it waits."""


def expected_wait(jobs: Iterable[Times], now: float) -> float:
    """Return the seconds that a job submitted ``now`` probably waits; 0 for a place without a queue or a history.

    It is the median wait of the jobs that started lately, and no less than the oldest waiting job has waited already.
    A wait has one significant digit: a node is written and decisions are made again only when it changes by much.
    """
    waits: list[float] = []
    oldest = 0.0
    for submitted, started in jobs:
        if started is None:
            oldest = max(oldest, now - submitted)
        elif now - started <= HISTORY:
            waits.append(max(0.0, started - submitted))
    wait = max(oldest, median(waits) if waits else 0.0)
    return 0.0 if wait < SHORT else float(f"{wait:.1g}")


def of_slurm(jobs: Iterable[Job], now: float) -> float:
    """Return the expected wait in the colocated Slurm, from jobs there."""
    # Slurm sets the expected start of a pending job, too
    times = (
        (job.submit_time, None if states.is_pending(job.states) else job.start_time)
        for job in jobs
        if job.submit_time and not (states.is_pending(job.states) and not is_queued(job.reason))
    )
    return expected_wait(times, now)


def is_queued(reason: str) -> bool:
    """Whether a pending job with this reason waits its turn, not for a dependency, its begin or the end of a hold."""
    return not reason.startswith(NOT_QUEUED)
