"""The ResourceClaim of a pod's extended resources by DRA (``deviceclass.resource.kubernetes.io/<class>``). Pure.

The Kubernetes scheduler creates such a claim before it binds the pod; podbridge writes the same fields. Source:
KEP-5004 and ``extendeddynamicresources.go`` of kube-scheduler 1.36.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from bridge.workload import quantity
from bridge.workload.resources import DEVICE_CLASS_PREFIX as PREFIX

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
FINALIZER = "resource.kubernetes.io/delete-protection"
_LONGEST = 253
_Pod = Mapping[str, Any]


def wants_devices(pod: _Pod) -> bool:
    """Whether the pod has resource claims, or device classes in its containers."""
    spec = pod["spec"]
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return bool(spec.get("resourceClaims")) or any(map(device_classes, containers))


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


def claim(pod: _Pod) -> dict[str, Any] | None:
    """Return the claim of a pod; ``None`` if its containers request no device class.

    Only containers and sidecars count: admission refuses device classes in other init containers. Raises ``ValueError``
    for a quantity that is not a whole number.
    """
    wanted = [
        {
            "name": request,
            "exactly": {
                "deviceClassName": resource.removeprefix(PREFIX),
                "allocationMode": "ExactCount",
                "count": count,
            },
        }
        for _, resource, request, count in _entries(pod)
    ]
    if not wanted:
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
        "spec": {"devices": {"requests": sorted(wanted, key=lambda entry: str(entry["name"]))}},
    }


def status(pod: _Pod) -> dict[str, Any]:
    """Return ``status.extendedResourceClaimStatus`` of the pod: which container uses which request of the claim."""
    mappings = [
        {"containerName": container, "resourceName": resource, "requestName": request}
        for container, resource, request, _ in _entries(pod)
    ]
    return {"resourceClaimName": name(pod), "requestMappings": mappings}


def device_classes(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requests of a container by device class: resource name -> quantity."""
    holder = container.get("resources") or {}
    both = {**(holder.get("limits") or {}), **(holder.get("requests") or {})}
    return {key: value for key, value in sorted(both.items()) if key.startswith(PREFIX)}


def _entries(pod: _Pod) -> list[tuple[str, str, str, int]]:
    """Return container, resource, name of the request and count, as kube-scheduler numbers the requests."""
    spec, found = pod["spec"], []
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    for index, container in enumerate(containers):
        # the API server sets requests to the limits, so this is the list that kube-scheduler numbers
        holder = container.get("resources") or {}
        order = sorted({**(holder.get("limits") or {}), **(holder.get("requests") or {})})
        for resource, text in device_classes(container).items():
            count = quantity.parse(text)
            if count != int(count) or count < 0:
                raise ValueError(f"{resource}: {text!r} is not a whole number")
            if count:
                request = f"container-{index}-request-{order.index(resource)}"
                found.append((container["name"], resource, request, int(count)))
    return found
