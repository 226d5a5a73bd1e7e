"""A PodGroup of the scheduler-plugins project (``scheduling.x-k8s.io``), named by a label of the pods."""

from __future__ import annotations

from bridge.kube.resources import Resource
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, label, limited, number

NAME = "scheduling.x-k8s.io/pod-group"


def of_minimum(owner: Owner, minimum: int, replicas: int, field: str) -> Place:
    """Return the place in a group with a minimum: its size is that, or the number of pods of the controller."""
    limited(max(minimum, replicas), f"PodGroup {owner['metadata']['name']}: {field}")
    return Place("", max(minimum, replicas), minimum, None)


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place:
    return of_minimum(owner, number(owner["spec"].get("minMember")) or 1, replicas, "spec.minMember")


KIND = Kind(
    "podgroup",
    "PodGroup",
    (Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", True),),
    lambda pod: label(pod, NAME),
    _place,
    created_first=True,
)
