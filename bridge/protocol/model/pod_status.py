"""The status of a pod from the state of its job, in the form of a kubelet. Pure.

It follows the rules of the kubelet:

- The status has exactly the pod's containers, in the order of its spec.
- The status of a finished pod does not change.
- A container with a final end does not run again.
- A container that has started and whose end is unknown has ended with exit code 137.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from bridge import job_ends
from bridge.clock import rfc3339
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination
from bridge.workload import pods, services

Pod = Mapping[str, Any]
Status = dict[str, Any]

UNKNOWN_END = "ContainerStatusUnknown"
KILLED = 137
MESSAGE = 1024
_NOWHERE = {"IPv6": "100::", "IPv4": "192.0.0.8"}
"""``podIP`` of a pod that Services reach, since clients such as KubeSpawner wait for one: the prefix for discarded
packets (RFC 6666), the dummy address (RFC 7600). The family is one that the Services do not have, so the controllers of
EndpointSlices and Endpoints ignore it. Other pods have none: that of the machine belongs to something else in the
cluster."""
_PLAIN = frozenset({"", "Completed", "Error", "Succeeded", "Failed"})
"""Reasons of a job that add nothing to the exit codes of its containers."""


def pod_status(
    pod: Pod, job: JobStatus, host_ip: str, now: float, families: Collection[str] | None = frozenset()
) -> Status:
    """Return the status of a pod for a state of its job. ``now``: seconds since 1970.

    ``families``: ``IPv4`` and ``IPv6``, as far as Services that select the pod have them; ``None``: not known yet.

    It has the fields that a kubelet owns. ``qosClass`` and conditions of other components are absent.
    """
    last_status = pod.get("status") or {}
    if pods.is_finished(pod) or job.phase == "unknown":
        return dict(last_status)
    spec = pod["spec"]
    init, main = container_statuses(pod, job)
    phase = _phase(spec, last_status, job, init, main)
    status: Status = {
        "phase": phase,
        "startTime": last_status.get("startTime") or time_of(job.submitted_at) or rfc3339(now),
        "containerStatuses": main,
    }
    if host_ip:
        status["hostIP"], status["hostIPs"] = host_ip, [{"ip": host_ip}]
    if init:
        status["initContainerStatuses"] = init
    if phase == "Running" and services.is_exposed(pod):
        is_known = families is not None or last_status.get("phase") != phase
        address = _nowhere(host_ip, families or ()) if is_known else last_status.get("podIP")
        if address:
            status["podIP"], status["podIPs"] = address, [{"ip": address}]
    if phase == "Failed" and job.reason not in _PLAIN:
        status["reason"], status["message"] = job.reason[:128], job.message[:MESSAGE]
    status["conditions"] = _conditions(pod, job, phase, init, main, now)
    return status


def _nowhere(host_ip: str, families: Collection[str]) -> str | None:
    order = ("IPv4", "IPv6") if ":" in host_ip else ("IPv6", "IPv4")
    return next((_NOWHERE[family] for family in order if family not in families), None)


# --- containers -------------------------------------------------------------------------------------------------------
def container_statuses(pod: Pod, job: JobStatus) -> tuple[list[Status], list[Status]]:
    """Return the v1.ContainerStatus of each init container and of each container, in the order of the spec."""
    spec, last_status = pod["spec"], pod.get("status") or {}
    has_init = bool(spec.get("initContainers"))
    waiting = _waiting(job, "PodInitializing" if has_init else "ContainerCreating")
    # v1.ContainerStatus.containerID has the form TYPE://ID
    prefix = f"podbridge://{spec.get('nodeName', '')}/{pod['metadata']['uid']}"
    # the pod determines the kind of a container, not the site; names are unique over both kinds
    states_by_name = {state.name: state for state in (*job.init_containers, *job.containers)}
    status_lists = []
    for kind, status_field in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        earlier_statuses = {entry.get("name"): entry for entry in last_status.get(status_field) or ()}
        entries = []
        for container in spec.get(kind) or ():
            entry = _container(
                container, states_by_name.get(container["name"]), waiting, prefix, init=kind == "initContainers"
            )
            entries.append(_with_final_end(spec, container, entry, earlier_statuses.get(container["name"])))
        status_lists.append(entries)
    init, main = status_lists
    if job.phase == "ended":
        _finish(job, init, main)
    return init, main


def _waiting(job: JobStatus, reason: str) -> Status:
    if job.phase != "queued":
        return {"reason": reason}
    job_reason = ": ".join(part for part in (job.reason, job.message) if part)
    text = f"queued as job {job.job_id}" if job.job_id else "queued"
    return {"reason": reason, "message": f"{text} ({job_reason[:MESSAGE]})" if job_reason else text}


def _container(
    container: Mapping[str, Any], state: ContainerState | None, waiting: Status, prefix: str, *, init: bool
) -> Status:
    name = container["name"]
    entry: Status = {
        "name": name,
        "image": container.get("image", ""),
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
        "lastState": {},
    }
    if state is None:
        return entry
    identity = f"{prefix}/{name}"
    entry["restartCount"] = max(0, state.restarts)
    if state.last is not None:
        entry["lastState"] = {"terminated": _terminated(state.last, identity)}
    if state.state == "running":
        entry["state"] = {"running": {"startedAt": time_of(state.started_at)}}
        entry["started"], entry["ready"] = state.started, state.started and state.ready
        if init and container.get("restartPolicy") != "Always":
            entry["ready"] = False
    elif state.state == "terminated":
        ended = state.ended or Termination(exit_code=KILLED, reason=UNKNOWN_END, started_at=state.started_at)
        entry["state"] = {"terminated": _terminated(ended, identity)}
        entry["ready"] = init and ended.exit_code == 0 and container.get("restartPolicy") != "Always"
    elif state.reason:
        text = state.message or waiting.get("message", "")
        entry["state"] = {"waiting": {"reason": state.reason, **({"message": text[:MESSAGE]} if text else {})}}
    if state.state != "waiting" or state.last is not None:
        entry["containerID"] = identity
    return entry


def _terminated(ended: Termination, identity: str) -> Status:
    reason = ended.reason or ("Completed" if ended.exit_code == 0 else "Error")
    terminated: Status = {
        "exitCode": ended.exit_code,
        "reason": reason[:128],
        "startedAt": time_of(ended.started_at),
        "finishedAt": time_of(ended.finished_at),
        "containerID": identity,
    }
    if ended.signal:
        terminated["signal"] = ended.signal
    if ended.message:
        terminated["message"] = ended.message[:4096]
    return terminated


def _with_final_end(spec: Mapping[str, Any], container: Mapping[str, Any], entry: Status, earlier: Any) -> Status:
    """Return the earlier status if its end is final: the API server refuses a container that runs again after it."""
    final_state = ((earlier or {}).get("state") or {}).get("terminated")
    if final_state is None or "terminated" in entry["state"]:
        return entry
    policy = spec.get("restartPolicy") or "Always"
    sidecar = container.get("restartPolicy") == "Always"
    may_return = sidecar or policy == "Always" or (policy == "OnFailure" and final_state.get("exitCode") != 0)
    return entry if may_return else dict(earlier)


def _finish(job: JobStatus, init: list[Status], main: list[Status]) -> None:
    """Terminate the containers without an end although the job has ended, as a kubelet does."""
    reason = job.reason if job.reason not in _PLAIN else UNKNOWN_END
    text = job.message or "the job has ended; the exit code of the container is not known"

    def end(entry: Status) -> None:
        running = entry["state"].get("running") or {}
        entry["state"] = {
            "terminated": {
                "exitCode": KILLED,
                "reason": reason[:128],
                "message": text[:MESSAGE],
                "startedAt": running.get("startedAt"),
                "finishedAt": time_of(job.ended_at),
            }
        }
        entry["ready"] = entry["started"] = False

    begun_indexes = [index for index, entry in enumerate(init) if _has_begun(entry)]
    last_begun = begun_indexes[-1] if begun_indexes else -1
    if not init or init[-1]["ready"] or any(map(_has_begun, main)):  # the pod was initialized
        last_begun = len(init) - 1
        for entry in main:
            if "terminated" not in entry["state"]:
                end(entry)
    for entry in init[: last_begun + 1]:
        if "terminated" not in entry["state"]:
            end(entry)


def _has_begun(entry: Status) -> bool:
    return "waiting" not in entry["state"] or bool(entry["lastState"])


# --- the pod ----------------------------------------------------------------------------------------------------------
def _phase(
    spec: Mapping[str, Any], last_status: Mapping[str, Any], job: JobStatus, init: list[Status], main: list[Status]
) -> str:
    if job.phase == "ended":
        has_succeeded = all((entry["state"].get("terminated") or {}).get("exitCode") == 0 for entry in main)
        return "Succeeded" if has_succeeded and main and job.outcome != "Failed" else "Failed"
    if last_status.get("phase") == "Running":
        return "Running"
    if job.phase == "queued" or not _initialized(spec, init, main):
        return "Pending"
    return "Running" if all(map(_has_begun, main)) else "Pending"


def _initialized(spec: Mapping[str, Any], init: list[Status], main: list[Status]) -> bool:
    """Whether every init container has succeeded, or, if it is a sidecar, started."""
    if any(map(_has_begun, main)):
        return True
    return all(
        _init_done(container, entry) for container, entry in zip(spec.get("initContainers") or (), init, strict=False)
    )


def _init_done(container: Mapping[str, Any], entry: Status) -> bool:
    return bool(entry["started"] if container.get("restartPolicy") == "Always" else entry["ready"])


def _conditions(
    pod: Pod, job: JobStatus, phase: str, init: list[Status], main: list[Status], now: float
) -> list[Status]:
    spec = pod["spec"]
    sidecars = [
        entry
        for container, entry in zip(spec.get("initContainers") or (), init, strict=False)
        if container.get("restartPolicy") == "Always"
    ]
    end_reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
    unready = [entry["name"] for entry in (*sidecars, *main) if not entry["ready"]]
    if end_reason:
        containers_ready: tuple[bool, str, str] = (False, end_reason, "")
    elif unready:
        containers_ready = (False, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        containers_ready = (True, "", "")
    pod_ready = containers_ready if not containers_ready[0] else _gates(pod)
    if phase == "Succeeded":
        initialized: tuple[bool, str, str] = (True, "PodCompleted", "")
    elif _initialized(spec, init, main):
        initialized = (True, "", "")
    else:
        missing = [
            entry["name"]
            for container, entry in zip(spec.get("initContainers") or (), init, strict=False)
            if not _init_done(container, entry)
        ]
        text = f"containers with incomplete status: [{' '.join(missing)}]"
        initialized = (False, "ContainersNotInitialized", text)
    rows = {
        "PodReadyToStartContainers": (job.phase == "running", "", ""),
        "Initialized": initialized,
        "Ready": pod_ready,
        "ContainersReady": containers_ready,
    }
    if phase == "Failed" and job_ends.is_disruption(job.reason):
        rows["DisruptionTarget"] = (True, job.reason, job.message[:MESSAGE])
    return [_condition(pod, kind, *row, now) for kind, row in rows.items()]


def _gates(pod: Pod) -> tuple[bool, str, str]:
    gates = [gate.get("conditionType", "") for gate in pod["spec"].get("readinessGates") or ()]
    missing = [gate for gate in gates if pods.condition(pod, gate).get("status") != "True"]
    if missing:
        return (
            False,
            "ReadinessGatesNotReady",
            f'corresponding condition of pod readiness gate "{missing[0]}" is not met.',
        )
    return True, "", ""


def _condition(pod: Pod, kind: str, is_true: bool, reason: str, message: str, now: float) -> Status:
    last_condition = pods.condition(pod, kind)
    status = "True" if is_true else "False"
    transition_time = last_condition.get("lastTransitionTime") if last_condition.get("status") == status else None
    entry: Status = {"type": kind, "status": status, "lastTransitionTime": transition_time or rfc3339(now)}
    if reason:
        entry["reason"] = reason
    if message:
        entry["message"] = message
    return entry


def time_of(seconds: float | None) -> str | None:
    """Return a time that a site reported as a Kubernetes Time; ``None`` if there is none, or it is out of range."""
    if seconds is None or not 0 < seconds < 1e11:
        return None
    return rfc3339(seconds)
