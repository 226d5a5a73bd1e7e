"""Kinds of groups that pods name themselves: PodGroups of two APIs, and Kueue's groups of plain pods.

A label of the pods names a PodGroup of the scheduler-plugins project (``scheduling.x-k8s.io``) or a group of Kueue,
``spec.schedulingGroup`` a PodGroup of Kubernetes' Workload API (``scheduling.k8s.io``). Kubernetes 1.36 serves v1alpha2
of the latter, Kubernetes 1.37 v1beta1; the fields that are read here are the same in both. Kubernetes 1.37 can also
serve v1alpha3 with CompositePodGroups, which contain PodGroups or each other. In Kubernetes 1.35, pods name a Workload
by ``spec.workloadRef``; later versions remove this field from pods.

Pods of a StatefulSet or Deployment that Kueue manages have the annotation ``pod-group-serving``. Their controller may
create one after the other has become ready, so each of them starts alone.
"""

from __future__ import annotations

from typing import NoReturn

from bridge import names
from bridge.kube.resources import Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, annotation, label, limited, number

POD_GROUP_NAME = "scheduling.x-k8s.io/pod-group"


def _place_of_minimum(owner: Owner, minimum: int, replicas: int, field: str) -> Place:
    """Return the place in a group with a minimum: its size is that, or the number of pods of the controller."""
    limited(max(minimum, replicas), f"PodGroup {owner['metadata']['name']}: {field}")
    return Place("", max(minimum, replicas), minimum, None)


def _place_in_pod_group(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place:
    return _place_of_minimum(owner, number(owner["spec"].get("minMember")) or 1, replicas, "spec.minMember")


POD_GROUP = Kind(
    "podgroup",
    "PodGroup",
    (Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", True),),
    lambda pod: label(pod, POD_GROUP_NAME),
    _place_in_pod_group,
    created_first=True,
)


_KUEUE = "kueue.x-k8s.io/"
KUEUE_NAME, KUEUE_TOTAL = _KUEUE + "pod-group-name", _KUEUE + "pod-group-total-count"
KUEUE_SERVING = _KUEUE + "pod-group-serving"
KUEUE_INDEX_LABEL = _KUEUE + "pod-group-pod-index-label"
"""Annotation: the label of the pods that has their index in the group."""


def _place_in_kueue_group(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    if annotation(pod, KUEUE_SERVING) == "true":
        return None
    total = number(annotation(pod, KUEUE_TOTAL))
    if not total:
        raise InvalidGroupError(
            f"annotation {KUEUE_TOTAL}: {annotation(pod, KUEUE_TOTAL)!r} is not allowed in a group of pods; allowed: a "
            f"whole number of at least 1"
        )
    limited(total, f"annotation {KUEUE_TOTAL}")
    slot = number(label(pod, annotation(pod, KUEUE_INDEX_LABEL) or ""))
    return Place("", total, total, slot if slot is not None and slot < total else None)


KUEUE = Kind("kueue", "pod group", (), lambda pod: label(pod, KUEUE_NAME), _place_in_kueue_group)


_VERSIONS = ("v1beta1", "v1alpha2")
WORKLOADS = tuple(Resource("scheduling.k8s.io", version, "workloads", True) for version in _VERSIONS)
COMPOSITES = Resource("scheduling.k8s.io", "v1alpha3", "compositepodgroups", True)
_ALONE = f"or the annotation {names.GANG}: 'false', with which each pod starts alone"


def _scheduling_group(pod: Pod) -> str | None:
    return (pod["spec"].get("schedulingGroup") or {}).get("podGroupName") or None


def _place_in_scheduling_group(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    if claims := owner["spec"].get("resourceClaims"):
        raise InvalidGroupError(
            f"PodGroup {owner['metadata']['name']}: spec.resourceClaims[0].name: {claims[0]['name']!r} is not allowed: "
            f"podbridge allocates claims of pods, not of PodGroups; allowed: no claims here, only in the spec of "
            f"the pods"
        )
    gang = (owner["spec"].get("schedulingPolicy") or {}).get("gang")
    if gang is None:  # the policy "basic": the pods are scheduled one by one
        return None
    return _place_of_minimum(owner, number(gang.get("minCount")) or 1, replicas, "spec.schedulingPolicy.gang.minCount")


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


WORKLOAD = Kind(
    "workload",
    "PodGroup",
    tuple(Resource("scheduling.k8s.io", version, "podgroups", True) for version in _VERSIONS),
    _scheduling_group,
    _place_in_scheduling_group,
    created_first=True,
    parent=_parent,
    template=_template,
)
WORKLOAD_REF = Kind("workload", "Workload", (), _workload_name, _refuse)
