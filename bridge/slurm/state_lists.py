"""Selects and reads the list of states of one poll: those of all jobs, or only those of podbridge's jobs.

slurmrestd frees a list of n jobs in a time that grows with the square of n: 60,000 jobs take 26 s of its CPU time,
observed with 26.05.5. A request with ids has no such cost: the same jobs, 2,500 by 2,500, take 0.8 s. So while the list
of all jobs is expensive, a poll asks only for podbridge's jobs. The list of all jobs is then read for two purposes: to
find a job that a request without an answer has created, and to find jobs whose pods are gone. A thread of its own reads
it, so that the polls go on meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.slurm.components import is_over
from bridge.slurm.models import JobLink
from bridge.slurm.poll_state import Expected, PollState, States
from bridge.slurm.slurm_client import SlurmClient

log = logging.getLogger(__name__)

CHEAP = 0.25
"""Seconds. As long as the list of all jobs takes less time, every poll reads it: about 6,000 jobs."""
ALWAYS_CHEAP = 2000
"""Number of jobs up to which the list is cheap, whatever time it took: then the machine has other work."""
SHARE = 100.0
"""Seconds between two lists of all jobs, as a multiple of the time of the last one: 1 % of one core."""
SHARE_IF_WANTED = 1.0
"""As ``SHARE``, while a job without a known id may exist."""

JobsOnPods = Callable[[Callable[[int], bool]], Mapping[int, JobLink]]
"""Returns the jobs on pods whose ids pass a filter."""
Start = Callable[[Callable[[], None]], None]
"""Runs a function beside the polls."""


def in_thread(run: Callable[[], None]) -> None:
    """Run a function in a thread that does not keep the process from its end."""
    threading.Thread(target=run, name="slurm-list", daemon=True).start()


@dataclass(frozen=True, slots=True)
class StateList:
    """The states of one poll.

    ``states`` are those of all jobs, as far as they are known. ``listed`` are those in new answers, and ``complete``
    tells whether these answers contain all jobs; they were requested at ``list_began`` or later. ``cheap``: each poll
    reads the list of all jobs; otherwise ``seconds`` is the time of the requests with ids.
    """

    states: States
    listed: States
    complete: bool
    list_began: float
    cheap: bool = False
    seconds: float = 0


class StateLists:
    """Reads one list of states for each poll. Only for the poller's thread, except :meth:`require_list`.

    ``jobs_on_pods`` returns podbridge's jobs before any list is read. ``start`` runs the request for an expensive list
    of all jobs.
    """

    def __init__(
        self, client: SlurmClient, clock: Clock, jobs_on_pods: JobsOnPods | None, start: Start = in_thread
    ) -> None:
        self._client, self._clock, self._jobs_on_pods, self._start = client, clock, jobs_on_pods, start
        self._seconds = 0.0
        self._began = self._ended = self._not_before = -math.inf
        self._requested = self._running = self._delivered = False
        self._full_list: tuple[float, States] | None = None

    def require_list(self, at: float | None = None) -> None:
        """Read a list of all jobs that is requested at the monotonic time ``at`` (now) or later, as soon as possible.

        A job without a known id may exist.
        """
        at = self._clock.monotonic() if at is None else at
        if self._began >= at:
            return
        self._not_before = max(self._not_before, at)
        self._requested = True

    def poll_failed(self) -> None:
        """Read the list of all jobs again if the poll that has failed was the one to use it."""
        if self._delivered:
            self._began, self._requested, self._delivered = -math.inf, True, False

    @property
    def is_requested(self) -> bool:
        """Whether the list of all jobs is to be read soon."""
        return self._requested

    def on_pods(self, last: PollState, expected: Set[int]) -> Mapping[int, JobLink]:
        """Return the jobs on pods that are new to the poller, while polls do not read the list of all jobs.

        Those are in neither the snapshot nor ``expected``.
        """
        if self._jobs_on_pods is None or self._is_cheap(last):
            return {}
        jobs, foreign = last.snapshot.jobs, last.foreign
        return self._jobs_on_pods(lambda job_id: not (job_id in jobs or job_id in foreign or job_id in expected))

    def read(self, last: PollState, expected: Mapping[int, Expected]) -> StateList:
        """Read the states that a poll needs. Raises the errors of the client."""
        if self._is_cheap(last):
            began, self._requested, self._delivered, self._full_list = self._clock.monotonic(), False, False, None
            listed = self._read_all_states()
            return StateList(listed, listed, complete=True, list_began=began, cheap=True)
        jobs = last.snapshot.jobs.items()
        # an end needs a second answer, and a heterogeneous job has ended only with all of its components
        live_jobs = [job_id for job_id, job in jobs if not job.is_confirmed or not is_over(job.job)]
        ids = {*live_jobs, *expected}
        requested_at = self._clock.monotonic()
        if ids:
            listed = self._client.job_states(sorted(ids))
        else:
            listed = {}
            self._client.ping()  # a poll succeeds only if slurmctld answers
        seconds = self._clock.monotonic() - requested_at
        full_list, self._full_list = self._full_list, None
        self._delivered = full_list is not None
        earlier = (
            {**last.listed, **last.unread}
            if full_list is None
            else {**full_list[1], **_ended_since(full_list[0], last, ids)}
        )
        states = {**earlier, **listed}
        for job_id in ids - listed.keys():
            # requested by its id and not returned: slurmctld does not list it, and the details confirm that
            states.pop(job_id, None)
        if full_list is None and self._is_due(last, requested_at):
            # before the start: the thread resets them if the request fails
            self._running, self._requested, self._began = True, False, requested_at
            self._start(self._read_in_background)
        if full_list is not None:
            return StateList(states, states, complete=True, list_began=full_list[0], seconds=seconds)
        return StateList(states, listed, complete=False, list_began=0, seconds=seconds)

    def _is_due(self, last: PollState, now: float) -> bool:
        """Whether an expensive list of all jobs is to be read now. A standby, which wants none, reads none."""
        if self._running or now < self._not_before:
            return False
        if not last.list_began and self._ended > -math.inf:
            return True  # the poller has forgotten what it had read
        if not self._requested:
            return now - self._ended >= self._seconds * SHARE and bool(last.list_began)
        return now - self._ended >= self._seconds * SHARE_IF_WANTED

    def _is_cheap(self, last: PollState) -> bool:
        """Whether every poll reads the list of all jobs. Until the first one was read, its time is estimated."""
        if self._ended == -math.inf and self._jobs_on_pods is not None and not last.snapshot.sequence:
            self._seconds = self._client.estimate_list()
        return self._seconds <= CHEAP

    def _read_in_background(self) -> None:
        """Read the list of all jobs for the next poll. After a failure, the list remains requested."""
        began = self._clock.monotonic()
        try:
            self._full_list = began, self._read_all_states()
        except BridgeError as error:
            log.warning("list of all jobs cannot be read", extra=kv(error=error))
            self._began, self._ended, self._requested = -math.inf, self._clock.monotonic(), True
            self._seconds = max(self._seconds, self._ended - began)
            self._not_before = max(self._not_before, self._ended + self._seconds * SHARE_IF_WANTED)
        finally:
            self._running = False

    def _read_all_states(self) -> States:
        began = self._clock.monotonic()
        listed = self._client.job_states()
        self._ended = self._clock.monotonic()
        self._seconds = self._ended - began if len(listed) > ALWAYS_CHEAP else 0.0
        return listed


def _ended_since(at: float, last: PollState, live_jobs: Set[int]) -> States:
    """Return the last states of the jobs that have ended since the monotonic time ``at`` and are not in ``live_jobs``.

    A list of all jobs that was requested at that time may show them as still running.
    """
    jobs = last.snapshot.jobs.items()
    ended = (job_id for job_id, job in jobs if job_id not in live_jobs and job.since >= at)
    return {job_id: last.listed[job_id] for job_id in ended if job_id in last.listed}
