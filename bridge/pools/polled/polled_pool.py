"""The base of pools whose sites cannot list their jobs, and publish nothing: everything is requested periodically.

The hub passes the pods whose jobs are to be polled. One request has many of them, if the site supports this.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bridge.clock import Clock
from bridge.core.retries import Backoff
from bridge.core.threads import Supervisor, at_once
from bridge.errors import SiteDownError, SiteError, SiteNoStateError, SiteUnknownOutcomeError, UnknownJobError
from bridge.logs import kv
from bridge.pools.polled.followed_jobs import FollowedJobs
from bridge.pools.pool_interface import Pod, Pool
from bridge.pools.registry import PoolSource
from bridge.protocol.model.announcement import Announcement
from bridge.protocol.model.jobs import JobStatus
from bridge.telemetry.metrics import POOL_POLL_SECONDS, POOL_REQUESTS, counted
from bridge.workload.pods import uid as uid_of

log = logging.getLogger(__name__)

Changed = Callable[[str], None]

_BACKOFF = Backoff(first=1.0, limit=30.0, jitter=0.1)


FAILED_PINGS = 3
"""Number of failed pings in a row after which the pool accepts no pods. A site that is started again misses one."""
THREADS = 4
"""Concurrent requests of one poll: many sites answer one request at a time."""


class PolledPool(abc.ABC):
    """The parts of :class:`bridge.pools.pool_interface.Pool` that need no transport. Thread-safe.

    A subclass implements the abstract methods and the rest of the interface. It applies each other answer about a job
    to :attr:`follows`.

    ``poll_period`` and ``ping_period``: seconds between two polls of all jobs, and between two pings. ``batch``: pods
    in one request for states, at most. ``late``: seconds after its time-out for which the site may still carry out a
    submission that got no answer: the API has no deadlines, and a batch system can take long to accept a job.
    ``statement``: see :class:`bridge.pools.pool_interface.FollowsPods`.
    """

    lists = folders = holds = refreshes = None
    gangs = heterogeneous_gangs = False
    flavor_limits = ""
    sessions = connections = reaches = usage = None

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        poll_period: float,
        ping_period: float,
        batch: int,
        late: float = 60.0,
        statement: str = "",
    ) -> None:
        self.name = name
        self.late = late
        self._clock, self._batch = clock, batch
        self._poll_period, self._ping_period = poll_period, ping_period
        self.follows = FollowedJobs(name, poll_period, self._notify, self._forget, statement)
        self.job, self.jobs = self.follows.job, self.follows.jobs
        self._announced: tuple[Announcement, float] | None = None
        self._subscribers: list[Changed] = []
        self._problem = ""
        self._failed_pings = self._failed_polls = 0

    # --- requests of a subclass ---------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _fetch(self, pods: Sequence[Pod]) -> Mapping[str, JobStatus | None]:
        """Request the states of up to ``batch`` jobs by UID; ``None``: the site does not know the job.

        A job without a usable answer is absent from the result. Raises :class:`SiteError`. After UnknownJobError, a
        poll goes on.
        """

    @abc.abstractmethod
    def _ping(self) -> None:
        """Request the state of the site. Raises :class:`SiteError` if the site does not work."""

    @abc.abstractmethod
    def _announcement(self, problem: str) -> Announcement:
        """Return the last state of the site, which may not have answered since this process started."""

    def _forget(self, job: str) -> None:  # noqa: B027
        """Remove what is recorded of a job that is no longer followed."""

    # --- the port -----------------------------------------------------------------------------------------------------
    def announced(self) -> tuple[Announcement, float] | None:
        """Return the state of the site, and the monotonic time of its last answer; ``None`` before the first ping."""
        return self._announced

    def status(self, pod: Pod) -> JobStatus | None:
        """Request the state of one job; ``None`` if the site does not know it.

        Every error is retryable: it says nothing about the job.
        """
        job, requested_at = uid_of(pod), self._clock.monotonic()
        with retryable(), self._requesting("status"):
            statuses = self._fetch([self.follows.whole(pod)])
            if job not in statuses:
                raise SiteNoStateError(f"pool {self.name}: the answer has no valid state of pod {_name(pod)}")
        self.follows.apply(statuses, requested_at)
        return statuses[job]

    def complete_at(self) -> float | None:
        """Return the monotonic time at which the last successful request was sent; ``None`` before the first."""
        return self.follows.answered_at

    def subscribe(self, changed: Changed) -> None:
        """Call ``changed`` after each change: with the pod's UID, or with an empty string for the announcement."""
        self._subscribers.append(changed)

    def _notify(self, job: str) -> None:
        for subscriber in self._subscribers:
            subscriber(job)

    # --- the loops ----------------------------------------------------------------------------------------------------
    def start(self, supervisor: Supervisor) -> None:
        """Start to ping and to poll the site."""
        supervisor.spawn(f"ping-{self.name}", lambda: self._run(supervisor, self.ping, self._ping_period))
        supervisor.spawn(f"poll-{self.name}", lambda: self._run(supervisor, self.poll, self._poll_period))

    def _run(self, supervisor: Supervisor, call: Callable[[], int], period: float) -> None:
        """Repeat ``call``, which returns its number of failures in a row, every ``period`` seconds."""
        while not supervisor.stopping.is_set():
            began = self._clock.monotonic()
            failures = call()
            pause = _BACKOFF.delay(failures) if failures else 0.0
            supervisor.wait(max(pause, began + period - self._clock.monotonic(), 0.05))

    def ping(self) -> int:
        """Ping the site once; return the number of failed pings in a row."""
        requested_at = self._clock.monotonic()
        try:
            with self._requesting("ping"):
                self._ping()
                announcement = self._announcement("")
        except SiteError as error:
            self._failed_pings += 1
            self._log_failure("the site of a pool does not answer a ping", self._failed_pings, error)
            self._problem = error.with_hint
            last_announced = self._announced
            if last_announced is None:
                self._announced = self._announcement(self._problem), requested_at
            elif self._failed_pings >= FAILED_PINGS:
                # the time of the last answer stays: the virtual node is NotReady at once, and silent later
                self._announced = last_announced[0].model_copy(update={"problem": self._problem}), last_announced[1]
        else:
            self._failed_pings, self._problem = 0, ""
            self.follows.answered(requested_at)
            self._announced = announcement, self._clock.monotonic()
        self._notify("")
        return self._failed_pings

    def poll(self) -> int:
        """Request the states of the followed jobs once; return the number of failed polls in a row."""
        began = self._clock.monotonic()
        due = self.follows.due(began)
        batches = [due[index : index + self._batch] for index in range(0, len(due), self._batch)]
        try:
            failed = at_once(THREADS, lambda index: self._poll_batch(batches[index]), range(len(batches)))
        except (SiteDownError, SiteUnknownOutcomeError) as error:  # the site does not answer: do not send the others
            return self._count_poll(error)
        if batches:
            POOL_POLL_SECONDS.labels(self.name).observe(self._clock.monotonic() - began)
        return self._count_poll(next((error for error in failed.values() if error is not None), None))

    def _poll_batch(self, pods: Sequence[Pod]) -> SiteError | None:
        """Request the states of some jobs; return the error if the site refuses, raise it if the site is down."""
        requested_at, statuses = self._clock.monotonic(), dict[str, JobStatus | None]()
        try:
            with self._requesting("poll"), contextlib.suppress(UnknownJobError):
                statuses.update(self._fetch(pods))
        except SiteError as error:
            if isinstance(error, SiteDownError | SiteUnknownOutcomeError):
                raise
            return error
        self.follows.apply(statuses, requested_at)
        return None

    @contextlib.contextmanager
    def _requesting(self, request: str) -> Iterator[None]:
        """Count a request that reads; log any error but SiteError, and raise that instead.

        An answer from outside must not end this process.
        """
        with counted(POOL_REQUESTS, self.name, request):
            try:
                yield
            except SiteError:
                raise
            except Exception as error:
                log.exception("an answer of a pool's site could not be handled", extra=kv(pool=self.name))
                raise SiteError(f"the site's answer could not be handled: {type(error).__name__}") from error

    def _count_poll(self, error: SiteError | None) -> int:
        self._failed_polls = 0 if error is None else self._failed_polls + 1
        if error is not None:
            self._log_failure("the states of a pool's jobs could not be requested", self._failed_polls, error)
        return self._failed_polls

    def _log_failure(self, text: str, failures: int, error: SiteError) -> None:
        # the 1st, 2nd, 4th, 8th ... failure: a site may be down for days
        if failures & (failures - 1) == 0:
            log.warning(text, extra=kv(pool=self.name, failures=failures, error=error, hint=error.hint))


