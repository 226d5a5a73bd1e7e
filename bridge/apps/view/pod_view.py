"""A pod as users see it: its state, why it has it, its place, job, owner and times; no environment. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.apps.view.wait_reasons import GATED, NOT_PROCESSED
from bridge.clock import parse_rfc3339
from bridge.kube.prune import IDENTITY, LAST_APPLIED, Object, pick
from bridge.workload import links, pods, resources
from bridge.workload.kinds import job_kinds

WAITING, STARTING, RUNNING, SUCCEEDED, FAILED = STATES = ("waiting", "starting", "running", "succeeded", "failed")
RAY_CLUSTER = "ray.io/cluster"
WORKLOAD_LABELS = (
    (job_kinds.JOBSET_NAME, "JobSet"),
    (job_kinds.LWS_NAME, "LeaderWorkerSet"),
    (RAY_CLUSTER, "RayCluster"),
)
"""Labels that controllers write to pods whose own controller is an object between them and the workload."""
_TURNS = ("ContainerCreating", "PodInitializing")
"""Reasons of containers whose start is not reached yet."""
MESSAGE = 240
"""Characters of a message that a view keeps; the report on the pod has all of it."""


@dataclass(frozen=True, slots=True)
class Times:
    """When the pod was created, bound, started and ended: seconds since 1970; ``None``: not yet, or not known."""

    created: float
    bound: float | None = None
    started: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ``node`` is empty before the binding; ``job`` is the Slurm job or ``<pool>/<job>``, empty without one.

    ``memory`` is in bytes; ``devices`` are the extended resources that the pod requests. ``group`` is the key of its
    job, see :func:`bridge.workload.links.key`.
    """

    namespace: str
    name: str
    state: str
    reason: str
    message: str
    node: str
    job: str
    owner: str
    group: str
    deleted: bool
    times: Times
    cpu: float
    memory: float
    devices: tuple[tuple[str, float], ...]

    @property
    def open(self) -> bool:
        """Whether the pod has not ended."""
        return self.state in (WAITING, STARTING, RUNNING)


def keep(pod: Object) -> Object:
    """Return the part of a pod that the cache of the web page keeps: its identity and its view under ``view``."""
    metadata = pick(pod["metadata"], IDENTITY[:4])
    metadata["namespace"] = sys.intern(metadata.get("namespace", ""))
    return {"metadata": metadata, "view": of(pod)}


def keep_node(node: Object) -> Object:
    """Return a node without its list of images and without the last applied configuration."""
    metadata = dict(node["metadata"])
    metadata["annotations"] = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != LAST_APPLIED}
    status = {key: value for key, value in (node.get("status") or {}).items() if key != "images"}
    return {**node, "metadata": metadata, "status": status}


def of(pod: Mapping[str, Any]) -> PodView:
    """Return the view of a pod."""
    spec = pod.get("spec") or {}
    metadata = pod["metadata"]
    requests = _requests(spec)
    state = state_of(pod)
    reason, message = _reason(pod, state)
    return PodView(
        namespace=sys.intern(metadata.get("namespace", "")),
        name=metadata["name"],
        state=state,
        reason=sys.intern(reason),
        message=sys.intern(message[:MESSAGE]),
        node=sys.intern(spec.get("nodeName") or ""),
        job=job(pod),
        owner=owner(pod),
        group=links.key(pod),
        deleted=pods.is_deleted(pod),
        times=times(pod),
        cpu=requests.pop("cpu", 0.0),
        memory=requests.pop("memory", 0.0),
        devices=tuple((sys.intern(name), requests[name]) for name in resources.extended(requests)),
    )


def state_of(pod: Mapping[str, Any]) -> str:
    """Return one of :data:`STATES`. A pod that is bound but does not run is ``starting``, also in a queue of a site."""
    phase = (pod.get("status") or {}).get("phase")
    if phase in pods.FINISHED:
        return SUCCEEDED if phase == "Succeeded" else FAILED
    if not (pod.get("spec") or {}).get("nodeName"):
        return WAITING
    return RUNNING if phase == "Running" else STARTING


def phase(pod: Mapping[str, Any]) -> str:
    """Return the phase of a pod as kubectl prints it."""
    return "Terminating" if pods.is_deleted(pod) else str((pod.get("status") or {}).get("phase", ""))


