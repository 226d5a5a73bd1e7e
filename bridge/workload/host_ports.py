"""The host ports of a pod, as resources of which a node has one each: no two pods on a node may have the same. Pure.

The kubelet rejects a pod (``NodePorts``) whose host port another pod on the node has, with the same protocol and
address; ``0.0.0.0`` is every address. Slurm does not know ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from bridge.workload import resources
from bridge.workload.resources import Resources

PREFIX = "host port "
"""No name of a resource begins with this text: it has a blank."""
_EVERY = "0.0.0.0"  # noqa: S104 an address to compare, not one to bind
_ADDRESS = " of "
_ONE = Decimal(1)


def of(spec: Mapping[str, Any]) -> Resources:
    """Return the host ports of a pod: ``host port 8080/TCP``, with the address if the pod names one.

    With ``hostNetwork``, every port of a container is a host port. Ports of sidecar containers count, ports of other
    init containers do not.
    """
    ports: Resources = {}
    for container in holders(spec):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else 0)
            if number:
                address = port.get("hostIP") or _EVERY
                name = f"{PREFIX}{number}/{port.get('protocol') or 'TCP'}"
                ports[name if address == _EVERY else f"{name}{_ADDRESS}{address}"] = _ONE
    return ports


def holders(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the containers of a pod whose ports count."""
    sidecars = [
        container for container in spec.get("initContainers") or () if container.get("restartPolicy") == "Always"
    ]
    return [*(spec.get("containers") or ()), *sidecars]


def node_requests(spec: Mapping[str, Any]) -> Resources:
    """Return the resources that a pod uses on a node with a kubelet: its requests, 1 for ``pods``, its host ports."""
    return {**resources.node_requests(spec), **of(spec)}


def is_port(name: str) -> bool:
    """Whether a name in :func:`node_requests` is that of a host port."""
    return name.startswith(PREFIX)


def conflicts(name: str, used: Iterable[str]) -> list[str]:
    """Return the host ports among ``used`` that a pod with the host port ``name`` cannot have beside it."""
    port, _, address = name.partition(_ADDRESS)
    conflicting = []
    for other in used:
        other_port, _, other_address = other.partition(_ADDRESS)
        if other_port == port and (not address or not other_address or address == other_address):
            conflicting.append(other)
    return conflicting
