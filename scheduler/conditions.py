"""The condition PodScheduled=False of a waiting pod: when it is due, and the write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bridge import clock as clocks
from bridge import names
from bridge.clock import Clock
from bridge.kube.events import EventRecorder
from bridge.workload import pods
from scheduler.pod_states import ReportedCondition

Pod = Mapping[str, Any]

MIN_INTERVAL = 15.0
"""Least time in seconds between two conditions that differ only in their message."""


def is_due(pod: Pod, reported: ReportedCondition | None, reason: str, message: str, now: float) -> bool:
    """Whether the condition differs from the one on the pod and may be written at ``now`` (monotonic seconds).

    ``reported`` is the condition that this process wrote last. Without one, the condition in the pod's status counts.
    """
    if reported is None:
        before = pods.condition(pod, names.POD_SCHEDULED)
        return bool((before.get("reason", ""), before.get("message", "")) != (reason, message[:1024]))
    if (reported.reason, reported.message) == (reason, message[:1024]):
        return False
    return reported.reason != reason or now - reported.at >= MIN_INTERVAL


def write_condition(
    pod: Pod,
    reported: ReportedCondition | None,
    reason: str,
    message: str,
    *,
    write: Callable[[Pod, dict[str, Any], str], None],
    events: EventRecorder,
    clock: Clock,
) -> ReportedCondition:
    """Write the condition, and an Event if the reason is new; return what was written.

    ``write`` patches a subresource of the pod; its errors are not caught.
    """
    stamp = clocks.rfc3339(clock.time())
    write(pod, pods.condition_patch(pod, names.POD_SCHEDULED, "False", reason, message, stamp), "status")
    if reported is None or reported.reason != reason:
        events.event(pod, reason, message, action="Scheduling")
    return ReportedCondition(reason, message[:1024], clock.monotonic())
