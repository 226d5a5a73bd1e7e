"""The decisions about exposed pods: which ports need a listener, and which EndpointSlices must exist. Pure.

The slices follow the rules of Kubernetes' own controller: a Service selects a pod by its labels, a port of the Service
names a port of the pod by number or name, and the conditions of an endpoint come from the pod's. There is one slice for
each Service and pod, because the ports of two pods differ at the hub's address.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.core import isolation
from bridge.core.grouping import grouped
from bridge.kube.prune import IDENTITY, pick
from bridge.kube.resources import ENDPOINT_SLICES
from bridge.workload import pods, services

Object = Mapping[str, Any]
ListenerKey = tuple[str, int]
"""UID of a pod, and its port."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SERVICE_NAME = "kubernetes.io/service-name"
MOST_OF_SERVICE = 1000
"""Ports and labels of a Service with exposed pods, at most."""
_SERVICE = ("selector", "ports", "clusterIP", "type", "publishNotReadyAddresses", "ipFamilies")
_SLICE = ("addressType", "endpoints", "ports")
MOST_SERVICES = 32
"""Services that reach a pod: each needs a slice for it, so that a few hundred of both would be many thousand writes."""
_LONGEST = 253 - 37
"""Characters of a Service's name in the name of a slice, before the UID of the pod."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """A running pod with the annotation: its ports, or why it has no listeners."""

    pod: Object
    ports: tuple[int, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Create:
    """Create a slice."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace a slice of podbridge's, in this version."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a slice of podbridge's, in this version."""

    found: Object


@dataclass(frozen=True, slots=True)
class ReportProblem:
    """Report in an Event why a Service does not reach the pod."""

    pod: Object
    text: str


Action = Create | Replace | Delete | ReportProblem


def prune_service(service: dict[str, Any]) -> dict[str, Any]:
    """Keep what decides about endpoints; of a Service that is too large no selector, so that it has none.

    Services of all namespaces are kept, and their users make them as large as etcd stores them.
    """
    metadata, spec = pick(service["metadata"], IDENTITY), pick(service.get("spec") or {}, _SERVICE)
    if len(spec.get("ports") or ()) + len(spec.get("selector") or {}) > MOST_OF_SERVICE:
        spec = {key: value for key, value in spec.items() if key not in ("ports", "selector")}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def prune_slice(found: dict[str, Any]) -> dict[str, Any]:
    """Keep what podbridge writes."""
    metadata = pick(found["metadata"], (*IDENTITY, "labels", "ownerReferences"))
    return {**_KIND, "metadata": metadata, **pick(found, _SLICE)}


def examine(pod: Object, address: str | None, pool: str, forwards: bool, allowed: bool) -> Exposed | None:
    """Return what is to be exposed of a pod with the annotation; ``None`` if it does not run.

    ``forwards``: whether its pool connects to ports. ``allowed``: whether the policy of its namespace allows it.
    """
    metadata = pod["metadata"]
    if (pod.get("status") or {}).get("phase") != "Running":
        return None
    if not allowed and names.EXPOSE_PERMITTED not in metadata["annotations"]:  # the policy is newer than the pod
        text = f"the policy of namespace {metadata['namespace']} has expose: false"
        return Exposed(pod, problem=f"{text}; allowed: a new pod of a user with the permission expose")
    if address is None:
        return Exposed(
            pod, problem="the controllers have no address for endpoints: set pools.expose.address or $POD_IP"
        )
    if not forwards:
        return Exposed(pod, problem=f"pool {pool} forwards no ports: its site must set limits.allow_ports")
    try:
        return Exposed(pod, services.exposed_ports(pod))
    except ValueError as error:  # the pod was created without admission
        return Exposed(pod, problem=str(error))


def usable_address(text: str | None) -> str | None:
    """Return the address if an endpoint may have it; the API server refuses special ones."""
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    is_special = address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local
    return None if is_special else str(address)


def used_ports(slices: Iterable[Object], address: str | None = None) -> frozenset[int]:
    """Return the ports of the hub that slices name, or those with this ``address``: another pod must not get them."""
    return frozenset(
        port["port"]
        for found in slices
        if address is None or any(address in end["addresses"] for end in found.get("endpoints") or ())
        for port in found.get("ports") or ()
        if port.get("port")
    )


