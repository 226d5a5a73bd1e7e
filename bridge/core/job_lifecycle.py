"""The lifecycle of a job that one process requests and another system runs. Pure: times are passed in.

A request may get no answer and may still be carried out later. So the answer that there is no job counts only if it was
requested after that time, and a job is lost only after two such answers. Times are seconds of one clock of the caller.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from bridge.errors import BatchUnknownOutcomeError, BridgeError, SiteUnknownOutcomeError, SlurmUnknownOutcomeError

NEVER = float("-inf")
_UNKNOWN_OUTCOMES = (BatchUnknownOutcomeError, SiteUnknownOutcomeError, SlurmUnknownOutcomeError)


class State(enum.Enum):
    """What a process knows of a job."""

    WANTED = "no request is open, and no answer is known"
    SENT = "a request is in progress"
    UNKNOWN = "a request got no answer: its outcome is unknown"
    KNOWN = "the job exists"
    STARTED = "the job has started"
    ABSENT = "there was no job when no request could be carried out any more"
    LOST = "the same, in a second answer"
    ENDED = "the job has ended"


class Event(enum.Enum):
    """What happens to a job."""

    SEND = "a request is sent"
    NO_ANSWER = "the request gets no answer"
    QUEUED = "an answer shows the job before its start"
    STARTED = "an answer shows the job after its start"
    ENDED = "an answer shows the job after its end"
    DENIED = "an answer that counts shows no job"


_SHOWN = {Event.QUEUED: State.KNOWN, Event.STARTED: State.STARTED, Event.ENDED: State.ENDED}
TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.WANTED: {Event.SEND: State.SENT, Event.DENIED: State.ABSENT, **_SHOWN},
    State.SENT: {Event.NO_ANSWER: State.UNKNOWN, **_SHOWN},
    State.UNKNOWN: {Event.DENIED: State.ABSENT, **_SHOWN},
    State.KNOWN: {Event.DENIED: State.ABSENT, **_SHOWN},
    State.STARTED: {Event.DENIED: State.ABSENT, **_SHOWN},
    State.ABSENT: {Event.SEND: State.SENT, Event.DENIED: State.LOST, **_SHOWN},
    State.LOST: {Event.SEND: State.SENT, Event.DENIED: State.LOST, **_SHOWN},
    State.ENDED: {Event.SEND: State.SENT, Event.DENIED: State.ABSENT, **_SHOWN},
}
"""The next state by state and event. An event that a state lacks is impossible there."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The state of one job, and the times on which the next answer depends.

    ``until``: time until which the last request without an answer may be carried out. ``answered_at``: time of the last
    answer that shows the job, or at which the last answer without it was requested; ``NEVER``: none since the last
    request without an answer. ``absent_since``: time at which the first of the answers without the job was requested.
    """

    state: State = State.WANTED
    until: float = NEVER
    answered_at: float = NEVER
    absent_since: float = NEVER

    def after(self, event: Event) -> Lifecycle:
        """Return the lifecycle after an event; raise ValueError if it is impossible in this state."""
        return replace(self, state=self._next(event))

    def unanswered(self, until: float) -> Lifecycle:
        """Return the lifecycle after a request got no answer."""
        return replace(self.after(Event.NO_ANSWER), until=until, answered_at=NEVER)

    def shown(self, event: Event, at: float) -> Lifecycle:
        """Return the lifecycle after an answer that shows the job, which came at ``at``."""
        # without replace(), which takes 2 of 3 µs: the scheduler calls this for each pod
        return Lifecycle(self._next(event), self.until, at, self.absent_since)

    def denied(self, requested_at: float, lost_after: float = 0.0) -> Lifecycle:
        """Return the lifecycle after an answer without the job.

        ``lost_after``: seconds between two such answers, at least, that make the job lost.
        """
        if self.may_take_effect(requested_at):
            return replace(self, answered_at=requested_at)
        if self.is_absent:
            is_too_early = self.state is State.ABSENT and requested_at - self.absent_since < lost_after
            return replace(self if is_too_early else self.after(Event.DENIED), answered_at=requested_at)
        if requested_at <= self.answered_at:
            return self  # the job was shown later
        return replace(self.after(Event.DENIED), answered_at=requested_at, absent_since=requested_at)

    def _next(self, event: Event) -> State:
        state = TRANSITIONS[self.state].get(event)
        if state is None:
            raise ValueError(f"impossible in the state {self.state.name} of a job: {event.value}")
        return state

    def may_take_effect(self, at: float) -> bool:
        """Return whether a request may still be carried out at this time or later."""
        return self.state is State.SENT or (self.state is State.UNKNOWN and at <= self.until)

    @property
    def may_submit(self) -> bool:
        """Whether a job may be requested: none exists as far as known, and no request may still be carried out."""
        return Event.SEND in TRANSITIONS[self.state]

    @property
    def is_absent(self) -> bool:
        """Whether an answer that counts has shown no job, and none after it has shown one."""
        return self.state in (State.ABSENT, State.LOST)

    @property
    def is_lost(self) -> bool:
        """Whether two answers that count have shown no job."""
        return self.state is State.LOST

    def look_at(self, again: float) -> float:
        """Return the time at which the job is to be looked for, ``again`` seconds after an answer without it."""
        if self.state is State.UNKNOWN and self.answered_at > NEVER:
            return self.until
        return self.answered_at + again if self.is_absent else NEVER


NEW = Lifecycle()


class Holder(Protocol):
    """What keeps the lifecycle of a job."""

    lifecycle: Lifecycle


@contextmanager
def sending(holder: Holder, until: Callable[[], float]) -> Iterator[None]:
    """Record a request for a job while it is in progress, and one that fails with an unknown outcome.

    ``until`` returns the time until which such a request may be carried out. After success, the caller records the
    answer. A request that was certainly not carried out leaves the lifecycle as it was before.
    """
    before = holder.lifecycle
    holder.lifecycle = before.after(Event.SEND)
    try:
        yield
    except Exception as error:
        # a defect may come after the request was sent
        is_unknown = isinstance(error, _UNKNOWN_OUTCOMES) or not isinstance(error, BridgeError)
        if holder.lifecycle.state is State.SENT:  # else another answer has shown the job meanwhile
            holder.lifecycle = holder.lifecycle.unanswered(until()) if is_unknown else before
        raise
