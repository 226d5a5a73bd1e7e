"""Many pods as users see them: how many are in each state, and why they wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bridge.apps.view import wait_reasons
from bridge.apps.view.pod_view import FAILED, RUNNING, STARTING, STATES, SUCCEEDED, WAITING, PodView
from bridge.core.grouping import grouped

BAR = (SUCCEEDED, RUNNING, STARTING, WAITING, FAILED)
"""The order of the states in a bar of progress."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why pods wait: the reason of their condition, their number, and the message of the pod that waits longest."""

    name: str
    count: int
    message: str
    oldest: PodView

    @property
    def text(self) -> str:
        """The message, or the meaning of a reason without one."""
        return self.message or wait_reasons.meaning(self.name)


class BarPart(NamedTuple):
    """A part of a bar: a state, where it begins and its width, in percent."""

    state: str
    at: float
    width: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of one workload that exist: their number in each state, and why most of those that wait do so."""

    namespace: str
    name: str
    counts: dict[str, int]
    created: float
    reason: str
    message: str

    @property
    def total(self) -> int:
        """The number of pods."""
        return sum(self.counts.values())

    @property
    def open(self) -> bool:
        """Whether a pod has not ended."""
        return any(self.counts[state] for state in (WAITING, STARTING, RUNNING))

    def parts(self) -> list[BarPart]:
        """Return the parts of a bar of progress."""
        result, at = [], 0.0
        for state in BAR:
            if width := 100 * self.counts[state] / self.total:
                result.append(BarPart(state, at, width))
                at += width
        return result


def workloads(rows: Iterable[PodView]) -> list[Workload]:
    """Return the workloads of pods, those with pods that have not ended first, then the newest first."""
    result = []
    for (namespace, name), members in grouped(((row.namespace, row.owner), row) for row in rows if row.owner).items():
        first = next(iter(reasons(members)), None)
        created = min(row.times.created for row in members)
        why = (first.name, first.text) if first is not None else ("", "")
        result.append(Workload(namespace, name, counts(members), created, *why))
    return sorted(result, key=lambda each: (not each.open, -each.created, each.namespace, each.name))


def counts(rows: Iterable[PodView]) -> dict[str, int]:
    """Return the number of pods in each of :data:`~bridge.apps.view.pod_view.STATES`."""
    numbers = dict.fromkeys(STATES, 0)
    for row in rows:
        numbers[row.state] += 1
    return numbers


def reasons(rows: Iterable[PodView]) -> list[Reason]:
    """Return why pods wait, the most frequent reason first."""
    result = []
    for name, members in grouped((row.reason, row) for row in rows if row.state == WAITING).items():
        oldest = min(members, key=lambda row: (row.times.created, row.namespace, row.name))
        result.append(Reason(name, len(members), oldest.message, oldest))
    return sorted(result, key=lambda reason: (-reason.count, reason.name))
