"""The DMS's words for the state of a job, and the state of a pod's job from its answer. Pure.

Only ``running`` is published. The other words are those of public DMS sources and of common schedulers; the
configuration adds more (``statuses``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from bridge import job_ends
from bridge.clock import rfc3339
from bridge.pools.nunet.dialect import JobAnswer
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
_WORDS: dict[State, tuple[str, ...]] = {
    "queued": ("queued", "pending", "submitted", "accepted", "created", "waiting", "scheduled", "new", "received"),
    "running": ("running", "started", "starting", "in progress", "active", "executing", "deploying", "pulling"),
    "succeeded": (
        *("succeeded", "success", "successful", "completed", "complete", "finished", "done"),
        "finished without errors",
    ),
    "failed": ("failed", "failure", "error", "errored", "finished with errors", "crashed", "timeout", "timed out"),
    "cancelled": ("cancelled", "canceled", "killed", "stopped", "aborted", "terminated", "deleted"),
}
KNOWN: dict[str, State] = {word: state for state, words in _WORDS.items() for word in words}


def normal(word: str) -> str:
    """Return a word in the form of :data:`KNOWN`: lower case, words separated by one blank."""
    return re.sub(r"[\s_-]+", " ", word).strip().lower()


def state_of(word: str, configured: Mapping[str, State]) -> State | None:
    """Return the meaning of a word; ``None`` if it has none. ``configured`` replaces :data:`KNOWN`."""
    key = normal(word)
    return configured.get(key) or KNOWN.get(key)


def job_status(
    pod: Mapping[str, Any],
    answer: JobAnswer,
    job: str,
    configured: Mapping[str, State],
    *,
    peer: str = "",
    last_status: JobStatus | None = None,
    now: float,
) -> JobStatus:
    """Return the state of a pod's job. ``last_status``: the last known state. ``now``: seconds since 1970.

    The DMS reports no exit code in the published form: it is 0 for a job that succeeded, and 1 for one that failed.
    A word without a meaning leaves the last known state.
    """
    metadata = pod["metadata"]
    state = state_of(answer.status, configured)
    container = _container_name(pod, last_status)
    common_fields: dict[str, Any] = {
        "job": metadata["uid"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "owner": "",
        "job_id": job,
        "host": peer or (last_status.host if last_status else ""),
    }
    started_at = answer.started_at or (last_status.started_at if last_status else None)
    if state is None:
        return JobStatus(**common_fields, phase="unknown", started_at=started_at, message=unknown(answer.status))
    if state == "queued":
        return JobStatus(
            **common_fields, phase="queued", message=answer.message, containers=[ContainerState(name=container)]
        )
    if state == "running":
        started_at = started_at or now
        running = ContainerState(name=container, state="running", started_at=started_at, started=True, ready=True)
        last_message = last_status.message if last_status and last_status.phase == "running" else ""
        # the text stays: a new one for each answer would be written to the pod
        latest = f"the DMS ends it at {rfc3339(now + answer.remaining)} at the latest" if answer.remaining else ""
        return JobStatus(
            **common_fields,
            phase="running",
            started_at=started_at,
            message=last_message or latest,
            containers=[running],
        )
    if last_status is not None and last_status.phase == "ended":
        return last_status
    exit_code = answer.exit_code if answer.exit_code is not None else 0 if state == "succeeded" else 1
    reason = job_ends.CANCELLED.site_reason if state == "cancelled" else "" if exit_code == 0 else "Error"
    ended_at = started_at + answer.duration if started_at and answer.duration else now
    ended = Termination(exit_code=exit_code, message=answer.message, started_at=started_at, finished_at=ended_at)
    return JobStatus(
        **common_fields,
        phase="ended",
        outcome="Succeeded" if state == "succeeded" and exit_code == 0 else "Failed",
        reason=reason,
        message=answer.message,
        started_at=started_at,
        ended_at=ended_at,
        containers=[ContainerState(name=container, state="terminated", ended=ended)],
    )


def unknown(word: str) -> str:
    """Return a message about a word that has no meaning."""
    return f"the DMS's status {word[:60]!r} has no meaning here: add it to statuses of the pool; allowed: {STATES}"


def _container_name(pod: Mapping[str, Any], last_status: JobStatus | None) -> str:
    """Return the name of the pod's only container, also for a job whose pod is gone."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    if containers:
        return str(containers[0]["name"])
    return last_status.containers[0].name if last_status is not None and last_status.containers else "main"
