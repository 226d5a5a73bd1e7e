"""The mass-termination guard: many jobs that disappear at once are more often a fault than a fact. Pure.

A slurmctld that starts with an empty state, or a site whose job directory was replaced by an empty one, correctly
reports that it knows no job. podbridge terminates the pod of a single missing job at once. If many jobs disappear, it
terminates no pod for a while, so that an administrator can restore the state or confirm the loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

ANSWER_SUFFIX = ".word"
"""The ConfigMap has the record of an engaged brake under its name, and the answer under the name with this suffix."""


class BrakeAnswer(StrEnum):
    """An administrator's answer to an engaged brake."""

    NONE = ""
    CONFIRM = "confirm"
    """The jobs are lost: terminate their pods now."""
    HOLD = "hold"
    """Terminate no pod until the jobs are listed again or the answer changes."""


@dataclass(frozen=True, slots=True)
class GuardLimits:
    """The thresholds. Times are seconds.

    The brake engages when at least ``least`` jobs, and more than ``share`` of the known ones, disappear within
    ``hold``. Then a job must be missing for ``hold`` before its pod is terminated. No pod is terminated before its job
    has been missing for ``settle``: if jobs are reported one by one, others may follow.
    """

    share: float = 0.2
    least: int = 10
    hold: float = 60.0
    settle: float = 0.0


@dataclass(frozen=True, slots=True)
class Brake:
    """The immutable state. Keys are UIDs of pods, times are monotonic seconds."""

    since: float | None = None
    """When the brake engaged; ``None`` if it is not engaged."""
    missing: Mapping[str, float] = field(default_factory=dict)
    """Keys whose jobs are missing, each with the time since when."""
    allowed: frozenset[str] = frozenset()
    """The missing keys whose pods may be terminated."""
    recently_allowed: Mapping[str, float] = field(default_factory=dict)
    """Keys that were allowed while the brake was not engaged, each with the time."""

    @property
    def engaged(self) -> bool:
        """Whether pods are held."""
        return self.since is not None

    @property
    def held(self) -> frozenset[str]:
        """Keys whose pods the engaged brake holds."""
        return frozenset(self.missing.keys() - self.allowed) if self.engaged else frozenset()


def step(
    before: Brake,
    expected_count: int,
    missing: Set[str],
    now: float,
    limits: GuardLimits,
    answer: BrakeAnswer = BrakeAnswer.NONE,
    reported: Set[str] = frozenset(),
) -> Brake:
    """Return the next state.

    ``expected_count`` counts the pods whose jobs should exist, including ``missing``. ``reported`` holds the keys of
    the pods that already have the condition for a missing job; after the hold time, only these pods are terminated.
    """
    since_when = {key: before.missing.get(key, now) for key in missing}
    recently_allowed = {key: at for key, at in before.recently_allowed.items() if now < at + limits.hold}
    allowed = before.allowed & missing
    fresh = missing - allowed
    since = before.since
    if since is None:
        recent = fresh | recently_allowed.keys()
        # pods whose end was allowed are gone from the count, but belong to the incident
        total = expected_count + len(recently_allowed.keys() - missing)
        if fresh and len(recent) >= limits.least and len(recent) > limits.share * total:
            since = now
        else:
            settled = {key for key in fresh if now >= since_when[key] + limits.settle}
            recently_allowed |= dict.fromkeys(settled, now)
            allowed |= settled
    if since is not None:
        if answer is BrakeAnswer.CONFIRM:
            allowed |= fresh
        elif answer is not BrakeAnswer.HOLD:
            allowed |= {key for key in fresh & reported if now >= since_when[key] + limits.hold}
    return Brake(since if missing - allowed else None, since_when, frozenset(allowed), recently_allowed)
