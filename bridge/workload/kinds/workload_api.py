"""A PodGroup of Kubernetes' Workload API (``scheduling.k8s.io``), named by ``spec.schedulingGroup`` of the pods.

Kubernetes 1.36 serves v1alpha2, Kubernetes 1.37 v1beta1; the fields that are read here are the same in both.
"""

from __future__ import annotations

from bridge.kube.resources import Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, number
from bridge.workload.kinds.podgroup import of_minimum


def _owner_name(pod: Pod) -> str | None:
    return (pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or None


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    spec = owner["spec"]
    if parent := spec.get("parentCompositePodGroupName"):
        raise InvalidGroupError(
            f"PodGroup {owner['metadata']['name']}: spec.parentCompositePodGroupName: {parent!r} is not allowed; "
            f"allowed: a PodGroup without a CompositePodGroup"
        )
    gang = (spec.get("schedulingPolicy") or {}).get("gang")
    if gang is None:  # the policy "basic": the pods are scheduled one by one
        return None
    return of_minimum(owner, number(gang.get("minCount")) or 1, replicas, "spec.schedulingPolicy.gang.minCount")


KIND = Kind(
    "workload",
    "PodGroup",
    tuple(Resource("scheduling.k8s.io", version, "podgroups", True) for version in ("v1beta1", "v1alpha2")),
    _owner_name,
    _place,
    created_first=True,
)
