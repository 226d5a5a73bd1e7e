"""The jobs of a site that cannot list them: the pods that the hub follows, and the last answers about their jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bridge.core.job_lifecycle import NEW, Lifecycle, State
from bridge.pools.pool_interface import Pod
from bridge.protocol.model.jobs import EVENTS, JobStatus
from bridge.telemetry.metrics import POOL_FOLLOWED
from bridge.workload.pods import uid as uid_of

ABSENT_AGAIN = 60.0
"""Seconds between two polls for a job that the site does not know, at most. The first polls follow each other faster: a
request without an answer may be carried out late."""


@dataclass(slots=True)
class _Job:
    """The last answer about a job, which was requested at ``lifecycle.answered_at`` (monotonic)."""

    status: JobStatus | None = None
    lifecycle: Lifecycle = NEW


class FollowedJobs:
    """The followed pods of one pool, and the states of their jobs by UID. Thread-safe.

    Implements :class:`bridge.pools.pool_interface.FollowsPods`. ``pool`` is the name of the pool, ``poll_period`` the
    seconds between two polls. With the UID of a job, ``notify`` is called after each change, ``forget`` after its
    removal.
    """

    def __init__(
        self,
        pool: str,
        poll_period: float,
        notify: Callable[[str], None],
        forget: Callable[[str], None],
        statement: str = "",
    ) -> None:
        self.statement = statement
        self.answered_at: float | None = None
        """Monotonic time at which the last request with an answer was sent; ``None`` before the first."""
        self._pool, self._poll_period, self._notify, self._forget = pool, poll_period, notify, forget
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._jobs: dict[str, _Job] = {}

    def add(self, pod: Pod) -> None:
        """Add a pod; its job is :meth:`due` at once."""
        with self._lock:
            self._pods[uid_of(pod)] = pod
            POOL_FOLLOWED.labels(self._pool).set(len(self._pods))

    def remove(self, job: str) -> None:
        """Remove a pod and the state of its job."""
        with self._lock:
            self._pods.pop(job, None)
            removed = self._jobs.pop(job, _Job()).status
            POOL_FOLLOWED.labels(self._pool).set(len(self._pods))
        self._forget(job)
        if removed is not None:
            self._notify(job)

    def job(self, job: str) -> JobStatus | None:
        """Return the last known state of one job."""
        return self._jobs.get(job, _Job()).status

    def jobs(self) -> dict[str, JobStatus]:
        """Return the last known states of all jobs."""
        with self._lock:
            return {uid: job.status for uid, job in self._jobs.items() if job.status is not None}

    def get(self, job: str) -> Pod | None:
        """Return the pod with this UID if it is followed."""
        return self._pods.get(job)

    def pods(self) -> list[Pod]:
        """Return all followed pods."""
        with self._lock:
            return list(self._pods.values())

    def whole(self, pod: Pod) -> Pod:
        """Return the followed pod of the same UID, if ``pod`` has only its identity."""
        return pod if "spec" in pod else self._pods.get(uid_of(pod), pod)

    def record(self, status: JobStatus, requested_at: float) -> None:
        """Apply a state, from an answer to a request that was sent at ``requested_at`` (monotonic)."""
        with self._lock:
            self._record_answer(requested_at)
            job = self._jobs.setdefault(status.job, _Job())
            if job.status is not None and (
                job.lifecycle.answered_at > requested_at or (job.status.phase == "ended" and status.phase != "ended")
            ):
                return  # an older answer, or a change after the end, which is final
            job.lifecycle = job.lifecycle.shown(EVENTS[status.phase], requested_at)
            changed = job.status != status
            if changed:  # an equal state stays the same object: a decision about it need not be repeated
                job.status = status
        if changed:
            self._notify(status.job)

    def record_absence(self, job: str, requested_at: float) -> None:
        """Apply the answer that the site does not know a job.

        ``requested_at``: monotonic time at which the request was sent.
        """
        with self._lock:
            self._record_answer(requested_at)
            last = self._jobs.get(job, _Job())
            if last.status is not None and last.lifecycle.answered_at > requested_at:
                return
            removed = self._jobs.pop(job, last).status
            if job in self._pods:
                self._jobs[job] = _Job(None, last.lifecycle.denied(requested_at))
        if removed is not None:
            self._notify(job)

    def answered(self, requested_at: float) -> None:
        """Record that a request that was sent at ``requested_at`` (monotonic) got an answer."""
        with self._lock:
            self._record_answer(requested_at)

    def _record_answer(self, requested_at: float) -> None:
        self.answered_at = max(requested_at, self.answered_at or requested_at)

    def apply(self, statuses: Mapping[str, JobStatus | None], requested_at: float) -> None:
        """Apply an answer about several jobs; ``None``: the site does not know the job."""
        for job, status in statuses.items():
            if status is None:
                self.record_absence(job, requested_at)
            else:
                self.record(status, requested_at)

    def due(self, now: float) -> list[Pod]:
        """Return the followed pods whose jobs have not ended. A job that the site does not know is due less often."""
        with self._lock:
            return [pod for uid, pod in self._pods.items() if self._is_due(self._jobs.get(uid, _Job()).lifecycle, now)]

    def _is_due(self, job: Lifecycle, now: float) -> bool:
        if not job.is_absent:
            return job.state is not State.ENDED
        # the pause doubles with each answer
        pause = self._poll_period + job.answered_at - job.absent_since
        return now >= job.look_at(min(ABSENT_AGAIN, pause))
