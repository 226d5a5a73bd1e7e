"""The state of a job from a plugin's PodStatus: the client's direction.

Every value comes from another program and is checked. The rules are those of interLink's virtual kubelet: the job has
ended when every container of the pod is terminated, and it has failed when one of them, or an init container, has an
exit code other than 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from bridge.clock import parse_rfc3339
from bridge.errors import SiteError
from bridge.interlink.messages import PodStatus
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination, identity_of

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
    init_names = {each.get("name") for each in (pod.get("spec") or {}).get("initContainers") or ()}
    init_entries = [entry for entry in answer.init_containers if _is_named(entry, init_names)]
    containers = _containers(pod, answer, init_entries)
    if not any(_state(entry) for entry in (*answer.containers, *init_entries)):
        return None
    phase = containers.phase
    reason, message = containers.failure if phase == "ended" else _waiting(answer) if phase == "queued" else ("", "")
    return JobStatus(
        **identity_of(pod),
        owner=owner,
        job_id=(answer.jid or "")[:LONGEST],
        phase=phase,
        outcome=containers.outcome if phase == "ended" else "",
        reason=reason,
        message=message,
        started_at=containers.started_at,
        ended_at=containers.ended_at if phase == "ended" else None,
        init_containers=containers.init,
        containers=containers.main,
    )


@dataclass(frozen=True, slots=True)
class _Containers:
    """The init containers and the containers of a pod; ``over``: the plugin reports each container as terminated."""

    init: list[ContainerState]
    main: list[ContainerState]
    over: bool

    @property
    def phase(self) -> Literal["queued", "running", "ended"]:
        if self.over or any(map(_has_failed, self.init)):
            return "ended"
        return "running" if any(each.state != "waiting" for each in (*self.init, *self.main)) else "queued"

    @property
    def outcome(self) -> Literal["Succeeded", "Failed"]:
        succeeded = all(each.ended is not None and not _has_failed(each) for each in self.main)
        return "Succeeded" if succeeded and not any(map(_has_failed, self.init)) else "Failed"

    @property
    def failure(self) -> tuple[str, str]:
        """The reason and the message of the job's end, which the first failed containers may have."""
        ends = (each.ended for each in (*self.init, *self.main) if each.ended is not None and _has_failed(each))
        of_job = ((end.reason, end.message) for end in ends if end.reason and end.reason not in _OF_CONTAINERS)
        return next(of_job, ("", ""))

    @property
    def started_at(self) -> float | None:
        times = (each.ended.started_at if each.ended else each.started_at for each in (*self.init, *self.main))
        return min((at for at in times if at is not None), default=None)

    @property
    def ended_at(self) -> float | None:
        times = (each.ended.finished_at for each in self.main if each.ended is not None)
        return max((at for at in times if at), default=None)


def _is_named(entry: Mapping[str, Any], names: Set[object]) -> bool:
    """Whether the name of a plugin's entry, which may be any JSON value, is one of these."""
    name = entry.get("name")
    return isinstance(name, str) and name in names


def _has_failed(state: ContainerState) -> bool:
    return state.ended is not None and state.ended.exit_code != 0


def _containers(pod: Pod, answer: PodStatus, init_entries: Iterable[Mapping[str, Any]]) -> _Containers:
    entries = {str(entry.get("name")): entry for entry in answer.containers}
    main = {name: _container(entry) for name, entry in entries.items()}
    init = {str(entry.get("name")): _container(entry) for entry in init_entries}
    # of a pod that is gone, the caller may know only the identity
    names = [str(each["name"]) for each in (pod.get("spec") or {}).get("containers") or ()] or list(main)
    if lacking := [name for name in names if name not in main]:
        raise SiteError(f"the plugin's answer lacks container {lacking[0]!r}")
    if not names:
        raise SiteError("the plugin's answer has no containers")
    over = all(_is_over(entries[name]) for name in names)
    return _Containers(list(init.values()), [main[name] for name in names], over)


def _waiting(answer: PodStatus) -> tuple[str, str]:
    """Return the first reason, with its message, for which a container waits."""
    states = (_state(entry).get("waiting") for entry in answer.containers)
    reasons = ((_reason(state), _text(state, "message")) for state in states if isinstance(state, dict))
    return next((found for found in reasons if found[0]), ("", ""))


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
    state_of = partial(ContainerState, name=name, restarts=restarts, last=last)
    if isinstance(running := state.get("running"), dict):
        # only podbridge's own plugin says "not ready" of a running container: see NOT_READY
        return state_of(state="running", started_at=_time(running.get("startedAt")), started=True, ready=True)
    if (over := _ended(state.get("terminated"))) is not None:
        if over.reason == NOT_STARTED:
            return state_of()
        if over.reason == SIDECAR:
            return state_of(state="running", started_at=over.started_at, started=True, ready=True)
        return state_of(state="terminated", ended=over)
    waiting = state.get("waiting")
    waiting = waiting if isinstance(waiting, dict) else {}
    if waiting.get("reason") == NOT_READY:
        return state_of(state="running")
    return state_of(reason=_reason(waiting), message=_text(waiting, "message"))


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
