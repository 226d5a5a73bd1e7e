"""The statuses of pods that the hub itself determines, and the patch from one status to another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.clock import parse_rfc3339
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination, identity_of
from bridge.protocol.model.pod_status import KILLED, Pod, Status, pod_status

_WHOLE = ("phase", "startTime", "hostIP", "podIP", "reason", "message", "containerStatuses", "initContainerStatuses")
_LISTS = ("hostIPs", "podIPs")


def patch(before: Mapping[str, Any], after: Status) -> Status:
    """Return the ``status`` of a strategic merge patch from one status to the other; empty if they are equal."""
    result: Status = {}
    for key in _WHOLE:
        if not _is_equal(before.get(key), after.get(key)):
            result[key] = after.get(key)
    for key in _LISTS:
        if not _is_equal(before.get(key), after.get(key)):
            # a strategic patch merges these lists by IP: a former address would stay
            result[key] = [*(after.get(key) or ()), {"$patch": "replace"}]
    conditions = _changed_conditions(before.get("conditions") or (), after.get("conditions") or ())
    if conditions:
        result["conditions"] = conditions
    return result


def _changed_conditions(before: Iterable[Mapping[str, Any]], after: Iterable[Status]) -> list[Status]:
    conditions_by_type = {entry.get("type"): entry for entry in before}
    changed = []
    for entry in after:
        old = conditions_by_type.get(entry["type"], {})
        fields = ("status", "reason", "message", "lastTransitionTime")
        if any((old.get(key) or None) != (entry.get(key) or None) for key in fields):
            # a merge keeps fields that the patch does not have
            changed.append({**entry, **{key: None for key in fields if old.get(key) and not entry.get(key)}})
    return changed


def _is_equal(first: Any, second: Any) -> bool:
    """Whether two values are equal in the API server, which stores no empty values."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return all(_is_equal(first.get(key), second.get(key)) for key in first.keys() | second.keys())
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_is_equal, first, second))
    return bool(first == second or not (first or second))


def failed(pod: Pod, reason: str, message: str, host_ip: str, now: float) -> Status:
    """Return the status of a pod that the hub fails: its job is lost, or was never submitted."""
    job = JobStatus(
        **identity_of(pod),
        phase="ended",
        outcome="Failed",
        reason=reason,
        message=message,
        submitted_at=now,
        ended_at=now,
        init_containers=_container_states(pod, "initContainerStatuses"),
        containers=_container_states(pod, "containerStatuses"),
    )
    return pod_status(pod, job, host_ip, now)


def waiting(pod: Pod, reason: str, message: str, host_ip: str, now: float) -> Status:
    """Return the status of a pod that cannot be submitted yet: its containers wait for ``reason``."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    states = [ContainerState(name=container["name"], reason=reason, message=message) for container in containers]
    job = JobStatus(**identity_of(pod), phase="queued", submitted_at=now, containers=states)
    return pod_status(pod, job, host_ip, now)


def _container_states(pod: Pod, kind: str) -> list[ContainerState]:
    """Return the states of the containers in one list of the pod's status."""
    result = []
    for entry in (pod.get("status") or {}).get(kind) or ():
        state = entry.get("state") or {}
        termination = state.get("terminated")
        result.append(
            ContainerState(
                name=entry["name"],
                state="terminated" if termination else "running" if "running" in state else "waiting",
                started_at=_seconds((state.get("running") or termination or {}).get("startedAt")),
                ended=_ended(termination),
                restarts=entry.get("restartCount", 0),
                last=_ended((entry.get("lastState") or {}).get("terminated")),
            )
        )
    return result


def _ended(termination: Mapping[str, Any] | None) -> Termination | None:
    if termination is None:
        return None
    return Termination(
        exit_code=termination.get("exitCode", KILLED),
        signal=termination.get("signal", 0),
        reason=termination.get("reason", ""),
        message=termination.get("message", ""),
        started_at=_seconds(termination.get("startedAt")),
        finished_at=_seconds(termination.get("finishedAt")),
    )


def _seconds(text: str | None) -> float | None:
    return parse_rfc3339(text) if text else None