class StartedPool(Pool, Protocol):
    """A pool with threads of its own."""

    def start(self, supervisor: Supervisor) -> None:
        """Start them."""


class PolledPools(PoolSource):
    """Pools that the configuration defines."""

    def __init__(self, pools: Iterable[StartedPool]) -> None:
        self._pools = {pool.name: pool for pool in pools}

    def start(self, supervisor: Supervisor) -> None:
        """Start all pools."""
        for pool in self._pools.values():
            pool.start(supervisor)

    def pools(self) -> Mapping[str, StartedPool]:
        """Return all pools by name."""
        return dict(self._pools)

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        """Call ``changed`` after each change, with the pool's name, and the UID of a job or an empty string."""
        for name, pool in self._pools.items():
            pool.subscribe(functools.partial(changed, name))


@contextlib.contextmanager
def retryable() -> Iterator[None]:
    """Make the error of a request that reads retryable: it says nothing about a job, and no pod is to blame."""
    try:
        yield
    except SiteError as error:
        if error.retryable:
            raise
        raise SiteNoStateError(str(error), hint=error.hint) from error


def _name(pod: Pod) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}"


def authorization(path: Path | None) -> dict[str, str]:
    """Return the header with the token of a file, which is read for each request; none without a file."""
    if path is None:
        return {}
    try:
        text = path.read_text().strip().removeprefix("Bearer ").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SiteDownError(f"cannot read tokenFile {path}: {reason}") from error
    if not text or any(not 32 < ord(letter) < 127 for letter in text):
        raise SiteDownError(f"tokenFile {path} is empty or has characters that no token has")
    return {"Authorization": f"Bearer {text}"}
