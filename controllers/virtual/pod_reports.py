"""What podbridge reports about a pod beside its status: Events about its containers, and its spans."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bridge.kube.events import EventRecorder, reference
from bridge.protocol.model.jobs import JobStatus
from bridge.telemetry import tracing
from bridge.workload import pods
from controllers.virtual.pod_state import Entry, Pod

REPORTED_BEFORE = 300.0
"""Seconds before the first sight of a job: an earlier process has reported earlier occurrences in its containers."""


def event_once(
    events: EventRecorder, entry: Entry, pod: Pod, reason: str, message: str, *, topic: str = "", warning: bool = False
) -> None:
    """Write an Event once. Events are equal if reason and ``topic`` are; without ``topic``, reason and message."""
    key = f"{reason} {topic or message}"
    if key not in entry.reported_events:
        entry.reported_events |= {key}
        events.event(pod, reason, message, warning=warning)


def tell_occurrences(events: EventRecorder, pod: Pod, job: JobStatus, entry: Entry, now: float) -> None:
    """Write an Event for each failed probe or hook, and for each container that was killed, as a kubelet does."""
    for container, occurrence in entry.new_occurrences(job, now - REPORTED_BEFORE):
        if not re.fullmatch(r"[A-Z][A-Za-z]{0,62}", occurrence.reason):
            continue  # a job can write anything into its state
        kinds = ("initContainers", "containers")
        kind = next((k for k in kinds for c in pod["spec"].get(k) or () if c["name"] == container), None)
        if kind is not None:
            container_reference = {**reference(pod), "fieldPath": f"spec.{kind}{{{container}}}"}
            events.event(
                container_reference,
                occurrence.reason,
                occurrence.message,
                warning=occurrence.reason != "Killing",
                action="Running",
            )


def trace_end(pod: Pod, status: Mapping[str, Any], job: JobStatus | None, now: float) -> None:
    """Send the spans of a pod whose final phase was written just now."""
    if pods.is_finished(pod) or not pods.is_finished({"status": status}):
        return
    attributes = {
        "podbridge.pool": pod["spec"].get("nodeName") or "",
        "podbridge.job.id": job.job_id if job is not None else "",
        "podbridge.outcome": str(status["phase"]),
        "podbridge.reason": str(status.get("reason") or ""),
    }
    times = (job.submitted_at, job.started_at, job.ended_at) if job is not None else (None, None, None)
    tracing.ended(pod, now, attributes, *times)
