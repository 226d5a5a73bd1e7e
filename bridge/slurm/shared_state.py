"""The state of the poller that several threads change: polls, reads of single jobs, and submissions."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bridge.clock import Clock
from bridge.slurm.hinted_jobs import carried, known_jobs, merge_one, merge_some
from bridge.slurm.merging import merge
from bridge.slurm.models import Job, JobLink
from bridge.slurm.poll_state import Answers, Expected, PollState
from bridge.slurm.query_plan import doubted


class SharedState:
    """The last state, and the jobs that no poll has read yet: each published snapshot contains every one of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._expected: dict[int, Expected] = {}
        self._read_alone: set[int] = set()  # the jobs that were read alone since the poll in progress began
        self.last = PollState()
        """The state after the last poll or read; any thread reads it without the lock."""
        self.merges = 0
        """Counts the changes of the state by polls."""

    @property
    def expected(self) -> Mapping[int, Expected]:
        """The jobs that no poll has read yet."""
        with self._lock:
            return dict(self._expected)

    @property
    def awaits_jobs(self) -> bool:
        """Whether there are such jobs."""
        return bool(self._expected)

    def expect(self, job_id: int, link: JobLink, *, sure: bool) -> None:
        """Add a job that the next snapshots contain or, if not ``sure``, report as missing."""
        with self._lock:
            if sure or job_id not in self._expected:
                self._expected[job_id] = Expected(link, self._clock.monotonic(), sure)

    def own(self, job_ids: Iterable[int]) -> frozenset[int]:
        """Return those of the jobs that podbridge knows as its own."""
        with self._lock:
            return known_jobs(self.last, self._expected, job_ids)

    def begin_poll(self) -> PollState:
        """Return the state before a poll. What is read alone from now on may be newer than the answers of the poll."""
        with self._lock:
            self._read_alone.clear()
            return self.last

    def merge_poll(self, before: PollState, answers: Answers, cluster: str, changed_at: int) -> PollState:
        """Add the answers of a poll to the state ``before`` it; return the next state."""
        # under the lock, so that the published snapshot contains every job added meanwhile
        with self._lock:
            merged = carried(merge(before, answers, self._expected, cluster), self.last, self._read_alone)
            self.merges += 1
            self.last = replace(merged, changed_at=changed_at)
            # a job that was submitted after the request for the list is in neither, and stays expected
            for job_id in [*merged.listed, *answers.unknown]:
                self._expected.pop(job_id, None)
            return self.last

    def merge_details(self, answers: Answers) -> int | None:
        """Add the answers of a poll without a witness; return a job id that was used again."""
        with self._lock:
            merged = merge_some(self.last, self._expected, answers, self._read_alone)
            if not isinstance(merged, PollState):
                return merged
            self.last, self.merges = merged, self.merges + len(answers.details)
            return None

    def merge_job(self, job: Job, began: float, merges: int) -> bool | None:
        """Add a job that was read alone when ``merges`` polls had changed the state; return whether it was added.

        False: it is not the job that podbridge knows. ``None``: a poll has changed the state since, and may be newer.
        """
        with self._lock:
            if self.merges != merges:
                return None
            merged = merge_one(self.last, self._expected, job, began)
            if merged is not None:
                self.last = merged
                self._read_alone.add(job.job_id)
            return merged is not None

    def doubt_expected(self) -> None:
        """Check the comment of every job submitted so far: slurmctld may have lost it, and assigned its id again."""
        with self._lock:
            self._expected = {job_id: replace(each, sure=False) for job_id, each in self._expected.items()}

    def fail(self, error: str) -> None:
        """Record a failed poll. slurmctld may have been killed before it saved its last jobs."""
        self.doubt_expected()
        with self._lock:
            failed = replace(self.last.snapshot, error=error)
            self.last = replace(doubted(self.last), snapshot=failed)
