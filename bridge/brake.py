"""A brake on mass ending: many jobs that vanish at once are more often a fault than the truth. Pure.

A slurmctld that starts with an empty state, or a site whose folder of jobs was replaced by an empty one, says in good
faith that it knows no job. One job that vanishes is believed at once; when many do, nothing is ended for a while, so
that an administrator can put the state back, or confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum

ANSWER_SUFFIX = ".word"
"""The ConfigMap has a record of each engaged brake under its name, and the answer under the name with this suffix."""


class BrakeAnswer(StrEnum):
    """What an administrator said about an engaged brake."""

    NONE = ""
    CONFIRM = "confirm"
    """The jobs are gone for good: end their pods now."""
    HOLD = "hold"
    """End nothing, however long it takes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The brake engages when at least ``least`` jobs, and more than ``share`` of those known, vanish within ``hold`` s.

    Afterwards each of them has to be missing for ``hold`` seconds before its pod is ended. No pod is ended before its
    job has been missing for ``settle`` seconds: where jobs are reported one by one, the others may follow.
    """

    share: float = 0.2
    least: int = 10
    hold: float = 60.0
    settle: float = 0.0


@dataclass(frozen=True, slots=True)
class Brake:
    """The state, a new one for each step. Keys are UIDs of pods, times are monotonic seconds.

    ``since`` is ``None`` while the brake is off. ``missing`` holds all keys whose jobs are missing, with the time since
    when; ``allowed`` those of them that may be ended. ``believed`` holds keys that were allowed at once, with the time.
    """

    since: float | None = None
    missing: Mapping[str, float] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    believed: Mapping[str, float] = field(default_factory=dict)

    @property
    def engaged(self) -> bool:
        """Whether pods are held."""
        return self.since is not None

    @property
    def held(self) -> frozenset[str]:
        """Keys that the engaged brake does not let end."""
        return frozenset(self.missing.keys() - self.allowed) if self.engaged else frozenset()


def step(
    before: Brake,
    known: int,
    missing: Set[str],
    now: float,
    limits: Limits,
    word: BrakeAnswer = BrakeAnswer.NONE,
    told: Set[str] = frozenset(),
) -> Brake:
    """Return the next state.

    ``known`` counts the pods whose jobs should exist, those in ``missing`` included. ``told`` holds the keys whose
    pods say already that their job is missing: no other is ended by the passing of time alone.
    """
    since_when = {key: before.missing.get(key, now) for key in missing}
    believed = {key: at for key, at in before.believed.items() if now < at + limits.hold}
    allowed = before.allowed & missing
    fresh = missing - allowed
    since = before.since
    if since is None:
        lately = fresh | believed.keys()
        total = known + len(believed.keys() - missing)
        if fresh and len(lately) >= limits.least and len(lately) > limits.share * total:
            since = now
        else:
            settled = {key for key in fresh if now >= since_when[key] + limits.settle}
            believed |= dict.fromkeys(settled, now)
            allowed |= settled
    if since is not None:
        if word is BrakeAnswer.CONFIRM:
            allowed |= fresh
        elif word is not BrakeAnswer.HOLD:
            allowed |= {key for key in fresh & told if now >= since_when[key] + limits.hold}
    return Brake(since if missing - allowed else None, since_when, frozenset(allowed), believed)
