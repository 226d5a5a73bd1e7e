"""A PodGroup of Kubernetes' Workload API (``scheduling.k8s.io``), named by ``spec.schedulingGroup`` of the pods.

Kubernetes 1.36 serves v1alpha2, Kubernetes 1.37 v1beta1; the fields that are read here are the same in both. Kubernetes
1.37 can also serve v1alpha3 with CompositePodGroups, which contain PodGroups or each other. In Kubernetes 1.35, pods
name a Workload by ``spec.workloadRef``; later versions remove this field from pods.
"""

from __future__ import annotations

from typing import NoReturn

from bridge import names
from bridge.kube.resources import Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, number
from bridge.workload.kinds.podgroup import of_minimum

_VERSIONS = ("v1beta1", "v1alpha2")
WORKLOADS = tuple(Resource("scheduling.k8s.io", version, "workloads", True) for version in _VERSIONS)
COMPOSITES = Resource("scheduling.k8s.io", "v1alpha3", "compositepodgroups", True)
_ALONE = f"or the annotation {names.GANG}: 'false', with which each pod starts alone"


def _owner_name(pod: Pod) -> str | None:
    return (pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or None


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    if claims := owner["spec"].get("resourceClaims"):
        raise InvalidGroupError(
            f"PodGroup {owner['metadata']['name']}: spec.resourceClaims[0].name: {claims[0]['name']!r} is not allowed: "
            f"podbridge allocates claims of pods, not of PodGroups; allowed: no claims here, only in the spec of "
            f"the pods"
        )
    gang = (owner["spec"].get("schedulingPolicy") or {}).get("gang")
    if gang is None:  # the policy "basic": the pods are scheduled one by one
        return None
    return of_minimum(owner, number(gang.get("minCount")) or 1, replicas, "spec.schedulingPolicy.gang.minCount")


def _parent(owner: Owner) -> tuple[Resource, str] | None:
    """Return the CompositePodGroup that contains a PodGroup or a CompositePodGroup.

    If that has the policy "basic", each group that it contains starts alone. Raises :class:`InvalidGroupError` for a
    CompositePodGroup with the policy "gang", and for a topology constraint of either.
    """
    least = ((owner["spec"].get("schedulingPolicy") or {}).get("gang") or {}).get("minGroupCount")
    if least is not None:
        raise InvalidGroupError(
            f"CompositePodGroup {owner['metadata']['name']}: spec.schedulingPolicy.gang.minGroupCount: {least} is not "
            f"allowed: each PodGroup has a Slurm job of its own, and these start one by one; allowed: "
            f"spec.schedulingPolicy.basic, one PodGroup for all pods, {_ALONE}"
        )
    _check_constraints(owner)
    name = owner["spec"].get("parentCompositePodGroupName")
    return (COMPOSITES, name) if name else None


def _template(owner: Owner) -> tuple[tuple[Resource, ...], str] | None:
    """Return the Workload of a PodGroup: Kubernetes 1.36 names it in another field than 1.37."""
    spec = owner["spec"]
    reference = spec.get("workloadRef") or (spec.get("podGroupTemplateRef") or {}).get("workload") or {}
    name = reference.get("workloadName")
    return (WORKLOADS, name) if name else None


def _check_constraints(owner: Owner) -> None:
    for entry in (owner["spec"].get("schedulingConstraints") or {}).get("topology") or ():
        raise InvalidGroupError(
            f"group {owner['metadata']['name']}: spec.schedulingConstraints.topology[0].key: {entry.get('key')!r} is "
            f"not allowed: Slurm does not know the labels of Kubernetes nodes; allowed: no constraint. To keep a job "
            f"within one group of nodes, use features of Slurm's nodes: annotation {names.CONSTRAINTS}: '[rack1|rack2]'"
        )


def _workload_name(pod: Pod) -> str | None:
    return (pod["spec"].get("workloadRef") or {}).get("name") or None


def _refuse(pod: Pod, owner: Owner, whole: bool, replicas: int) -> NoReturn:
    raise InvalidGroupError(
        f"spec.workloadRef.name: {_workload_name(pod)!r} is not allowed: podbridge reads no Workloads of Kubernetes "
        f"1.35; allowed: spec.schedulingGroup (Kubernetes 1.36 and later), the label scheduling.x-k8s.io/pod-group, "
        f"{_ALONE}"
    )


KIND = Kind(
    "workload",
    "PodGroup",
    tuple(Resource("scheduling.k8s.io", version, "podgroups", True) for version in _VERSIONS),
    _owner_name,
    _place,
    created_first=True,
    parent=_parent,
    template=_template,
)
WORKLOAD_REF = Kind("workload", "Workload", (), _workload_name, _refuse)
