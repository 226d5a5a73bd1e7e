"""What users see of a pod on a virtual node beside its status: its Events. And the spans of its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bridge.clock import Clock
from bridge.errors import BridgeError, SiteError
from bridge.kube.events import EventRecorder, reference
from bridge.protocol.model.jobs import JobStatus
from bridge.telemetry import tracing
from bridge.workload import places, pods
from controllers.virtual.pod_state import Entry, Pod

REPORTED_BEFORE = 300.0
"""Seconds before the first sight of a job: an earlier process has reported earlier occurrences in its containers."""
MOST_ONCE = 64
"""Events of a pod that are written once: the texts of a site are kept."""


class PodReports:
    """Writes the Events. Those that a lasting state would repeat are written once for each entry."""

    def __init__(self, events: EventRecorder, clock: Clock) -> None:
        self._events, self._clock = events, clock

    def _once(
        self, entry: Entry, pod: Pod, reason: str, message: str, *, topic: str = "", warning: bool = True
    ) -> bool:
        """Write an Event and return true, unless there was an equal one.

        Events are equal if reason and ``topic`` are; without ``topic``, reason and message. Sites give many of them.
        """
        key = f"{reason} {topic or message}"
        if key in entry.reported_events or len(entry.reported_events) >= MOST_ONCE:
            return False
        entry.reported_events |= {key}
        self._events.event(pod, reason, message, warning=warning)
        return True

    # --- before and at the submission ---------------------------------------------------------------------------------
    def waiting(self, pod: Pod, entry: Entry, error: BridgeError, *, topic: str = "") -> None:
        """Report that the pod waits: a request to its site has failed, or an object is missing."""
        text = f"waiting for the site: {error.with_hint}" if isinstance(error, SiteError) else error.with_hint
        self._once(entry, pod, "BridgeWaiting", text, topic=topic)

    def offered(self, pod: Pod, pool: str, job: JobStatus) -> None:
        """Report that a pod that races has a job at a pool."""
        self._events.event(pod, places.OFFERED, places.offered_note(pool, job.job_id or job.job))

    def refused(self, pod: Pod, pool: str, entry: Entry, reason: str, text: str) -> bool:
        """Report that a pool has refused a pod that races; return whether this is news."""
        note = places.refused_note(pool, f"{reason}: {text}")
        return self._once(entry, pod, places.REFUSED, note, topic=reason)

    def granted(self, pod: Pod, pool: str) -> None:
        """Report that a pod that races is bound to a pool."""
        self._events.event(pod, "BridgeGranted", f"pool {pool} was the first to start a job of the pod")

    # --- afterwards ---------------------------------------------------------------------------------------------------
    def written(self, pod: Pod, job: JobStatus, status: Mapping[str, Any], job_id: str | None, entry: Entry) -> None:
        """Report what has changed with a written status; ``job_id``: the new id of the job, ``<pool>/<id>``."""
        if job_id is not None:
            pool_and_job = job_id.replace("/", " has it as job ", 1)
            self._events.event(pod, "BridgeSubmitted", f"pool {pool_and_job}{entry.note}")
        reason = ": ".join(part for part in (job.reason, job.message) if part)
        if job.phase == "queued" and reason:
            self._once(entry, pod, "BridgeQueued", reason, topic=job.reason, warning=False)
        phase = status.get("phase")
        if phase == "Running" and (pod.get("status") or {}).get("phase") != "Running":
            detail = f": {job.message}" if job.message else ""
            self._events.event(pod, "BridgeStarted", f"runs on {job.host or 'the site'}{detail}")
        if phase == "Failed" and status.get("reason"):
            self.failed(pod, "BridgeFailed", status["reason"], status.get("message", ""))

    def cancelled(self, pod: Pod, pool: str, entry: Entry, job: JobStatus) -> None:
        """Report that the site has accepted the cancellation of the job."""
        self._once(entry, pod, "BridgeCancelled", f"pool {pool} cancels job {job.job_id}", warning=False)

    def failed(self, pod: Pod, event: str, reason: str, message: str) -> None:
        """Report that the pod has failed."""
        self._events.event(pod, event, f"{reason}: {message}", warning=True)

    def files_kept(self, pod: Pod, entry: Entry, problem: str, *, topic: str = "") -> None:
        """Report that files of volumes could not be replaced."""
        text = f"files of volumes keep their content at the site: {problem}"
        self._once(entry, pod, "BridgeFilesKept", text, topic=topic or problem)

    def occurrences(self, pod: Pod, job: JobStatus, entry: Entry) -> None:
        """Report each failed probe or hook, and each container that was killed, as a kubelet does."""
        for container, occurrence in entry.new_occurrences(job, self._clock.time() - REPORTED_BEFORE):
            if not re.fullmatch(r"[A-Z][A-Za-z]{0,62}", occurrence.reason):
                continue  # a job can write anything into its state
            kinds = ("initContainers", "containers")
            kind = next((k for k in kinds for c in pod["spec"].get(k) or () if c["name"] == container), None)
            if kind is not None:
                container_reference = {**reference(pod), "fieldPath": f"spec.{kind}{{{container}}}"}
                self._events.event(
                    container_reference,
                    occurrence.reason,
                    occurrence.message,
                    warning=occurrence.reason != "Killing",
                    action="Running",
                )

    def trace_end(self, pod: Pod, status: Mapping[str, Any], job: JobStatus | None) -> None:
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
        tracing.ended(pod, self._clock.time(), attributes, *times)
