"""Why a pod waits, said on the pod: whether it is news, and the write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bridge import clock as clocks
from bridge import names
from bridge.clock import Clock
from bridge.kube.events import EventRecorder
from bridge.workload import pods
from scheduler.attempts import Attempt

Pod = Mapping[str, Any]

TELL_EVERY = 15.0
"""Seconds at least between two conditions that differ only in their text."""


def is_news(pod: Pod, attempt: Attempt, reason: str, message: str, now: float) -> bool:
    """Whether the condition would say something that the pod does not carry, and that was not changed just now."""
    told_reason, told_message = attempt.told
    if not told_reason:
        before = pods.condition(pod, names.POD_SCHEDULED)
        told_reason, told_message = before.get("reason", ""), before.get("message", "")
    if (told_reason, told_message) == (reason, message[:1024]):
        return False
    return told_reason != reason or now - attempt.told_at >= TELL_EVERY


def write_condition(
    pod: Pod,
    attempt: Attempt,
    reason: str,
    message: str,
    *,
    write: Callable[[Pod, dict[str, Any], str], None],
    events: EventRecorder,
    clock: Clock,
) -> None:
    """Write the condition PodScheduled=False, and an Event when the reason is new."""
    stamp = clocks.rfc3339(clock.time())
    write(pod, pods.condition_patch(pod, names.POD_SCHEDULED, "False", reason, message, stamp), "status")
    if attempt.told[0] != reason:
        events.event(pod, reason, message, action="Scheduling")
    attempt.told, attempt.told_at = (reason, message[:1024]), clock.monotonic()
