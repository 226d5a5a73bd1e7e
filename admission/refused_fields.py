"""Fields of a pod that admission refuses or ignores. Pure.

Only podbridge may set, change or remove the *reserved* labels, annotations and finalizers.

Slurm does not support some scheduling fields. A *requirement* that would be violated is refused by the name of its
field. A *preference* that is ignored causes a warning. Node selectors, required node affinity, taints and cordons are
supported: podbridge passes them to Slurm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from admission import raw_pods
from admission.mutate import CREATION_ANNOTATIONS, OWN_ANNOTATIONS
from bridge import names
from bridge.script import references
from bridge.workload import pool_selection, resources
from bridge.workload.resources import DEVICE_CLASS_PREFIX, Resources

SLURM = "Slurm selects the node"
_FINALIZERS = (names.FINALIZER, names.POOL_FINALIZER)
_RESERVED = (
    ("metadata.labels", raw_pods.labels_of, (names.JOB_ID_LABEL,)),
    ("metadata.annotations", raw_pods.annotations_of, (*OWN_ANNOTATIONS, *CREATION_ANNOTATIONS)),
)
_FINALIZER_RESERVED = "metadata.finalizers: {!r} is not allowed: only podbridge sets it"
MOST_EXPRESSIONS = 1000
"""Expressions of a required node affinity; each may have any number of values."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def requirements(spec: Mapping[str, Any], selects: str = SLURM) -> list[str]:
    """List the requirements of the pod that Slurm or a pool would violate. For devices see :func:`devices`.

    ``selects`` says what selects the place of the pod.
    """
    problems: list[str] = []
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        if (constraint.get("whenUnsatisfiable") or "DoNotSchedule") == "DoNotSchedule":
            problems.append(
                f"spec.topologySpreadConstraints[{index}]: topologyKey {constraint.get('topologyKey')!r} with "
                f"whenUnsatisfiable 'DoNotSchedule' is not allowed: {selects} and does not spread pods; "
                f"allowed: whenUnsatisfiable 'ScheduleAnyway', or no constraint"
            )
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        for index, term in enumerate((affinity.get(kind) or {}).get(_REQUIRED) or ()):
            problems.append(
                f"spec.affinity.{kind}.{_REQUIRED}[{index}]: topologyKey {term.get('topologyKey')!r} is not allowed: "
                f"{selects} and does not consider other pods; allowed: required node affinity, nodeSelector, or a "
                f"preference"
            )
    return problems


def excess(spec: Mapping[str, Any]) -> list[str]:
    """List a required node affinity with so many expressions that their comparison with each node takes seconds."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms = required.get("nodeSelectorTerms") or ()
    count = sum(len(term.get(part) or ()) for term in terms for part in ("matchExpressions", "matchFields"))
    if count <= MOST_EXPRESSIONS:
        return []
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}"
    return [f"{path}: {count} expressions are not allowed; allowed: at most {MOST_EXPRESSIONS}"]


def devices(spec: Mapping[str, Any], classes: Mapping[str, str], *, remote: bool) -> list[str]:
    """List the requests for devices that podbridge cannot allocate.

    ``classes`` maps device classes to gres. ``remote``: the pod may run on a pool, where no claim is allocated.
    """
    problems: list[str] = []
    for index, claim in enumerate(spec.get("resourceClaims") or ()):
        refusal = f"spec.resourceClaims[{index}]: {claim.get('name')!r} is not allowed"
        if remote:
            problems.append(
                f"{refusal}: pools allocate no resource claims; allowed: a pod for the colocated Slurm only"
            )
        elif not (claim.get("resourceClaimName") or claim.get("resourceClaimTemplateName")):
            problems.append(f"{refusal}; allowed: resourceClaimName or resourceClaimTemplateName")
    allowed_classes = ", ".join(DEVICE_CLASS_PREFIX + name for name in sorted(classes)) or "none"
    for path, container in references.containers(spec):
        holder = container.get("resources") or {}
        for name in sorted({**(holder.get("limits") or {}), **(holder.get("requests") or {})}):
            if not name.startswith(DEVICE_CLASS_PREFIX):
                continue
            refusal = f"{path}.resources: {name!r} is not allowed"
            if remote:
                problems.append(f"{refusal}: pools allocate no devices by class; allowed: nvidia.com/gpu and the like")
            elif name.removeprefix(DEVICE_CLASS_PREFIX) not in classes:
                problems.append(
                    f"{refusal}: Slurm does not count it; allowed: {allowed_classes} (configuration: deviceClasses)"
                )
            elif path.startswith("spec.initContainers") and container.get("restartPolicy") != "Always":
                problems.append(f"{refusal}; allowed: device classes in containers and sidecars")
    return problems


def unknown_resources(requested: Iterable[str], gres: Mapping[str, str]) -> list[str]:
    """List the extended resources without a gres: Slurm does not count them and could allocate them twice."""
    allowed = ", ".join(sorted(gres)) or "none"
    return [
        f"spec.containers: resource {name!r} is not allowed: Slurm does not count it; allowed: {allowed} (key gres of "
        f"podbridge's configuration), or a pod that takes whole nodes"
        for name in resources.extended(requested)
        if name not in gres
    ]


def preferences(spec: Mapping[str, Any], selects: str = SLURM) -> list[str]:
    """List the preferences of the pod that Slurm and pools ignore; ``selects`` says what selects its place."""
    warnings: list[str] = []
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        if constraint.get("whenUnsatisfiable") == "ScheduleAnyway":
            warnings.append(f"spec.topologySpreadConstraints[{index}] is ignored: {selects}")
    affinity = spec.get("affinity") or {}
    warnings += [
        f"spec.affinity.{kind}.{_PREFERRED} is ignored: {selects}"
        for kind in ("nodeAffinity", "podAffinity", "podAntiAffinity")
        if (affinity.get(kind) or {}).get(_PREFERRED)
    ]
    return warnings


def no_memory(requested: Resources) -> list[str]:
    """Warn about a pod that requests no memory: Slurm decides what its job gets."""
    if requested.get("memory"):
        return []
    return [
        "spec.containers: no container requests memory: the Slurm job gets the default of its partition, and all "
        "memory of a node if there is none; set resources.requests.memory"
    ]


def long_grace(spec: Mapping[str, Any], longest: int) -> list[str]:
    """Warn about a grace period that the end of the Slurm job would shorten to ``longest`` seconds."""
    stated = spec.get("terminationGracePeriodSeconds") or 0
    if stated <= longest:
        return []
    return [
        f"spec.terminationGracePeriodSeconds: {stated} is shortened to {longest} s (maxGracePeriod of podbridge's "
        f"configuration) when the Slurm job of the pod is over"
    ]


def too_big(requested: Resources, nodes: Sequence[Resources]) -> list[str]:
    """List the requests that exceed every node's allocatable resources; empty if no node is known."""
    if not nodes or any(all(node.get(name, 0) >= value for name, value in requested.items()) for node in nodes):
        return []
    warnings = []
    for name, value in sorted(requested.items()):
        largest = max(node.get(name, Decimal(0)) for node in nodes)
        if "/" in name and not largest:
            warnings.append(
                f"no node has {name} in its Allocatable: this pod can run only on a node whose devices provide it by "
                f"DRA (DeviceClass, spec.extendedResourceName)"
            )
        elif value > largest:
            warnings.append(
                f"no node can run this pod: it requests {name} {_show(name, value)}, the largest node has "
                f"{_show(name, largest)}"
            )
    if not warnings:
        together = ", ".join(f"{name} {_show(name, value)}" for name, value in sorted(requested.items()))
        warnings.append(f"no node can run this pod: none has all of {together}")
    return warnings


