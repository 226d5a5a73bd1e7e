"""What a pod asks of a node, counted as the Kubernetes scheduler counts it.

Source: the Kubernetes documentation of init containers, sidecar containers, pod overhead and pod-level resources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import quantity

Resources = dict[str, Decimal]
PODS = "pods"
"""Name of the resource of which every pod takes one."""


def pod_requests(spec: Mapping[str, Any]) -> Resources:
    """Give a pod's requests by resource name: cpu in CPUs, memory in bytes, others in units.

    The larger of what runs together (containers and sidecars) and of each init container with the sidecars started
    before it; pod-level requests where they are larger (the API server lets none be smaller); the overhead of the
    runtime class comes on top. A container that states only a limit asks for its limit, as the API server itself would
    have filled in.
    """
    together: Resources = {}
    for container in spec.get("containers") or ():
        _add(together, _requests(container))
    sidecars: Resources = {}
    peak: Resources = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, own)
            _raise(peak, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, own)
            _raise(peak, moment)
    _add(together, sidecars)
    _raise(together, peak)
    _raise(together, _requests(spec))
    _add(together, _quantities(spec.get("overhead") or {}))
    return {name: value for name, value in together.items() if value > 0}


def node_requests(spec: Mapping[str, Any]) -> Resources:
    """Return what a pod takes of a node: its requests, and one of the node's ``pods``."""
    return {**pod_requests(spec), PODS: Decimal(1)}


def extended(requests: Iterable[str]) -> list[str]:
    """Pick the extended resources (``vendor.com/thing``) out of resource names, sorted."""
    return sorted(name for name in requests if "/" in name and "kubernetes.io/" not in name)


def allocatable(node: Mapping[str, Any]) -> Resources:
    """What a node offers to pods in all; unreadable values count as nothing."""
    status = node.get("status") or {}
    offered: Resources = {}
    for name, text in (status.get("allocatable") or status.get("capacity") or {}).items():
        try:
            offered[name] = quantity.parse(text)
        except ValueError:
            offered[name] = Decimal(0)
    return offered


def _requests(holder: Mapping[str, Any]) -> Resources:
    resources = holder.get("resources") or {}
    asked = _quantities(resources.get("limits") or {})
    asked.update(_quantities(resources.get("requests") or {}))
    return asked


def _quantities(pairs: Mapping[str, Any]) -> Resources:
    return {name: quantity.parse(text) for name, text in pairs.items()}


def _add(total: Resources, more: Resources) -> None:
    for name, value in more.items():
        total[name] = total.get(name, Decimal(0)) + value


def _raise(total: Resources, other: Resources) -> None:
    for name, value in other.items():
        if value > total.get(name, Decimal(0)):
            total[name] = value
