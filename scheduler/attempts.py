"""What the scheduler remembers of a waiting pod between two looks. All of it may be lost at any moment."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from bridge.backoff import Backoff

REFUSED = Backoff(first=5, limit=300)
"""After Slurm's or our own "no": somebody has to change something."""
UNAVAILABLE = Backoff(first=1, limit=30)
"""After no answer."""


@dataclass(slots=True)
class Attempt:
    """One pod's memory. Times are monotonic seconds; 0 where there is none.

    ``submitted`` is a job that this process has just got from Slurm and that the snapshot may not show yet.
    ``waking_since`` says since when its job has a node that Slurm's power saving starts. ``unknown_at`` says when the
    outcome of a submit was lost. ``told`` is the last condition written. ``cancelled`` holds jobs of the pod that this
    process has cancelled and that the snapshot may still show as live. ``busy_since`` says since when the node of its
    job has had no room.
    """

    failures: int = 0
    not_before: float = 0
    exclude_not_before: float = 0
    unknown_at: float = 0
    submitted: int = 0
    submitted_at: float = 0
    pending_since: float = 0
    busy_since: float = 0
    waking_since: float = 0
    bound: bool = False
    told: tuple[str, str] = ("", "")
    told_at: float = 0
    problem: tuple[str, str] = ("", "")
    excluded: tuple[str, ...] | None = None
    cancelled: set[int] = field(default_factory=set)

    def failed(self, now: float, backoff: Backoff, reason: str, message: str) -> None:
        """Remember a failure: when to try again, and what to tell the user meanwhile."""
        self.failures += 1
        self.not_before = now + backoff.delay(self.failures)
        self.problem = (reason, message)

    def succeeded(self, job: int, now: float) -> None:
        """Remember the job that Slurm gave."""
        self.failures, self.not_before, self.unknown_at, self.problem = 0, 0, 0, ("", "")
        self.exclude_not_before = 0
        self.submitted, self.submitted_at, self.pending_since, self.waking_since = job, now, now, 0
        self.cancelled.discard(job)  # an earlier job with this id


@dataclass(slots=True)
class Attempts:
    """The memory of all pods, by UID."""

    by_uid: dict[str, Attempt] = field(default_factory=dict)

    def of(self, uid: str) -> Attempt:
        """Give the pod's memory, making it where there is none."""
        attempt = self.by_uid.get(uid)
        if attempt is None:
            attempt = self.by_uid[uid] = Attempt()
        return attempt

    @property
    def unsettled(self) -> bool:
        """Whether the outcome of a submit is unknown."""
        return any(attempt.unknown_at for attempt in list(self.by_uid.values()))

    @property
    def busy(self) -> int:
        """How many pods wait for room on the node that Slurm gave."""
        return sum(1 for attempt in self.by_uid.values() if attempt.busy_since)

    def forget_all_but(self, uids: Set[str]) -> None:
        """Drop the memory of pods that wait no more."""
        for uid in self.by_uid.keys() - uids:
            del self.by_uid[uid]
