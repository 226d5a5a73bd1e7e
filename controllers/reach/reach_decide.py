"""Where a connection of a pod to a Service may lead. Pure.

It leads to an endpoint that is a pod with an address of its own, and not to anything else that an EndpointSlice can
name: users may write these.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.errors import ServiceRefusedError
from bridge.workload.services import Target
from controllers.expose import expose_decide

Object = Mapping[str, Any]
API_SERVER = ("default", "kubernetes")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A ready endpoint: the pod that it names, and the address and port that it has according to its slice."""

    pod: str
    uid: str
    address: str
    port: int


def port_of(target: Target, services: Sequence[Object]) -> dict[str, Any]:
    """Return the port of the Service; ``services`` are those with its name. Raises ServiceRefusedError."""
    name = f"Service {target.namespace}/{target.service}"
    if (target.namespace, target.service) == API_SERVER:
        raise ServiceRefusedError(f"{name} is not allowed: it leads to the API server")
    if not services:
        raise ServiceRefusedError(f"{name} does not exist")
    spec = services[0]["spec"]
    if spec.get("type") == "ExternalName":
        raise ServiceRefusedError(f"{name}: type ExternalName is not allowed; allowed: a Service that selects pods")
    if not spec.get("selector"):
        raise ServiceRefusedError(f"{name} has no selector; allowed: a Service that selects pods")
    ports: list[dict[str, Any]] = [port for port in spec.get("ports") or () if port.get("protocol", "TCP") == "TCP"]
    found = next((port for port in ports if port["port"] == target.port), None)
    if found is None:
        allowed = ", ".join(str(port["port"]) for port in ports) or "none, it has no TCP port"
        raise ServiceRefusedError(f"{name}: port {target.port} is not allowed; allowed: {allowed}")
    return found


def endpoints(port: Object, slices: Iterable[Object], namespace: str) -> Iterator[Endpoint]:
    """Yield the ready endpoints of a port of a Service that name a pod of its namespace."""
    for found in slices:
        number = next((int(each.get("port") or 0) for each in found.get("ports") or () if _is_same(each, port)), 0)
        for end in found.get("endpoints") or () if number else ():
            reference = end.get("targetRef") or {}
            is_pod = reference.get("kind") == "Pod" and reference.get("namespace", namespace) == namespace
            if is_pod and reference.get("name") and (end.get("conditions") or {}).get("ready") is not False:
                for address in end.get("addresses") or ():
                    yield Endpoint(reference["name"], str(reference.get("uid")), address, number)


def _is_same(of_slice: Object, of_service: Object) -> bool:
    return (of_slice.get("name") or "") == (of_service.get("name") or "") and of_slice.get("protocol", "TCP") == "TCP"


def problem_of(endpoint: Endpoint, pod: Object, own: Collection[str]) -> str:
    """Return why a connection may not lead to an endpoint, whose pod is ``pod``; empty if it may.

    ``own``: addresses of this process and of the API server.
    """
    status, spec = pod.get("status") or {}, pod["spec"]
    addresses = {str(each.get("ip")) for each in status.get("podIPs") or ()} | {str(status.get("podIP"))}
    of_node = {str(each.get("ip")) for each in status.get("hostIPs") or ()} | {str(status.get("hostIP"))}
    if pod["metadata"]["uid"] != endpoint.uid or status.get("phase") != "Running":
        return "does not run"
    if spec.get("hostNetwork"):
        return "has the network of its node (hostNetwork)"
    if endpoint.address not in addresses or endpoint.address in of_node:
        return f"does not have the address {endpoint.address}"
    address = ipaddress.ip_address(endpoint.address)
    address = getattr(address, "ipv4_mapped", None) or address
    if expose_decide.usable_address(str(address)) is None:
        return f"has the address {endpoint.address}, which is not allowed"
    return "is podbridge or the API server" if str(address) in own else ""