def _show(name: str, value: Decimal) -> str:
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
        return f"{value / 2**30:.1f}Gi" if value >= 2**30 else f"{value / 2**20:.0f}Mi"
    return f"{value.normalize():f}"


def reserved_on_create(pod: raw_pods.Pod, scheduler: str, *, trusted: bool) -> list[str]:
    """List the annotations, labels and finalizers of a new pod that only podbridge or a kubelet may set.

    ``trusted``: podbridge creates the pod.
    """
    problems = []
    annotations = raw_pods.annotations_of(pod)
    if raw_pods.MIRROR_ANNOTATION in annotations:
        problems.append(
            f"metadata.annotations[{raw_pods.MIRROR_ANNOTATION}]: is not allowed: only the kubelet of spec.nodeName "
            f"sets it, for a static pod; allowed: no such annotation"
        )
    if not trusted:
        before: raw_pods.Pod = {"metadata": {}}
        if raw_pods.scheduler_name(pod) == scheduler:  # set by the mutating webhook
            set_by_webhook = {key: annotations[key] for key in CREATION_ANNOTATIONS if key in annotations}
            before = {"metadata": {"annotations": set_by_webhook}}
        problems += _reserved(before, pod)
        local = raw_pods.scheduler_name(pod) == scheduler and pool_selection.of(pod).local
        reserved = [name for name in _FINALIZERS if not (local and name == names.FINALIZER)]
        problems += [_FINALIZER_RESERVED.format(name) for name in reserved if name in _finalizers(pod)]
    return problems


def reserved_on_update(old: raw_pods.Pod, new: raw_pods.Pod) -> list[str]:
    """List the changed annotations, labels and finalizers that only podbridge may change."""
    return _reserved(old, new) + [_FINALIZER_RESERVED.format(name) for name in _added_finalizers(old, new)]


def needs_permission(old: raw_pods.Pod, new: raw_pods.Pod) -> bool:
    """Whether an update removes a finalizer from a pod that has, or may have, a job."""
    removed = _added_finalizers(new, old)
    # a pool's finalizer is written with the intent to submit, so the pool may have a job without an id on the pod
    return names.POOL_FINALIZER in removed or (names.FINALIZER in removed and bool(raw_pods.job_id(old)))


def _reserved(old: raw_pods.Pod, new: raw_pods.Pod) -> list[str]:
    problems = []
    for path, values_of, keys in _RESERVED:
        before, after = values_of(old), values_of(new)
        for key in [key for key in keys if before.get(key) != after.get(key)]:
            if key not in before:
                problems.append(f"{path}[{key}]: {after[key]!r} is not allowed: only podbridge sets it; allowed: none")
                continue
            now = f"be changed to {after[key]!r}" if key in after else "be removed"
            problems.append(
                f"{path}[{key}]: {before[key]!r} cannot {now}: only podbridge does that; allowed: {before[key]!r}"
            )
    return problems


def _finalizers(pod: raw_pods.Pod) -> Sequence[str]:
    finalizers: Sequence[str] = pod["metadata"].get("finalizers") or ()
    return finalizers


def _added_finalizers(old: raw_pods.Pod, new: raw_pods.Pod) -> list[str]:
    return [name for name in _FINALIZERS if name in _finalizers(new) and name not in _finalizers(old)]
