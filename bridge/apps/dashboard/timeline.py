"""The life of a pod as segments of a bar and as steps on both sides: Kubernetes and the batch system. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.apps.view.pod_view import FAILED, MESSAGE, RUNNING, STARTING, WAITING, PodView, Times, seconds

LEAST = 0.6
"""Smallest width of a segment in percent of the axis, so that a short step is visible."""
SPAN = 24 * 3600.0
"""Longest axis in seconds: an older pod begins at its left end."""
KUBERNETES, BATCH = "Kubernetes", "batch system"
_BATCH_PREFIXES = ("Slurm", "Bridge", "Node", "Gang", "Volume", "Site", "Job", "Scheduled")
"""Prefixes of the reasons of podbridge's Events that report on the job, not on the pod."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The time that bars cover, in seconds since 1970."""

    begin: float
    end: float

    def percent(self, at: float) -> float:
        """Return the position of a time on the axis, 0 to 100."""
        return min(100.0, max(0.0, 100 * (at - self.begin) / max(1.0, self.end - self.begin)))


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar: its state, its position and width in percent, and its duration in seconds."""

    state: str
    at: float
    width: float
    duration: float


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened to a pod at ``at`` (seconds since 1970); ``None``: the time is not known."""

    side: str
    name: str
    at: float | None
    text: str
    rank: int = 2
    """Order of steps in the same second: the API server and sites have times in whole seconds, Events have more."""


def axis(rows: Sequence[PodView], now: float) -> Axis:
    """Return the axis for the bars of some pods: from the oldest creation (at most :data:`SPAN`) to the last end."""
    end = max((now if row.open else row.times.ended or row.times.created for row in rows), default=now)
    begin = min((row.times.created for row in rows), default=now)
    return Axis(max(begin, end - SPAN), max(end, begin + 1))


def segments(times: Times, state: str, over: Axis, now: float) -> list[Segment]:
    """Return the segments of a pod's bar: waiting, starting, and running or its end."""
    end = times.ended if times.ended is not None else now
    marks = [(WAITING, times.created)]
    if times.bound is not None:
        marks.append((STARTING, times.bound))
    if times.started is not None:
        marks.append((FAILED if state == FAILED else state if times.ended is not None else RUNNING, times.started))
    result = []
    for number, (kind, begin) in enumerate(marks):
        until = marks[number + 1][1] if number + 1 < len(marks) else end
        duration = max(0.0, until - begin)
        if number + 1 < len(marks) and until <= max(begin, over.begin):
            continue  # clocks differ, or the segment is before the axis
        at = over.percent(begin)
        width = max(LEAST, over.percent(until) - at)
        result.append(Segment(kind, min(at, 100 - LEAST), min(width, 100 - min(at, 100 - LEAST)), duration))
    return result


def steps(pod: Mapping[str, Any], row: PodView, events: Iterable[Mapping[str, Any]]) -> list[Step]:
    """Return what happened to a pod on both sides, oldest first; steps without a time are last.

    ``events`` are raw Events of ``events.k8s.io/v1``, oldest first. The API server knows the batch system from
    podbridge's Events and conditions, so its times are those at which podbridge has noticed the change.
    """
    times = row.times
    result = [Step(KUBERNETES, "Created", times.created, f"by {row.owner}" if row.owner else "", 0)]
    allocated = seconds((pod["metadata"].get("annotations") or {}).get(names.JOB_START_ANNOTATION))
    if allocated is not None and allocated >= times.created:  # a member that was made again joins an older job
        result.append(Step(BATCH, "Allocated", allocated, f"Slurm job {row.job}", 1))
    if times.bound is not None:
        result.append(Step(KUBERNETES, "Bound", times.bound, f"to node {row.node}", 1))
    if times.started is not None:
        result.append(Step(KUBERNETES, "Running", times.started, "", 3))
    if not row.open:
        text = ": ".join(part for part in (row.reason, row.message) if part)
        result.append(Step(KUBERNETES, row.state.capitalize(), times.ended, text, 4))
    if row.deleted:
        deleted = seconds(pod["metadata"].get("deletionTimestamp"))
        result.append(Step(KUBERNETES, "Deletion requested", deleted, "end of its grace"))
    for event in events:
        reason = str(event.get("reason") or "")
        side = BATCH if reason.startswith(_BATCH_PREFIXES) else KUBERNETES
        rank = 1 if reason == "Scheduled" else 2
        at = seconds(event.get("eventTime") or event["metadata"].get("creationTimestamp"))
        result.append(Step(side, reason, at, str(event.get("note") or ""), rank))
    is_told = bool(result) and (result[-1].name, result[-1].text[:MESSAGE]) == (row.reason, row.message)
    if row.state in (WAITING, STARTING) and row.reason and not is_told:
        result.append(Step(BATCH, row.reason, None, row.message))
    return sorted(result, key=lambda step: (step.at is None, int(step.at or 0), step.rank, step.at))
