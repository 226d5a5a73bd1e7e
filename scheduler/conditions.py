"""The condition PodScheduled=False of a waiting pod: when it is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names
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
