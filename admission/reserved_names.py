"""Labels, annotations and finalizers that only podbridge may set, change or remove. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from admission import raw_pods
from admission.mutate import CREATION_ANNOTATIONS, OWN_ANNOTATIONS
from bridge import names
from bridge.workload import pool_selection

_FINALIZERS = (names.FINALIZER, names.POOL_FINALIZER)
_RESERVED = (
    ("metadata.labels", raw_pods.labels_of, (names.JOB_ID_LABEL,)),
    ("metadata.annotations", raw_pods.annotations_of, (*OWN_ANNOTATIONS, *CREATION_ANNOTATIONS)),
)
_FINALIZER_RESERVED = "metadata.finalizers: {!r} is not allowed: only podbridge sets it"


def on_create(pod: raw_pods.Pod, scheduler: str, *, trusted: bool) -> list[str]:
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


def on_update(old: raw_pods.Pod, new: raw_pods.Pod) -> list[str]:
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
