"""The excluded nodes of pending jobs follow the nodes: of which jobs, to what, and at what pace.

``docs/developers/architecture.md`` has the limits. Only :class:`UpdatePace` and :class:`QueueHead` have a state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager

from bridge.clock import Clock
from bridge.core.grouping import grouped
from bridge.slurm.models import Job, JobPart, ObservedJob
from bridge.slurm.states import is_pending
from scheduler.group_actions import Action, Exclude, Pod
from scheduler.group_states import GroupState
from scheduler.pod_group import Group
from scheduler.rules import SchedulerView

HEAD = 1000
"""Number of jobs of each partition. Slurm's backfill scheduler considers 500 by default (``bf_max_job_test``)."""
PERIOD = 2.0
"""Seconds for which the head is kept: to sort 10,000 jobs took a third of a decision about all pods."""
SHARE = 0.1
"""Share of the time in which slurmctld may be busy with updates, measured by the time of its answers."""
FASTEST = 20.0
"""Largest number of updates per second. Slurm has no update of several jobs in one request."""
SLOWEST = 1.0
"""Least number of updates per second, however slowly slurmctld answers."""
FIRST = 3.0
"""Updates per second before an answer has been measured."""
BURST = 32
"""Updates that are sent at once."""
SAMPLES = 8
"""Number of answers over which their time is averaged."""


def next_update(
    view: SchedulerView, group: Group, state: GroupState, job: Job, parts: Iterable[tuple[Job | JobPart, list[Pod]]]
) -> tuple[Exclude | None, GroupState]:
    """Return the update of the first component of a pending job that is due now, and the next state.

    ``parts`` are the components with the waiting members of each; an ordinary job is its only one.
    """
    if not _may_exclude(view, state, job.job_id):
        return None, state
    for number, (component, members) in enumerate(parts):
        if not members:
            continue
        desired = view.placements.of_all(members, view.config.partition).excluded
        updated = with_excluded(view, state, component, desired, number)
        if updated is None:
            before = _excluded_now(state, component, number)
            return Exclude(group, job.job_id, desired, number, component.job_id if number else 0, before), state
        state = updated
    return None, state


def _may_exclude(view: SchedulerView, state: GroupState, job_id: int) -> bool:
    """Whether the excluded nodes of a pending job may be changed now."""
    is_refused_for_now = state.exclude_retry_at is not None and view.now < state.exclude_retry_at
    return view.updates > 0 and not is_refused_for_now and is_kept_up_to_date(view, job_id)


def is_kept_up_to_date(view: SchedulerView, job_id: int) -> bool:
    """Whether the excluded nodes of a pending job follow the nodes: Slurm probably starts it as one of the next."""
    return view.version.exclude_nodes and (view.head is None or job_id in view.head)


def _excluded_now(state: GroupState, job: Job | JobPart, part: int = 0) -> tuple[str, ...]:
    """Return the nodes that a pending job excludes, as sent or read last."""
    last_excluded = state.excluded_of(part)
    return last_excluded if last_excluded is not None else job.excluded_nodes


def with_excluded(
    view: SchedulerView, state: GroupState, job: Job | JobPart, desired: tuple[str, ...], part: int = 0
) -> GroupState | None:
    """Return the state of a pod whose pending job excludes the nodes ``desired``; ``None`` if it excludes others.

    ``job`` may be a component, and ``part`` its number. Nodes that are drained in Slurm do not count, because Slurm
    allocates them to no job.
    """
    last_excluded = state.excluded_of(part)
    if last_excluded is desired:  # pods with the same placement share one tuple
        return state
    excluded = _excluded_now(state, job, part)
    if not view.placements.same_for_slurm(excluded, desired):
        return None
    return state if last_excluded is excluded else state.excluding(part, excluded)


def paced(view: SchedulerView, actions: list[Action]) -> list[Action]:
    """Return the actions with at most ``view.updates`` updates of pending jobs: of those that probably start first."""
    updates = [action for action in actions if isinstance(action, Exclude)]
    if len(updates) <= view.updates:
        return actions
    jobs = view.snapshot.jobs
    updates.sort(key=lambda action: start_order(jobs[action.job_id].job))
    kept = {action.job_id for action in updates[: view.updates]}
    return [action for action in actions if not isinstance(action, Exclude) or action.job_id in kept]


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
    pending = (each.job for each in jobs.values() if not each.missing and is_pending(each.job.states))
    jobs_by_partition = grouped((job.partition, job) for job in pending)
    return {job.job_id for queue in jobs_by_partition.values() for job in sorted(queue, key=start_order)[:HEAD]}


def start_order(job: Job) -> tuple[float, float, int]:
    """Return a key by which jobs sort as Slurm probably starts them: by priority, then by expected start."""
    return (-job.priority, job.start_time or math.inf, job.job_id)


class UpdatePace:
    """Counts the updates that may be sent. Times are monotonic seconds. Only for the thread of the loop.

    :meth:`measured` and :meth:`took` are for any thread.
    """

    def __init__(self) -> None:
        self._left, self._at = float(BURST), 0.0
        self._seconds = SHARE / FIRST

    @property
    def rate(self) -> float:
        """The number of updates per second."""
        return min(FASTEST, max(SLOWEST, SHARE / self._seconds))

    @contextmanager
    def measured(self, clock: Clock) -> Iterator[None]:
        """Measure an update, also one that fails."""
        began = clock.monotonic()
        try:
            yield
        finally:
            self.took(clock.monotonic() - began)

    def took(self, seconds: float) -> None:
        """Add the time of an answer of slurmctld to an update."""
        self._seconds += (max(seconds, 1e-4) - self._seconds) / SAMPLES

    def allowed(self, now: float) -> int:
        """Return the number of updates that may be sent now."""
        self._left = min(BURST, self._left + self.rate * max(0.0, now - self._at))
        self._at = now
        return int(self._left)

    def sent(self, count: int) -> None:
        """Count updates that were sent."""
        self._left -= count
