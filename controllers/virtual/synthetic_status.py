"""Statuses of pods that the hub itself determines, without a report of the site. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.clock import parse_rfc3339
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination
from bridge.protocol.model.pod_status import KILLED, Pod, Status, pod_status


def failed(pod: Pod, reason: str, message: str, host_ip: str, now: float) -> Status:
    """Return the status of a pod that the hub fails: its job is lost, or was never submitted."""
    metadata = pod["metadata"]
    job = JobStatus(
        job=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
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
    metadata = pod["metadata"]
    states = {
        kind: [
            ContainerState(name=container["name"], reason=reason, message=message)
            for container in pod["spec"].get(kind) or ()
        ]
        for kind in ("initContainers", "containers")
    }
    job = JobStatus(
        job=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        phase="queued",
        submitted_at=now,
        init_containers=states["initContainers"],
        containers=states["containers"],
    )
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
    return None if not text else parse_rfc3339(text)
