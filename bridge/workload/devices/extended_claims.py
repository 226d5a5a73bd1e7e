"""The ResourceClaim of a pod's extended resources by DRA. Pure.

A container names the class (``deviceclass.resource.kubernetes.io/<class>``), or a resource of which the class says that
its devices provide it (``spec.extendedResourceName``) on nodes whose Allocatable does not have the resource.

The Kubernetes scheduler creates such a claim before it binds the pod; podbridge writes the same fields. Source:
KEP-5004 and ``extendeddynamicresources.go`` of kube-scheduler 1.36.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from bridge.workload import quantity
from bridge.workload.resources import DEVICE_CLASS_PREFIX as PREFIX

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
FINALIZER = "resource.kubernetes.io/delete-protection"
_LONGEST = 253
_Object = Mapping[str, Any]
_Pod = Mapping[str, Any]
_NONE: Mapping[str, str] = MappingProxyType({})


def names(classes: Iterable[_Object], gres: Mapping[str, str], table: Mapping[str, str]) -> dict[str, str]:
    """Return the class of each extended resource that classes provide: name of the resource -> name of the class.

    Both must be mapped to gres, the resource by ``gres`` and the class by ``table``. Of several classes with one
    resource, it is the newest, and of equally old ones the alphabetically first, as in kube-scheduler.
    """
    class_by_resource: dict[str, str] = {}
    # the last one stays: sorted by age, then against the alphabet
    by_name = sorted(classes, key=lambda entry: str(entry["metadata"]["name"]), reverse=True)
    for entry in sorted(by_name, key=lambda entry: str(entry["metadata"].get("creationTimestamp") or "")):
        resource = (entry.get("spec") or {}).get("extendedResourceName")
        if resource:
            class_by_resource[resource] = str(entry["metadata"]["name"])
    return {
        resource: name
        for resource, name in class_by_resource.items()
        if resource in gres and _provides(table.get(name, ""), gres[resource])
    }


def _provides(kind: str, requested: str) -> bool:
    """Whether devices of the gres ``kind`` are devices of the gres ``requested``, as ``gpu:a100`` is ``gpu``."""
    return bool(kind) and (kind == requested or (":" not in kind and kind == requested.partition(":")[0]))


def wants_devices(pod: _Pod, classes: Collection[str] = ()) -> bool:
    """Whether the pod has resource claims, or requests devices by DRA.

    ``classes`` are the extended resources that classes provide on its node.
    """
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return bool(spec.get("resourceClaims")) or any(device_classes(container, classes) for container in containers)


def by_class(spec: _Object, table: Mapping[str, str]) -> dict[str, int]:
    """Return the containers' requests for device classes by name: the entry of the class in ``table`` -> count.

    Classes that are not in the table are left out: admission refuses the pod.
    """
    counts: dict[str, int] = {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for resource, text in device_classes(container).items():
            if kind := table.get(resource.removeprefix(PREFIX)):
                counts[kind] = counts.get(kind, 0) + quantity.whole(quantity.parse(text))
    return counts


def shape(pod: _Pod) -> list[object]:
    """Return which claims and device classes the pod names; empty if it has none."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    named = [
        [entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")]
        for entry in spec.get("resourceClaims") or ()
    ]
    return [*named, *filter(None, map(device_classes, containers))]


def name(pod: _Pod) -> str:
    """Return the name of the claim. It follows from the pod's name and UID, so that a repeated creation conflicts."""
    digest = hashlib.sha256(pod["metadata"]["uid"].encode()).hexdigest()[:10]
    suffix = f"-extended-resources-{digest}"
    return f"{pod['metadata']['name'][: _LONGEST - len(suffix)].rstrip('-.')}{suffix}"


def claim(pod: _Pod, classes: Mapping[str, str] = _NONE) -> dict[str, Any] | None:
    """Return the claim of a pod; ``None`` if its containers request no devices by DRA.

    ``classes`` are the classes that provide extended resources on the pod's node: resource -> class. Raises
    ``ValueError`` for a quantity that is not a whole number, and for such a resource in an init container that is not a
    sidecar; for the name of a class there, admission refuses the pod.
    """
    device_requests = [
        {
            "name": request,
            "exactly": {
                "deviceClassName": classes.get(resource) or resource.removeprefix(PREFIX),
                "allocationMode": "ExactCount",
                "count": count,
            },
        }
        for _, resource, request, count in _entries(pod, classes)
    ]
    if not device_requests:
        return None
    metadata = pod["metadata"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": name(pod),
            "namespace": metadata["namespace"],
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {"devices": {"requests": sorted(device_requests, key=lambda entry: str(entry["name"]))}},
    }


def status(pod: _Pod, classes: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """Return ``status.extendedResourceClaimStatus`` of the pod: which container uses which request of the claim."""
    mappings = [
        {"containerName": container, "resourceName": resource, "requestName": request}
        for container, resource, request, _ in _entries(pod, classes)
    ]
    return {"resourceClaimName": name(pod), "requestMappings": mappings}


def device_classes(container: _Object, classes: Collection[str] = ()) -> dict[str, Any]:
    """Return the requests of a container for devices by DRA: resource name -> quantity."""
    holder = container.get("resources") or {}
    requests = {**(holder.get("limits") or {}), **(holder.get("requests") or {})}
    return {key: value for key, value in sorted(requests.items()) if key.startswith(PREFIX) or key in classes}


def _entries(pod: _Pod, classes: Mapping[str, str]) -> list[tuple[str, str, str, int]]:
    """Return container, resource, name of the request and count, as kube-scheduler numbers the requests."""
    spec, entries = pod["spec"], []
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    first = len(containers) - len(spec.get("containers") or ())
    for index, container in enumerate(containers):
        # the API server sets requests to the limits, so this is the list that kube-scheduler numbers
        holder = container.get("resources") or {}
        listed = sorted({**(holder.get("limits") or {}), **(holder.get("requests") or {})})
        order = {resource: position for position, resource in enumerate(listed)}
        for resource, text in device_classes(container, classes).items():
            if resource in classes and index < first and container.get("restartPolicy") != "Always":
                raise ValueError(
                    f"{resource} in the init container {container['name']} is provided by DRA on the node; allowed: in "
                    f"containers and sidecars"
                )
            count = quantity.parse(text)
            if count != int(count) or count < 0:
                raise ValueError(f"{resource}: {text!r} is not a whole number")
            if count:
                request = f"container-{index}-request-{order[resource]}"
                entries.append((container["name"], resource, request, int(count)))
    return entries
