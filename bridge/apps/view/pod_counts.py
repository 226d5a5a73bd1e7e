"""Many pods as users see them: how many are in each state, and why they wait. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.apps.view import wait_reasons
from bridge.apps.view.pod_view import STATES, WAITING, PodView


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


def counts(rows: Iterable[PodView]) -> dict[str, int]:
    """Return the number of pods in each of :data:`~bridge.apps.view.pod_view.STATES`."""
    numbers = dict.fromkeys(STATES, 0)
    for row in rows:
        numbers[row.state] += 1
    return numbers


def reasons(rows: Iterable[PodView]) -> list[Reason]:
    """Return why pods wait, the most frequent reason first."""
    groups: dict[str, list[PodView]] = {}
    for row in rows:
        if row.state == WAITING:
            groups.setdefault(row.reason, []).append(row)
    result = []
    for name, members in groups.items():
        oldest = min(members, key=lambda row: (row.times.created, row.namespace, row.name))
        result.append(Reason(name, len(members), oldest.message, oldest))
    return sorted(result, key=lambda reason: (-reason.count, reason.name))
