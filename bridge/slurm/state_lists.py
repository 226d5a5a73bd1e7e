"""Selects and reads the list of states of one poll: those of all jobs, or only those of podbridge's jobs.

slurmrestd frees a list of n jobs in a time that grows with the square of n: 60,000 jobs take 26 s of its CPU time,
observed with 26.05.5. A request with ids has no such cost: the same jobs, 2,500 by 2,500, take 0.8 s. So while the list
of all jobs is expensive, a poll asks only for podbridge's jobs. The list of all jobs is then read for two purposes: to
find a job that a request without an answer has created, and to find jobs whose pods are gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.slurm.client import SlurmClient
from bridge.slurm.models import JobLink
from bridge.slurm.poll_state import Expected, PollState, States

CHEAP = 0.25
"""Seconds. As long as the list of all jobs takes less time, every poll reads it: about 6,000 jobs."""
SHARE = 100.0
"""Seconds between two lists of all jobs, as a multiple of the time of the last one: 1 % of one core."""
SHARE_IF_WANTED = 1.0
"""As ``SHARE``, while a job without a known id may exist."""

Known = Callable[[Callable[[int], bool]], Mapping[int, JobLink]]
"""Returns the jobs on pods whose ids pass a filter."""


@dataclass(frozen=True, slots=True)
class StateList:
    """The states of one poll.

    ``states`` are those of all jobs, as far as they are known. ``listed`` are those in the answers of this poll, and
    ``complete`` tells whether these answers contain all jobs. ``seconds`` is the time of the requests.
    """

    states: States
    listed: States
    complete: bool
    seconds: float


class StateLists:
    """Reads one list of states for each poll. ``known`` returns jobs that are podbridge's before any list is read."""

    def __init__(self, client: SlurmClient, clock: Clock, known: Known | None) -> None:
        self._client, self._clock, self._known = client, clock, known
        self._seconds = 0.0
        self._ended = -math.inf
        self._wanted = False

    def want_all(self) -> None:
        """Read the list of all jobs soon: a job without a known id may exist."""
        self._wanted = True

    @property
    def wanted(self) -> bool:
        """Whether the list of all jobs is to be read soon."""
        return self._wanted

    def on_pods(self, last: PollState) -> Mapping[int, JobLink]:
        """Return the jobs on pods that the snapshot lacks, while polls do not read the list of all jobs."""
        if self._known is None or self._is_cheap(last):
            return {}
        jobs, foreign = last.snapshot.jobs, last.foreign
        return self._known(lambda job_id: job_id not in jobs and job_id not in foreign)

    def read(self, last: PollState, expected: Mapping[int, Expected], began: float) -> StateList:
        """Read the states that a poll needs. Raises the errors of the client."""
        if self._is_due(last, began, expected):
            return self._all()
        asked = [job_id for job_id, job in last.snapshot.jobs.items() if not job.is_confirmed]
        ids = {*asked, *expected}
        at = self._clock.monotonic()
        if ids:
            listed = self._client.job_states(sorted(ids))
        else:
            listed = {}
            self._client.ping()  # a poll succeeds only if slurmctld answers
        rest = {job_id: now for job_id, now in {**last.listed, **last.unread}.items() if job_id not in ids}
        seconds = self._clock.monotonic() - at
        return StateList({**rest, **listed}, listed, complete=False, seconds=seconds)

    def _is_due(self, last: PollState, began: float, expected: Mapping[int, Expected]) -> bool:
        """Whether this poll reads the list of all jobs. Before the first one, the jobs on pods are read."""
        if self._is_cheap(last):
            return True
        if not last.list_began:
            return self._ended > -math.inf or (not expected and not last.unread)
        return began - self._ended >= self._seconds * (SHARE_IF_WANTED if self._wanted else SHARE)

    def _is_cheap(self, last: PollState) -> bool:
        """Whether every poll reads the list of all jobs. Until the first one was read, its time is estimated."""
        if self._ended == -math.inf and self._known is not None and not last.snapshot.sequence:
            self._seconds = self._client.estimate_list()
        return self._seconds <= CHEAP

    def _all(self) -> StateList:
        self._wanted = False
        at = self._clock.monotonic()
        listed = self._client.job_states()
        self._ended = self._clock.monotonic()
        self._seconds = self._ended - at
        return StateList(listed, listed, complete=True, seconds=self._seconds)
