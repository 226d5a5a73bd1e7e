"""The state of a job from a plugin's PodStatus: the client's direction.

Every value comes from another program and is checked. The rules are those of interLink's virtual kubelet: the job has
ended when every container of the pod is terminated, and it has failed when one of them, or an init container, has an
exit code other than 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bridge.clock import parse_rfc3339
from bridge.errors import SiteError
from bridge.interlink.messages import PodStatus
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination

Pod = Mapping[str, Any]

NOT_READY = "ContainerNotReady"
"""Reason of a container that podbridge's plugin reports as waiting: it runs, and its probes have not succeeded. The
virtual kubelet takes each running container for ready."""
NOT_STARTED = "ContainerNotStarted"
"""Reason of a container that podbridge's plugin reports as terminated: it never ran, because the job ended before. The
virtual kubelet ends a pod only when every container is terminated."""
SIDECAR = "SidecarRunning"
"""Reason of a sidecar (an init container that is restarted) that podbridge's plugin reports as terminated: it runs. The
virtual kubelet keeps a pod Pending while an init container runs."""
KILLED = 137
LONGEST = 1024
_CAMEL = re.compile(r"[A-Z][A-Za-z0-9]{0,127}")
_OF_CONTAINERS = frozenset(
    {
        *("Completed", "Error", "OOMKilled", "ContainerCannotRun", "StartError", "ContainerStatusUnknown"),
        *(NOT_STARTED, SIDECAR),
    }
)
"""Reasons that concern one container; every other reason is that of the job."""


def job_status(pod: Pod, answer: PodStatus, owner: str) -> JobStatus | None:
    """Return the state of a job; ``None`` if the plugin does not know it: every container has an empty state.

    Raises :class:`SiteError` if the answer is of another pod or lacks a container of the pod.
    """
    metadata = pod["metadata"]
    if answer.uid != metadata["uid"] or answer.name != metadata["name"] or answer.namespace != metadata["namespace"]:
        raise SiteError(f"the plugin answered for pod {answer.namespace}/{answer.name} ({answer.uid}) instead")
    spec = pod.get("spec") or {}
    main = {str(entry.get("name")): _container(entry) for entry in answer.containers}
    # a list, not a set: the plugin's name may be any JSON value, also one that has no hash
    init_names = [each.get("name") for each in spec.get("initContainers") or ()]
    init_entries = [entry for entry in answer.init_containers if entry.get("name") in init_names]
    init = {str(entry.get("name")): _container(entry) for entry in init_entries}
    # of a pod that is gone, the caller may know only the identity
    container_names = [str(each["name"]) for each in spec.get("containers") or ()] or list(main)
    if lacking := [name for name in container_names if name not in main]:
        raise SiteError(f"the plugin's answer lacks container {lacking[0]!r}")
    if not container_names:
        raise SiteError("the plugin's answer has no containers")
    if all(not _state(entry) for entry in (*answer.containers, *init_entries)):
        return None
    containers = [main[name] for name in container_names]
    ended = [each.ended for each in containers if each.state == "terminated" and each.ended is not None]
    bad_init = [each for each in init.values() if each.ended is not None and each.ended.exit_code != 0]
    states = [*init.values(), *containers]
    phase: Literal["queued", "running", "ended"] = "queued"
    if bad_init or all(_is_over(entry) for entry in answer.containers if entry.get("name") in container_names):
        phase = "ended"
    elif any(each.state != "waiting" for each in states):
        phase = "running"
    failed = bool(bad_init) or any(each.exit_code != 0 for each in ended)
    reason, message = _reason_and_message(phase, states, answer)
    return JobStatus(
        job=metadata["uid"],
        owner=owner,
        namespace=metadata["namespace"],
        name=metadata["name"],
        job_id=(answer.jid or "")[:LONGEST],
        phase=phase,
        outcome="" if phase != "ended" else "Failed" if failed or len(ended) < len(containers) else "Succeeded",
        reason=reason,
        message=message,
        started_at=min((at for each in states if (at := _began(each)) is not None), default=None),
        ended_at=max((each.finished_at for each in ended if each.finished_at), default=None)
        if phase == "ended"
        else None,
        init_containers=list(init.values()),
        containers=containers,
    )


def _began(state: ContainerState) -> float | None:
    return state.ended.started_at if state.ended is not None else state.started_at


def _reason_and_message(phase: str, states: Iterable[ContainerState], answer: PodStatus) -> tuple[str, str]:
    if phase == "ended":
        for state in states:
            ended = state.ended
            if ended is not None and ended.exit_code != 0 and ended.reason and ended.reason not in _OF_CONTAINERS:
                return ended.reason, ended.message
        return "", ""
    if phase == "queued":
        for entry in answer.containers:
            waiting = _state(entry).get("waiting")
            if isinstance(waiting, dict) and (reason := _reason(waiting)):
                return reason, _text(waiting, "message")
    return "", ""


def _state(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    state = entry.get("state")
    return {key: value for key, value in state.items() if value is not None} if isinstance(state, dict) else {}


def _is_over(entry: Mapping[str, Any]) -> bool:
    return isinstance(_state(entry).get("terminated"), dict)


def _container(entry: Mapping[str, Any]) -> ContainerState:
    name, state = str(entry.get("name") or "")[:63], _state(entry)
    restarts = entry.get("restartCount")
    restarts = restarts if isinstance(restarts, int) and 0 <= restarts < 2**31 else 0
    last_state = entry.get("lastState")
    last = _ended(last_state.get("terminated")) if isinstance(last_state, dict) else None
    if isinstance(running := state.get("running"), dict):
        # only podbridge's own plugin says "not ready" of a running container: see NOT_READY
        return ContainerState(
            name=name,
            state="running",
            started_at=_time(running.get("startedAt")),
            restarts=restarts,
            started=True,
            ready=True,
            last=last,
        )
    if (over := _ended(state.get("terminated"))) is not None:
        if over.reason == NOT_STARTED:
            return ContainerState(name=name, restarts=restarts, last=last)
        if over.reason == SIDECAR:
            at = over.started_at
            return ContainerState(
                name=name, state="running", started_at=at, restarts=restarts, started=True, ready=True, last=last
            )
        return ContainerState(name=name, state="terminated", ended=over, restarts=restarts, last=last)
    waiting = state.get("waiting")
    waiting = waiting if isinstance(waiting, dict) else {}
    if waiting.get("reason") == NOT_READY:
        return ContainerState(name=name, state="running", restarts=restarts, last=last)
    return ContainerState(
        name=name, reason=_reason(waiting), message=_text(waiting, "message"), restarts=restarts, last=last
    )


def _ended(terminated: object) -> Termination | None:
    if not isinstance(terminated, dict):
        return None
    code, signal = terminated.get("exitCode"), terminated.get("signal")
    return Termination(
        # Go omits no exit code; a plugin in another language may omit a 0
        exit_code=code if isinstance(code, int) and abs(code) < 2**31 else 0 if code is None else KILLED,
        signal=signal if isinstance(signal, int) and 0 <= signal < 256 else 0,
        reason=_reason(terminated),
        message=_text(terminated, "message"),
        started_at=_time(terminated.get("startedAt")),
        finished_at=_time(terminated.get("finishedAt")),
    )


def _reason(state: Mapping[str, Any]) -> str:
    """Return a reason that Kubernetes accepts; upstream also has texts such as ``Init:0/1``."""
    text = _text(state, "reason")
    return text if _CAMEL.fullmatch(text) else ""


def _text(state: Mapping[str, Any], key: str) -> str:
    value = state.get(key)
    return value[:LONGEST] if isinstance(value, str) else ""


def _time(value: object) -> float | None:
    """Return seconds since 1970; ``None`` for Go's zero time and for anything else that is no time of a job."""
    if not isinstance(value, str):
        return None
    try:
        seconds = parse_rfc3339(value)
    except (ValueError, OverflowError):
        return None
    return seconds if 0 < seconds < 1e11 else None
