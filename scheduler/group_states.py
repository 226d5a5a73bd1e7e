"""The state of each waiting pod between two decisions of the scheduler.

``docs/developers/architecture.md`` describes them. All states are immutable: a change replaces the whole value.
The state is kept in memory only. After a restart, the scheduler finds the jobs of pods by UID.

Writers: the state of a pod has one writer at a time. While the workers have a call for the pod, queued or running, only
this call writes (:meth:`GroupStates.update`). At all other times only the loop writes (:meth:`GroupStates.merge`): it
decides for a pod only after it has seen that the workers have no call for it, and it alone submits calls.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, NamedTuple

from bridge.core import job_lifecycle
from bridge.core.job_lifecycle import Event, Lifecycle, State
from bridge.core.retries import Backoff

Pod = Mapping[str, Any]

REFUSED = Backoff(first=5, limit=300)
"""After a refusal by Slurm or podbridge: a user or an administrator has to change something."""
UNAVAILABLE = Backoff(first=1, limit=30)
"""After a request without an answer."""
BINDING_SHOWN = 60.0
"""Seconds after which the API server shows a binding that it accepted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed submission, or the last job that could not be used.

    ``count`` is the number of failures since the last successful submission. No job is submitted before ``retry_at``
    (monotonic seconds). ``reason`` and ``message`` are those of the pod's condition meanwhile.
    """

    count: int
    retry_at: float
    reason: str
    message: str


NODE, NODE_START = "node", "node_start"


class Wait(NamedTuple):
    """Why pods wait: the reason and the message of their condition. Without a reason, no condition is written."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class NodeWait:
    """Why an allocated job has no bind, since a monotonic time in seconds.

    ``what`` is ``NODE_START`` while Slurm's power saving starts a node or its kubelet is not ready yet, and ``NODE``
    while a node has no room, volume or device for a pod.
    """

    what: str
    since: float


