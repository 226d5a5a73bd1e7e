"""Spans of a pod on the colocated Slurm.

The scheduler sends the spans up to the binding, the controllers those after it, each when its end is known. Times that
another process has observed are read from the job and the pod. Callers test ``tracing.tracer`` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge import names
from bridge.clock import parse_rfc3339
from bridge.telemetry import tracing
from bridge.workload import pods

Pod = Mapping[str, Any]

SPANS: Mapping[str, tuple[str, str]] = {
    tracing.ADMISSION: tracing.SPANS[tracing.ADMISSION],
    tracing.POD: (tracing.ADMISSION, "From the creation of the pod to the end of the release."),
    tracing.SCHEDULE: tracing.SPANS[tracing.SCHEDULE],
    tracing.SUBMIT: (
        tracing.POD,
        "The request that submits a Slurm job for the pod, or for its group. Each job has a span.",
    ),
    tracing.QUEUE: (tracing.POD, "From the submission of the job to its allocation."),
    tracing.BIND: (
        tracing.POD,
        "From the allocation to the binding of the pod. The pod waits for a busy or starting node here.",
    ),
    tracing.RUN: (tracing.POD, "From the binding to the end of the last container."),
    tracing.RELEASE: (
        tracing.POD,
        "From the end of the last container to the removal of the finalizer. The last pod of a job cancels it before.",
    ),
}
"""Parent and meaning of each span of a pod on the colocated Slurm."""
DELETED = "Deleted"
"""Reason of a pod that was deleted before it was bound."""
_STATUSES = ("initContainerStatuses", "containerStatuses")


def traceparent(members: Iterable[Pod]) -> str:
    """Return the context of the span ``pod`` of the first pod that is traced; empty if none is."""
    for pod in members:
        if (context := tracing.of(pod)) is not None:
            return tracing.derived(context, pods.uid(pod), tracing.POD).text
    return ""


def submitted(members: Iterable[Pod], job_id: int, start: float, end: float) -> None:
    """Send the span of the request that submitted a job, for each of its pods."""
    for pod in members:
        if (context := tracing.of(pod)) is not None:
            attributes = _job(job_id)
            tracing.child(pod, context, tracing.SUBMIT, start, end, attributes, part=str(job_id))


def bound(pod: Pod, job_id: int, node: str, submitted_at: float | None, allocated_at: float, now: float) -> None:
    """Send the spans that end with the allocation and with the binding just now.

    ``submitted_at`` is ``None`` if neither this process nor the job as read from Slurm shows it: the span ``queue``
    then begins with the creation of the pod. So it does for a pod that gets a place in the job of its group later.
    """
    context = tracing.of(pod)
    if context is None:
        return
    attributes = {**_job(job_id), "k8s.node.name": node}
    created = tracing.created_at(pod, now)
    since = created if submitted_at is None else max(created, submitted_at)
    # the time of Slurm's host may differ: no span ends before it begins
    allocated = min(max(allocated_at, since), now)
    tracing.child(pod, context, tracing.QUEUE, since, allocated, attributes)
    tracing.child(pod, context, tracing.BIND, allocated, now, attributes)
    tracing.child(pod, context, tracing.SCHEDULE, created, now, attributes)


def released(pod: Pod, now: float) -> None:
    """Send the last spans of a pod whose finalizer was removed just now; ``pod`` is the API server's answer.

    A pod that was bound to a pool has the spans of that pool instead.
    """
    context, job_id = tracing.of(pod), pods.job_id(pod)
    if context is None or job_id is None or names.SLURM_NODE_ANNOTATION not in (pod["metadata"]["annotations"]):
        return
    status = pod.get("status") or {}
    attributes = {**_job(job_id), "k8s.node.name": pod["spec"]["nodeName"]}
    if pods.is_finished(pod):
        attributes["podbridge.outcome"] = status["phase"]
    if status.get("reason"):
        attributes["podbridge.reason"] = status["reason"]
    error = str(status.get("reason") or "Failed") if status.get("phase") == "Failed" else ""
    started = _transition(pod, names.POD_SCHEDULED)
    ended = min(ended_at(pod) or now, now)
    if started is not None:
        tracing.child(pod, context, tracing.RUN, started, ended, attributes, error)
    tracing.child(pod, context, tracing.RELEASE, ended, now, attributes)
    tracing.whole(pod, context, now, attributes, error)


def withdrawn(pod: Pod, job_id: int | None, submitted_at: float | None, now: float) -> None:
    """Send the last spans of a pod that was deleted before it was bound, and whose job was cancelled just now."""
    context = tracing.of(pod)
    if context is None:
        return
    reason = (pod.get("status") or {}).get("reason") or DELETED
    attributes = {"podbridge.reason": reason, **({} if job_id is None else _job(job_id))}
    deleted = min(_time(pod["metadata"].get("deletionTimestamp")) or now, now)
    if submitted_at is not None:
        tracing.child(pod, context, tracing.QUEUE, submitted_at, deleted, attributes)
    tracing.child(pod, context, tracing.RELEASE, deleted, now, attributes)
    tracing.whole(pod, context, now, attributes)


def ended_at(pod: Pod) -> float | None:
    """Return when the last container ended, in whole seconds; ``None`` if the kubelet has not reported it."""
    status = pod.get("status") or {}
    entries = [entry for kind in _STATUSES for entry in status.get(kind) or ()]
    times = [_time(((entry.get("state") or {}).get("terminated") or {}).get("finishedAt")) for entry in entries]
    return max((time for time in times if time), default=None)


def _job(job_id: int) -> dict[str, str]:
    return {"podbridge.job.id": str(job_id)}


def _transition(pod: Pod, kind: str) -> float | None:
    """Return when a condition became true."""
    condition = pods.condition(pod, kind)
    return _time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _time(text: object) -> float | None:
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None
