"""Stats and resource metrics, from the states and measurements that sites report.

A value that a site does not report is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bridge.clock import rfc3339
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.protocol.model.pod_status import time_of
from controllers.kubelet.containers import reported_states
from controllers.kubelet.usage_cache import PodUse, PoolUse, Use

Object = Mapping[str, Any]
StatusOf = Callable[[Object], JobStatus | None]
"""Returns the state of a pod's job from its site."""
Usages = Mapping[str, PoolUse]
"""The measurements of each pool, by its name, which is also that of its node."""


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


def summary(node: str, since: float, pods: Iterable[Object], status_of: StatusOf, measured: PoolUse) -> dict[str, Any]:
    """Return the stats summary of one node. ``since``: start of this process, in seconds since 1970."""
    entries = []
    for pod in pods:
        status = status_of(pod)
        states = list(_running(status))
        if not states:
            continue
        begun = (pod.get("status") or {}).get("startTime")
        entry: dict[str, Any] = {"podRef": _reference(pod.get("metadata") or {})}
        if begun:
            entry["startTime"] = begun
        usage = measured.pods.get(status.job) if status is not None else None
        entry["containers"] = [
            {"name": state.name, "startTime": at, **_stats(_use(usage, state), usage)}
            for state in states
            if (at := time_of(state.started_at))
        ]
        entries.append(entry | _stats(usage.pod if usage is not None else None, usage))
    return {
        "node": {"nodeName": node, "startTime": rfc3339(since), **_stats(measured.total, measured)},
        "pods": entries,
    }


def _stats(use: Use | None, measured: PodUse | PoolUse | None) -> dict[str, Any]:
    if use is None or measured is None:
        return {}
    time = rfc3339(measured.at)
    cpu: dict[str, Any] = {"time": time, "usageCoreNanoSeconds": int(use.cpu * 1e9)}
    if use.rate is not None:
        cpu["usageNanoCores"] = int(use.rate * 1e9)
    return {"cpu": cpu, "memory": {"time": time, "workingSetBytes": use.memory}}


def _use(usage: PodUse | None, state: ContainerState) -> Use | None:
    """Return the use of this run of a container: a measurement may be from before a restart."""
    return usage.containers.get((state.name, state.restarts)) if usage is not None else None


def resource_metrics(
    nodes: Iterable[str], pods: Iterable[Object], status_of: StatusOf, usages: Usages
) -> CollectorRegistry:
    """Return a registry with the resource metrics of a kubelet. Those of a node only if there is one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ResourceMetrics(list(nodes), list(pods), status_of, usages))
    return registry


class _ResourceMetrics:
    def __init__(self, nodes: list[str], pods: list[Object], status_of: StatusOf, usages: Usages) -> None:
        self._nodes, self._pods, self._status_of, self._usages = nodes, pods, status_of, usages

    def collect(self) -> Iterable[Metric]:
        labels = ("container", "namespace", "pod")
        started = GaugeMetricFamily(
            "container_start_time_seconds",
            "[STABLE] Start time of the container since unix epoch in seconds",
            labels=labels,
        )
        containers, on_pods = _Pair("container", labels), _Pair("pod", labels[1:])
        for pod in self._pods:
            status, reference = self._status_of(pod), _reference(pod.get("metadata") or {})
            names = (reference.get("namespace", ""), reference.get("name", ""))
            pool = self._usages.get((pod.get("spec") or {}).get("nodeName", ""))
            usage = pool.pods.get(status.job) if pool is not None and status is not None else None
            states = list(_running(status))
            for state in states:
                if state.started_at:
                    started.add_metric((state.name, *names), state.started_at)
                if usage is not None and (use := _use(usage, state)) is not None:
                    containers.add((state.name, *names), use, usage.at)
            if usage is not None and states:
                on_pods.add(names, usage.pod, usage.at)
        yield from (started, *containers.families, *on_pods.families, *self._of_node())
        failed = any(usage.failed for usage in self._usages.values())
        text = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise"
        yield GaugeMetricFamily("resource_scrape_error", text, value=float(failed))

    def _of_node(self) -> list[Metric]:
        pool = self._usages.get(self._nodes[0]) if len(self._nodes) == 1 else None
        if pool is None or pool.total is None:
            return []
        pair = _Pair("node", ())
        pair.add((), pool.total, pool.at)
        return pair.families


class _Pair:
    """The two metrics of containers, of pods or of a node."""

    def __init__(self, kind: str, labels: tuple[str, ...]) -> None:
        text = f"[STABLE] Cumulative cpu time consumed by the {kind} in core-seconds"
        self._cpu = CounterMetricFamily(f"{kind}_cpu_usage_seconds", text, labels=labels)
        text = f"[STABLE] Current working set of the {kind} in bytes"
        self._memory = GaugeMetricFamily(f"{kind}_memory_working_set_bytes", text, labels=labels)
        self.families: list[Metric] = [self._cpu, self._memory]

    def add(self, labels: tuple[str, ...], use: Use, at: float) -> None:
        self._cpu.add_metric(labels, use.cpu, timestamp=at)
        self._memory.add_metric(labels, use.memory, timestamp=at)


def _running(status: JobStatus | None) -> Iterator[ContainerState]:
    if status is not None and status.phase == "running":
        yield from (state for state in reported_states(status) if state.state == "running")


def _reference(metadata: Object) -> dict[str, str]:
    return {key: str(metadata[key]) for key in ("name", "namespace", "uid") if key in metadata}