def decide(
    exposed: Sequence[Exposed],
    services: Iterable[Object],
    slices: Iterable[Object],
    listeners: Mapping[ListenerKey, int],
    address: str | None,
    manager: str,
    sure: Set[str] | None = None,
) -> list[Action]:
    """Return the actions. ``slices`` are those with the label of ``manager``, which podbridge has created.

    ``sure``: the UIDs of the only pods whose slices may be deleted, ``None``: of all.
    """
    actions: list[Action] = []
    wanted: dict[tuple[str, str], dict[str, Any]] = {}
    with_ports = [each for each in exposed if each.ports] if address is not None else []
    counts = Counter[str]()
    for each, service in _selections(with_ports, sorted(services, key=_name)):
        try:
            problem, ports = _problem(service, str(address)), _ports(service, each, listeners)
        except Exception as error:
            isolation.report("expose", pods.key(each.pod), error)
            continue
        if not problem and ports:
            counts[uid := pods.uid(each.pod)] += 1
            if counts[uid] > MOST_SERVICES:
                problem = f"more than {MOST_SERVICES} Services select the pod: the first of them by name reach it"
        if problem:
            actions.append(ReportProblem(each.pod, problem))
        elif ports:
            body = _slice(service, each.pod, ports, str(address), manager)
            wanted[body["metadata"]["namespace"], body["metadata"]["name"]] = body
    for found in slices:
        metadata = found["metadata"]
        new = wanted.pop((metadata["namespace"], metadata["name"]), None)
        if metadata.get("deletionTimestamp"):
            continue
        if new is None and sure is not None and _pod_of(found) not in sure:
            continue
        # the type of the addresses cannot be changed
        if new is None or new["addressType"] != found.get("addressType"):
            actions.append(Delete(found))
        elif _content(new) != _content(found):
            versioned = {**new["metadata"], "resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"]}
            actions.append(Replace({**new, "metadata": versioned}))
    actions += [Create(body) for body in wanted.values()]
    return actions


def _name(service: Object) -> str:
    return str(service["metadata"]["name"])


_KIND = {"apiVersion": ENDPOINT_SLICES.api_version, "kind": "EndpointSlice"}


def _pod_of(found: Object) -> str | None:
    targets = [end.get("targetRef") or {} for end in found.get("endpoints") or ()]
    return targets[0].get("uid") if targets else None


def _content(found: Object) -> tuple[Any, ...]:
    metadata = found["metadata"]
    owners = [pick(owner, ("kind", "name", "uid")) for owner in metadata.get("ownerReferences") or ()]
    return (metadata.get("labels"), owners, *(found.get(key) for key in _SLICE))


def families(all_pods: Iterable[Object], services: Iterable[Object]) -> dict[str, frozenset[str]]:
    """Return the IP families of the Services that select each pod, by its UID."""
    found: dict[str, frozenset[str]] = defaultdict(frozenset)
    for each, service in _selections(map(Exposed, all_pods), services):
        found[pods.uid(each.pod)] |= frozenset(service["spec"].get("ipFamilies") or ())
    return dict(found)


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _selections(exposed: Iterable[Exposed], services: Iterable[Object]) -> Iterator[tuple[Exposed, Object]]:
    by_namespace = grouped((service["metadata"]["namespace"], service) for service in services)
    for each in exposed:
        found = by_namespace.get(each.pod["metadata"]["namespace"], ())
        yield from ((each, service) for service in found if _selects(service, each.pod))


def _problem(service: Object, address: str) -> str:
    """Return why a Service has no endpoints with the address; empty if it may have them."""
    name, spec, family = service["metadata"]["name"], service["spec"], _family(address)
    if spec.get("clusterIP") == "None":
        return f"Service {name} is headless: its clients would use the pod's port at the address of podbridge"
    if family not in spec.get("ipFamilies", (family,)):
        return f"Service {name} has no {family} address, but that of podbridge is one: see spec.ipFamilies"
    return ""


def _selects(service: Object, pod: Object) -> bool:
    selector = service["spec"].get("selector")
    labels = pod["metadata"].get("labels") or {}
    if not selector or service["spec"].get("type") == "ExternalName":
        return False
    return all(labels.get(key) == value for key, value in selector.items())


def _ports(service: Object, exposed: Exposed, listeners: Mapping[ListenerKey, int]) -> list[dict[str, Any]]:
    uid = pods.uid(exposed.pod)
    ports = []
    for port in service["spec"].get("ports") or ():
        number = services.target_port(port, exposed.pod)
        if number in exposed.ports and (uid, number) in listeners:
            entry = {"name": port.get("name", ""), "protocol": "TCP", "port": listeners[uid, number]}
            ports.append(entry | pick(port, ("appProtocol",)))
    return ports


def _slice(service: Object, pod: Object, ports: list[dict[str, Any]], address: str, manager: str) -> dict[str, Any]:
    owner, metadata = service["metadata"], pod["metadata"]
    is_serving, is_terminating = pods.condition(pod, "Ready").get("status") == "True", pods.is_deleted(pod)
    is_ready = bool(service["spec"].get("publishNotReadyAddresses")) or (is_serving and not is_terminating)
    endpoint = {
        "addresses": [address],
        "conditions": {"ready": is_ready, "serving": is_serving, "terminating": is_terminating},
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": {"kind": "Pod", **pick(dict(metadata), ("namespace", "name", "uid"))},
    }
    return {
        **_KIND,
        "metadata": {
            "namespace": owner["namespace"],
            "name": f"{owner['name'][:_LONGEST]}-{metadata['uid']}",
            "labels": {MANAGED_BY: manager, SERVICE_NAME: owner["name"]},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Service", "name": owner["name"], "uid": owner["uid"], "controller": True}
            ],
        },
        "addressType": _family(address),
        "endpoints": [endpoint],
        "ports": ports,
    }


def wanted_listeners(exposed: Iterable[Exposed]) -> Iterator[tuple[ListenerKey, Object]]:
    """Yield the pod and port of each listener that must exist."""
    for each in exposed:
        for port in each.ports:
            yield (pods.uid(each.pod), port), each.pod
