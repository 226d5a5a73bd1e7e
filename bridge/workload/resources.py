"""The requests of a pod on a node, summed as the Kubernetes scheduler sums them, and its host ports. Pure.

Source: the Kubernetes documentation of init containers, sidecar containers, pod overhead and pod-level resources.

A host port counts as a resource of which a node has one. The kubelet rejects a pod (``NodePorts``) whose host port
another pod on the node has, with the same protocol and address; ``0.0.0.0`` is every address. Slurm does not know
ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import quantity

Resources = dict[str, Decimal]
PODS = "pods"
"""Name of the resource of which every pod uses one."""
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of an extended resource by DRA; the rest of the name is that of a DeviceClass."""
_HOST_PORT = "host port "
"""No name of a resource begins with this text: it has a blank."""
_EVERY = "0.0.0.0"  # noqa: S104 an address to compare, not one to bind
_ADDRESS = " of "
_ZERO, _ONE = Decimal(0), Decimal(1)


def pod_requests(spec: Mapping[str, Any]) -> Resources:
    """Return a pod's requests by resource name: cpu in CPUs, memory in bytes, others in units.

    It is the largest of two sums: all containers and sidecars; and each init container with the sidecars started before
    it. Pod-level requests count if they are larger (the API server refuses smaller ones). The overhead of the runtime
    class is added. The limit of a container counts as its request if it has no request, as the API server defaults it.
    Device classes are left out: a ResourceClaim allocates them, and a node has no Allocatable of them.
    """
    together: Resources = {}
    for container in spec.get("containers") or ():
        _add(together, _requests(container))
    sidecars: Resources = {}
    peak: Resources = {}
    for container in spec.get("initContainers") or ():
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            _add(sidecars, requests)
        else:
            # only its own resources: those of the sidecars alone are in the sum of all containers
            _raise(peak, {name: sidecars.get(name, _ZERO) + value for name, value in requests.items()})
    _add(together, sidecars)
    _raise(together, peak)
    _raise(together, _requests(spec))
    _add(together, _quantities(spec.get("overhead") or {}))
    return {name: value for name, value in together.items() if value > 0 and not name.startswith(DEVICE_CLASS_PREFIX)}


def node_requests(spec: Mapping[str, Any]) -> Resources:
    """Return the requests of a pod on a node: its own requests, and 1 for the resource ``pods``."""
    return {**pod_requests(spec), PODS: _ONE}


def extended(requests: Iterable[str]) -> list[str]:
    """Return the extended resources (``vendor.com/thing``) among resource names, sorted."""
    return sorted(name for name in requests if "/" in name and "kubernetes.io/" not in name)


def allocatable(node: Mapping[str, Any]) -> Resources:
    """Return Allocatable of a node; values that cannot be read count as 0."""
    status = node.get("status") or {}
    offered: Resources = {}
    for name, text in (status.get("allocatable") or status.get("capacity") or {}).items():
        try:
            offered[name] = quantity.parse(text)
        except ValueError:
            offered[name] = _ZERO
    return offered


def total(amounts: Iterable[Resources]) -> Resources:
    """Return the sum of amounts of resources."""
    result: Resources = {}
    for each in amounts:
        _add(result, each)
    return result


def _requests(holder: Mapping[str, Any]) -> Resources:
    resources = holder.get("resources") or {}
    requests = _quantities(resources.get("limits") or {})
    requests.update(_quantities(resources.get("requests") or {}))
    return requests


def _quantities(pairs: Mapping[str, Any]) -> Resources:
    return {name: quantity.parse(text) for name, text in pairs.items()}


def _add(total: Resources, more: Resources) -> None:
    for name, value in more.items():
        total[name] = total.get(name, _ZERO) + value


def _raise(total: Resources, other: Resources) -> None:
    for name, value in other.items():
        if value > total.get(name, _ZERO):
            total[name] = value


def host_ports(spec: Mapping[str, Any]) -> Resources:
    """Return the host ports of a pod: ``host port 8080/TCP``, with the address if the pod names one.

    With ``hostNetwork``, every port of a container is a host port. Ports of sidecar containers count, ports of other
    init containers do not.
    """
    ports: Resources = {}
    for container in lasting_containers(spec):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if number:
                address = port.get("hostIP") or _EVERY
                name = f"{_HOST_PORT}{number}/{port.get('protocol') or 'TCP'}"
                ports[name if address == _EVERY else f"{name}{_ADDRESS}{address}"] = _ONE
    return ports


def lasting_containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the containers that run as long as the pod: also the sidecars, but no other init containers."""
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    return [*(spec.get("containers") or ()), *sidecars]


def kubelet_requests(spec: Mapping[str, Any]) -> Resources:
    """Return the resources that a pod uses on a node with a kubelet: its requests, 1 for ``pods``, its host ports."""
    return {**node_requests(spec), **host_ports(spec)}


def is_host_port(name: str) -> bool:
    """Whether a name in :func:`kubelet_requests` is that of a host port."""
    return name.startswith(_HOST_PORT)


def port_conflicts(requested: Iterable[str], used: Iterable[str]) -> dict[str, list[str]]:
    """Return the host ports among ``requested`` that a pod cannot have, with those among ``used`` that they meet."""
    ports = [name for name in requested if is_host_port(name)]
    if not ports:  # most pods; many more are used
        return {}
    used_by_port: dict[str, dict[str, str]] = {}
    for other in filter(is_host_port, used):
        port, _, address = other.partition(_ADDRESS)
        used_by_port.setdefault(port, {})[address] = other
    conflicts = {}
    for name in ports:
        port, _, address = name.partition(_ADDRESS)
        others = used_by_port.get(port, {})
        found = [others[each] for each in ("", address) if each in others] if address else [*others.values()]
        if found:
            conflicts[name] = found
    return conflicts
