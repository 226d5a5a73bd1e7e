"""The state of a pod's containers, and whether a container has a log or can run a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.names import REMOTE_JOB
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.serving.http_error import AnswerError

Object = Mapping[str, Any]
CREATING = "ContainerCreating"
_LISTS = (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses"))


@dataclass(frozen=True, slots=True)
class ContainerPhase:
    """The state of a container. ``reason``: why it waits. ``earlier``: whether a previous run has ended."""

    state: str
    reason: str = ""
    earlier: bool = False


def check_log(pod: Object, status: JobStatus | None, container: str, *, previous: bool) -> None:
    """Raise :class:`AnswerError`, with the message of a kubelet, unless the container has the requested log.

    ``status``: the job's state from the site. If it is ``None``, the pod's own status is used.
    """
    name = _require(pod, container)
    description = f'container "{container}" in pod "{name}"'
    if status is None and _was_refused(pod):
        pod_status = pod["status"]
        text = ": ".join(str(pod_status[key]) for key in ("reason", "message") if pod_status.get(key))
        raise AnswerError(400, f'pod "{name}" has no log, because it never ran: {text or "it failed"}')
    state = state_of(pod, status, container)
    if previous:
        if not state.earlier:
            raise AnswerError(400, f"previous terminated {description} not found")
        return
    if state.state == "waiting" and not state.earlier:
        raise AnswerError(400, f"{description} is waiting to start: {state.reason or CREATING}")


def check_running(pod: Object, status: JobStatus | None, container: str) -> None:
    """Raise :class:`AnswerError` unless the container runs; ``status`` as in :func:`check_log`."""
    name = _require(pod, container)
    state = state_of(pod, status, container)
    if state.state == "running" and (status is None or status.phase == "running"):
        return
    reason = state.reason or CREATING if state.state == "waiting" else "it has ended"
    raise AnswerError(400, f'container "{container}" in pod "{name}" is not running: {reason}')


def check_pod_running(pod: Object, status: JobStatus | None) -> None:
    """Raise :class:`AnswerError` unless a container of the pod runs; ``status`` as in :func:`check_log`."""
    is_over = status is not None and status.phase != "running"
    if is_over or not any(state_of(pod, status, name).state == "running" for name in names(pod)):
        name = (pod.get("metadata") or {}).get("name", "")
        raise AnswerError(400, f'unable to forward port because pod "{name}" is not running')


def _require(pod: Object, container: str) -> str:
    """Return the pod's name; raise :class:`AnswerError` 404 unless it has the container."""
    name = str((pod.get("metadata") or {}).get("name", ""))
    if container not in names(pod):
        raise AnswerError(404, f'container "{container}" not found in pod "{name}"')
    return name


def _was_refused(pod: Object) -> bool:
    """Whether the pod has failed without a job at its site."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return (pod.get("status") or {}).get("phase") == "Failed" and not annotations.get(REMOTE_JOB)


def has_console(pod: Object, container: str) -> bool:
    """Return whether the container has an input or a terminal."""
    return any(
        one.get("name") == container and (one.get("stdin") or one.get("tty"))
        for kind, _ in _LISTS
        for one in (pod.get("spec") or {}).get(kind) or ()
    )


def names(pod: Object) -> list[str]:
    """Return the names of a pod's containers, then of its init containers."""
    spec = pod.get("spec") or {}
    return [str(container.get("name")) for kind, _ in _LISTS for container in spec.get(kind) or ()]


def state_of(pod: Object, status: JobStatus | None, container: str) -> ContainerPhase:
    """Return the state of a container: from the site, else from the pod's status, else waiting."""
    for reported in reported_states(status):
        if reported.name == container:
            waiting = reported.state == "waiting"
            reason = (reported.reason if waiting else "") or _from_pod_status(pod, container).reason
            return ContainerPhase(reported.state, reason, reported.last is not None)
    return _from_pod_status(pod, container)


def reported_states(status: JobStatus | None) -> Iterator[ContainerState]:
    """Yield the state of each container from the site."""
    if status is not None:
        yield from status.containers
        yield from status.init_containers


def _from_pod_status(pod: Object, container: str) -> ContainerPhase:
    pod_status = pod.get("status") or {}
    for _, kind in _LISTS:
        for container_status in pod_status.get(kind) or ():
            if container_status.get("name") != container:
                continue
            state = container_status.get("state") or {}
            earlier = bool((container_status.get("lastState") or {}).get("terminated"))
            for kind_of_state in ("running", "terminated"):
                if kind_of_state in state:
                    return ContainerPhase(kind_of_state, "", earlier)
            return ContainerPhase("waiting", str((state.get("waiting") or {}).get("reason") or ""), earlier)
    return ContainerPhase("waiting")
