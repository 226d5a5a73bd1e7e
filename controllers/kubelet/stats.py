"""Stats and resource metrics, from the states that sites report.

A site reports when a container started and whether it runs. It does not report the container's use of CPU and memory,
so these metrics are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from bridge.clock import rfc3339
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.protocol.model.pod_status import time_of
from controllers.kubelet.containers import reported_states

Object = Mapping[str, Any]
StatusOf = Callable[[Object], JobStatus | None]
"""Returns the state of a pod's job from its site."""


def pod_list(pods: Iterable[Object]) -> dict[str, Any]:
    """Return a PodList."""
    items = [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in pods]
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}


def running_pods(pods: Iterable[Object], status_of: StatusOf) -> dict[str, Any]:
    """Return a PodList of the running pods, each with its running containers only, as a kubelet does."""
    items = []
    for pod in pods:
        running = {state.name for state in _running(status_of(pod))}
        if not running:
            continue
        metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
        containers = [
            {key: container[key] for key in ("name", "image") if key in container}
            for kind in ("initContainers", "containers")
            for container in spec.get(kind) or ()
            if container.get("name") in running
        ]
        items.append({"metadata": _reference(metadata), "spec": {"containers": containers}, "status": {}})
    return pod_list(items)


def summary(node: str, since: float, pods: Iterable[Object], status_of: StatusOf) -> dict[str, Any]:
    """Return the stats summary of one node. ``since``: start of this process, in seconds since 1970."""
    entries = []
    for pod in pods:
        states = list(_running(status_of(pod)))
        if not states:
            continue
        begun = (pod.get("status") or {}).get("startTime")
        entry: dict[str, Any] = {"podRef": _reference(pod.get("metadata") or {})}
        if begun:
            entry["startTime"] = begun
        entry["containers"] = [
            {"name": state.name, "startTime": at} for state in states if (at := time_of(state.started_at))
        ]
        entries.append(entry)
    return {"node": {"nodeName": node, "startTime": rfc3339(since)}, "pods": entries}


def resource_metrics(pods: Iterable[Object], status_of: StatusOf) -> CollectorRegistry:
    """Return a registry with the kubelet's metric ``container_start_time_seconds`` of the running containers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StartTimes(list(pods), status_of))
    return registry


class _StartTimes:
    def __init__(self, pods: list[Object], status_of: StatusOf) -> None:
        self._pods = pods
        self._status_of = status_of

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "container_start_time_seconds",
            "[STABLE] Start time of the container since unix epoch in seconds",
            labels=("container", "namespace", "pod"),
        )
        for pod in self._pods:
            reference = _reference(pod.get("metadata") or {})
            for state in _running(self._status_of(pod)):
                if state.started_at:
                    labels = (state.name, reference.get("namespace", ""), reference.get("name", ""))
                    family.add_metric(labels, state.started_at)
        yield family


def _running(status: JobStatus | None) -> Iterator[ContainerState]:
    if status is not None and status.phase == "running":
        yield from (state for state in reported_states(status) if state.state == "running")


def _reference(metadata: Object) -> dict[str, str]:
    return {key: str(metadata[key]) for key in ("name", "namespace", "uid") if key in metadata}