@dataclass(frozen=True, slots=True)
class ReportedCondition:
    """The condition PodScheduled that this process wrote last; ``at`` is its monotonic time.

    ``message`` is empty where only the Event was written.
    """

    reason: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the scheduler keeps of one group or pod.

    ``lifecycle`` is that of the job of the next binding. ``failure`` is ``None`` after a successful submission.
    ``submitted_id`` is the id of a submitted job that no snapshot has shown yet, 0 without one. ``node_wait`` is
    ``None`` if an allocated job can be bound. ``bound_at`` is the monotonic time at which the API server accepted the
    binding of the pod, which the cache does not show yet.
    ``waiting_since`` is the time of the last submission, or of the first decision that saw a pending job.
    ``starting_since`` is the time of the first decision after the last submission that saw Slurm's power saving start
    the node of the job. Both are monotonic seconds, ``None`` if there was none. ``cancelled`` holds jobs of the pod
    that this process has cancelled and that the snapshot may still show as live. ``excluded`` are the excluded nodes
    of the job as sent or read last, ``None`` if neither was done; those of the components after the first are in
    ``more_excluded``, by number. The next ones are not sent before ``exclude_retry_at`` (monotonic seconds).
    If Slurm takes no node from a job, this is not tried again before ``shrink_retry_at``.
    ``differ_since`` is the monotonic time since which members without slots differ. ``unused_jobs`` is the number of
    jobs since the last binding that have ended, or that podbridge has cancelled because they could not be used.
    ``claim_wait`` is why the last bind to the job could not allocate the resource claims.
    ``started_job`` is the job to which this process has seen the minimum of the members bound, 0 without one.
    ``submitted_at`` is the time of the last submission by this process in seconds since 1970; only set if traces are
    sent.
    """

    lifecycle: Lifecycle = job_lifecycle.NEW
    failure: Failure | None = None
    submitted_id: int = 0
    node_wait: NodeWait | None = None
    bound_at: float | None = None
    waiting_since: float | None = None
    starting_since: float | None = None
    condition: ReportedCondition | None = None
    cancelled: frozenset[int] = frozenset()
    excluded: tuple[str, ...] | None = None
    more_excluded: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    differ_since: float | None = None
    exclude_retry_at: float | None = None
    shrink_retry_at: float = 0
    unused_jobs: int = 0
    claim_wait: Wait | None = None
    started_job: int = 0
    submitted_at: float | None = None

    def submitted(self, job_id: int, now: float, *excluded: tuple[str, ...]) -> GroupState:
        """Return the state after slurmctld has returned the id of a new job; ``excluded`` are those of each part."""
        # slurmctld may use the id of an earlier job of the pod again
        return GroupState(
            lifecycle=self.lifecycle.after(Event.SEND).shown(Event.QUEUED, now),
            submitted_id=job_id,
            waiting_since=now,
            condition=self.condition,
            cancelled=self.cancelled - {job_id},
            excluded=excluded[0],
            more_excluded=dict(enumerate(excluded[1:], 1)),
            unused_jobs=self.unused_jobs,
        )

    def excluded_of(self, part: int) -> tuple[str, ...] | None:
        """Return the excluded nodes of a component, of an ordinary job those of number 0."""
        return self.more_excluded.get(part) if part else self.excluded

    def excluding(self, part: int, nodes: tuple[str, ...]) -> GroupState:
        """Return the state after the excluded nodes of a component were sent or read."""
        if part:
            return replace(self, more_excluded={**self.more_excluded, part: nodes})
        return self._changed(excluded=nodes)

    def failed(self, now: float, backoff: Backoff, reason: str, message: str) -> GroupState:
        """Return the state after a failed submission."""
        return replace(self, failure=self._failure(now, backoff, reason, message))

    def unusable(self, now: float, backoff: Backoff, reason: str, message: str) -> GroupState:
        """Return the state after a job was cancelled because it could not be used."""
        count = self.unused_jobs + 1
        failure = Failure(count, now + backoff.delay(count), reason, message)
        return self._with_job(self.lifecycle.after(Event.ENDED), failure=failure, unused_jobs=count)

    def ended(self, now: float, reason: str, message: str) -> GroupState:
        """Return the state after a job has ended before the bind. The first such job is replaced at once."""
        count = self.unused_jobs + 1
        state = replace(self.without_job(Event.ENDED), unused_jobs=count)
        if count == 1:
            return state
        delay = REFUSED.delay(count - 1, lambda: 0.0)  # decisions are pure: no jitter
        return replace(state, failure=Failure(count - 1, now + delay, reason, message))

    def bound(self, at: float | None = None) -> GroupState:
        """Return the state after a binding: that of the pod at the time ``at``, or else that of its group."""
        # the end of a job counts as unused only before the bind, so its lifecycle is forgotten
        return self._with_job(job_lifecycle.NEW, failure=None, bound_at=at, unused_jobs=0, claim_wait=None)

    def without_answer(self, now: float, reason: str, message: str) -> GroupState:
        """Return the state after a submission whose outcome is unknown."""
        lifecycle = self.lifecycle.after(Event.SEND).unanswered(now)
        return replace(self, lifecycle=lifecycle, failure=self._failure(now, UNAVAILABLE, reason, message))

    def pending(self, now: float, since: float) -> GroupState:
        """Return the state after a decision has seen the job pending; it waits since the time ``since``."""
        # a requeued job may get other devices, so an earlier failure to allocate them does not count
        lifecycle = self.lifecycle.shown(Event.QUEUED, now)
        return self._with_job(lifecycle, waiting_since=since, claim_wait=None)

    def allocated(self, now: float, wait: NodeWait | None = None) -> GroupState:
        """Return the state after a decision has seen the job allocated; ``wait`` is why it has no bind."""
        if self.lifecycle.state is not State.STARTED:
            return self._with_job(self.lifecycle.shown(Event.STARTED, now), wait)
        return self if self.node_wait is wait else replace(self, node_wait=wait)

    def without_job(self, event: Event = Event.DENIED) -> GroupState:
        """Return the state after the last job was lost or has ended; unchanged if no job was known."""
        return self._with_job(self.lifecycle.after(event)) if self.has_job else self

    def seen(self) -> GroupState:
        """Return the state after the submitted job was seen in the snapshot or cancelled."""
        return self._with_job(job_lifecycle.NEW) if self.submitted_id else self

    def _with_job(self, lifecycle: Lifecycle, wait: NodeWait | None = None, **changes: object) -> GroupState:
        return self._changed(lifecycle=lifecycle, submitted_id=0, node_wait=wait, **changes)

    def _changed(self, **changes: object) -> GroupState:
        # dataclasses.replace takes 1.5 times as long, and the first decision about a pending pod calls this twice
        copy, set_field = object.__new__(GroupState), object.__setattr__
        for name, value in zip(_FIELDS, _values(self), strict=True):
            set_field(copy, name, value)
        for name, value in changes.items():
            set_field(copy, name, value)
        return copy

    @property
    def has_job(self) -> bool:
        """Whether the last job that is known has not ended."""
        return self.lifecycle.state in (State.KNOWN, State.STARTED)

    @property
    def is_pending(self) -> bool:
        """Whether a decision has seen the job pending."""
        return self.lifecycle.state is State.KNOWN and not self.submitted_id

    def _failure(self, now: float, backoff: Backoff, reason: str, message: str) -> Failure:
        count = self.failure.count + 1 if self.failure else 1
        return Failure(count, now + backoff.delay(count), reason, message)


NEW = GroupState()
_FIELDS = tuple(one.name for one in fields(GroupState))
_values = attrgetter(*_FIELDS)


class GroupStates:
    """The states of all waiting pods by UID. The rule of writers is in the docstring of the module."""

    def __init__(self) -> None:
        self.by_uid: dict[str, GroupState] = {}
        self._lock = threading.Lock()

    def of(self, uid: str) -> GroupState:
        """Return the state of a pod."""
        return self.by_uid.get(uid, NEW)

    def update(self, uid: str, change: Callable[[GroupState], GroupState]) -> None:
        """Replace the state of one pod. Called by the worker that carries out an action for the pod."""
        with self._lock:
            self.by_uid[uid] = change(self.by_uid.get(uid, NEW))

    def merge(self, states: Mapping[str, GroupState]) -> None:
        """Store the next states of a decision. Called by the loop, before it submits the actions of the decision."""
        with self._lock:
            self.by_uid.update(states)

    def forget_all_but(self, uids: Set[str]) -> None:
        """Delete the states of pods that are no longer waiting."""
        with self._lock:
            for uid in self.by_uid.keys() - uids:
                del self.by_uid[uid]

    def forget_bindings(self, confirmed: float, busy: Callable[[str], bool]) -> None:
        """Forget bindings that are lost: etcd was restored from a backup, for example. Called by the loop.

        ``confirmed`` is the monotonic time at which the cache was current; it shows all pods with a state as waiting.
        """
        with self._lock:
            for uid, state in self.by_uid.items():
                if state.bound_at is not None and confirmed - state.bound_at > BINDING_SHOWN and not busy(uid):
                    self.by_uid[uid] = replace(state, bound_at=None)

    @property
    def unsettled(self) -> bool:
        """Whether the outcome of a submission is unknown."""
        return self.lost_at < math.inf

    @property
    def lost_at(self) -> float:
        """When the oldest submission failed whose outcome is unknown (monotonic seconds); infinite without one."""
        lifecycles = (state.lifecycle for _, state in self._items())
        return min((job.until for job in lifecycles if job.state is State.UNKNOWN), default=math.inf)

    @property
    def allocated(self) -> set[str]:
        """The keys of the groups whose job is allocated."""
        return {uid for uid, state in self._items() if state.lifecycle.state is State.STARTED}

    def _items(self) -> list[tuple[str, GroupState]]:
        """Return all states. Without the lock, a garbage collection here could let another thread add one."""
        with self._lock:
            return list(self.by_uid.items())