def times(pod: Mapping[str, Any]) -> Times:
    """Return the times of a pod, by the API server and by the kubelet or the site."""
    status = pod.get("status") or {}
    scheduled = pods.condition(pod, names.POD_SCHEDULED)
    states = list(_states(status))
    runs = (*states, *_states(status, "lastState"))  # after a restart, the first start is in lastState
    starts = (seconds((state.get("running") or state.get("terminated") or {}).get("startedAt")) for state in runs)
    begun = [at for at in starts if at is not None]
    ended = None
    if status.get("phase") in pods.FINISHED:
        finished = [seconds((state.get("terminated") or {}).get("finishedAt")) for state in states]
        ended = max((at for at in finished if at is not None), default=None) or _last_transition(status)
    return Times(
        created=seconds(pod["metadata"].get("creationTimestamp")) or 0.0,
        bound=seconds(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        started=min(begun, default=None),
        ended=ended,
    )


def job(pod: Mapping[str, Any]) -> str:
    """Return the job of a pod: the id in Slurm, or ``<pool>/<job>``; empty without one."""
    remote = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB)
    return str(remote or pods.job_id(pod) or "")


def owner(pod: Mapping[str, Any]) -> str:
    """Return the workload of a pod, such as ``JobSet/train``: what its user made, else its controller; empty: none."""
    labels = pod["metadata"].get("labels") or {}
    for label, kind in WORKLOAD_LABELS:
        if labels.get(label):
            return sys.intern(f"{kind}/{labels[label]}")
    reference = pods.owner_reference(pod)
    return sys.intern(f"{reference['kind']}/{reference['name']}") if reference is not None else ""


def containers(pod: Mapping[str, Any]) -> list[str]:
    """Return the names of the containers of a pod, init containers last."""
    spec = pod.get("spec") or {}
    return [str(c["name"]) for kind in ("containers", "initContainers") for c in spec.get(kind) or ()]


def seconds(text: object) -> float | None:
    """Convert a timestamp of Kubernetes to seconds since 1970; ``None`` if it is absent or cannot be read."""
    try:
        return parse_rfc3339(str(text)) if text else None
    except ValueError:
        return None


def _reason(pod: Mapping[str, Any], state: str) -> tuple[str, str]:
    """Return the reason and the message that the state of a pod has; empty if it needs none."""
    status = pod.get("status") or {}
    if state == WAITING:
        waiting = pods.condition(pod, names.POD_SCHEDULED)
        if pods.is_gated(pod):
            gates = ", ".join(str(gate.get("name")) for gate in pod["spec"]["schedulingGates"])
            return GATED, f"scheduling gates: {gates}"
        return str(waiting.get("reason") or NOT_PROCESSED), str(waiting.get("message") or "")
    if state in (STARTING, RUNNING):
        for kind in (names.INTERNAL_ERROR, names.JOB_MISSING, names.JOB_SUSPENDED):
            held = pods.condition(pod, kind)
            if held.get("status") == "True":
                return str(held.get("reason") or ""), str(held.get("message") or "")
        container = _waiting(status)
        return str(container.get("reason") or ""), str(container.get("message") or "")
    if status.get("reason") or state == SUCCEEDED:
        return str(status.get("reason") or ""), str(status.get("message") or "")
    name, end = failed_container(pod)
    return str(end.get("reason") or ""), f"container {name}: exit code {end['exitCode']}" if end else ""


def is_stuck(pod: Mapping[str, Any]) -> bool:
    """Whether a container waits for more than its turn: for an image, a Secret, or its restart."""
    reason = _waiting(pod.get("status") or {}).get("reason")
    return reason is not None and reason not in _TURNS


def _waiting(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the first container that waits; empty if none does."""
    # while init containers run, the others wait for them
    waiting: list[Mapping[str, Any]] = [state["waiting"] for state in _states(status) if state.get("waiting")]
    return min(waiting, key=lambda state: state.get("reason") in _TURNS, default={})


def failed_container(pod: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the end of the first container that has failed; empty if none has."""
    for entry in _entries(pod.get("status") or {}):
        end = (entry.get("state") or {}).get("terminated") or {}
        if end.get("exitCode"):
            return str(entry.get("name") or ""), end
    return "", {}


def _states(status: Mapping[str, Any], key: str = "state") -> Iterator[Mapping[str, Any]]:
    return (entry.get(key) or {} for entry in _entries(status))


def _entries(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]


def _last_transition(status: Mapping[str, Any]) -> float | None:
    times = (seconds(entry.get("lastTransitionTime")) for entry in status.get("conditions") or ())
    return max((at for at in times if at is not None), default=None)


def _requests(spec: Mapping[str, Any]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in resources.pod_requests(spec).items()}
    except ValueError:  # the API server refuses such a pod
        return {}
