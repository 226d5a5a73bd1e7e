"""Fields of a pod, and the patches of pods, for scheduler and controllers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge import clock, names
from bridge.errors import UnexpectedError
from bridge.workload import tolerations

Pod = Mapping[str, Any]
_JOB_ID_DIGITS, _HIGHEST_JOB_ID = 8, 0x03FFFFFF
"""The largest job id outside of a federation (MAX_JOB_ID in slurm.h)."""
FINISHED = ("Succeeded", "Failed")
DEFAULT_GRACE = 30
"""Seconds of ``terminationGracePeriodSeconds`` that the API server sets."""


def key(pod: Pod) -> str:
    """Return ``namespace/name``."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def uid(pod: Pod) -> str:
    """Return the UID of the pod."""
    return str(pod["metadata"]["uid"])


def job_id(pod: Pod) -> int | None:
    """Return the id of the pod's Slurm job, or ``None``.

    A binding sets an annotation and a label. API servers before 1.33, and those without the feature gate
    PodTopologyLabelsAdmission, copy only the annotation to the pod. A pod that waits has only the label.
    """
    metadata = pod["metadata"]
    text = (metadata.get("annotations") or {}).get(names.JOB_ID_ANNOTATION)
    if text is None:
        text = (metadata.get("labels") or {}).get(names.JOB_ID_LABEL, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _JOB_ID_DIGITS):
        return None
    # a poll requests the jobs on pods together, and a number that is no id must not spoil the request
    number = int(text)
    return number if 0 < number <= _HIGHEST_JOB_ID else None


def owner_reference(pod: Pod) -> dict[str, str] | None:
    """Return the ObjectReference of the pod's controller; ``None`` without one."""
    for owner in pod["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            fields = {key: owner.get(key, "") for key in ("apiVersion", "kind", "name", "uid")}
            return {**fields, "namespace": pod["metadata"]["namespace"]}
    return None


def is_bound(pod: Pod) -> bool:
    """Whether the pod is bound to a node."""
    return bool(pod["spec"].get("nodeName"))


def bound_before(bound: Iterable[Pod], waiting: Iterable[Pod]) -> bool:
    """Whether at least one of the ``bound`` pods was bound before each of the ``waiting`` pods was created.

    Both times are those of the API server, in whole seconds (RFC 3339, UTC).
    """
    conditions = (condition(pod, names.POD_SCHEDULED) for pod in bound)
    transitions = (entry.get("lastTransitionTime") for entry in conditions if entry.get("status") == "True")
    times = [time for time in transitions if time]  # another writer of the status may leave it out
    return bool(times) and all(pod["metadata"]["creationTimestamp"] > min(times) for pod in waiting)


def is_open(pod: Pod) -> bool:
    """Whether the pod is neither bound nor finished: the scheduler has to schedule it."""
    return not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in FINISHED


def is_finished(pod: Pod) -> bool:
    """Whether the phase of the pod is final: all its containers have ended."""
    return (pod.get("status") or {}).get("phase") in FINISHED


def is_deleted(pod: Pod) -> bool:
    """Whether the deletion of the pod was requested."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ending(pod: Pod, longest: float) -> bool:
    """Whether the pod is deleted with a grace period of at most ``longest`` seconds."""
    return is_deleted(pod) and int(pod["metadata"].get("deletionGracePeriodSeconds") or 0) <= longest


def grace(pod: Pod) -> int:
    """Return the seconds of the pod's grace period: that of its deletion, else the one in its spec."""
    seconds = pod["metadata"].get("deletionGracePeriodSeconds")
    return spec_grace(pod["spec"]) if seconds is None else _grace(seconds)


def spec_grace(spec: Mapping[str, Any]) -> int:
    """Return the seconds of the grace period of a pod's spec."""
    return _grace(spec.get("terminationGracePeriodSeconds", DEFAULT_GRACE))


def _grace(seconds: Any) -> int:
    return 1 if int(seconds) < 0 else int(seconds)  # as the API server treats it


def age(pod: Pod) -> tuple[str, str]:
    """Return the sort key by which the oldest pod comes first; of equally old ones, by name."""
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]


def urgency(pod: Pod) -> tuple[int, str, str]:
    """Return the sort key by which the most urgent pod comes first: priority, then :func:`age`."""
    return -int(pod["spec"].get("priority") or 0), *age(pod)


def created_at(pod: Pod) -> float:
    """Return the time of the creation by the clock of the API server, in whole seconds since the epoch."""
    return clock.parse_rfc3339(pod["metadata"]["creationTimestamp"])


def is_gated(pod: Pod) -> bool:
    """Whether the pod must not be scheduled yet."""
    return bool(pod["spec"].get("schedulingGates"))


def is_held(pod: Pod) -> bool:
    """Whether podbridge's finalizer is on the pod."""
    return names.FINALIZER in (pod["metadata"].get("finalizers") or ())


def lacks_hold(pod: Pod, job: int) -> bool:
    """Whether :func:`hold_patch` has to be written before the pod is bound.

    Admission has set the finalizer on the pod, and the binding sets the job. So the patch is needed only for a pod that
    was created without admission, and for one whose label names an earlier job.
    """
    return not is_held(pod) or job_id(pod) not in (None, job)


def has_intent(pod: Pod) -> bool:
    """Whether podbridge may have submitted the pod to a pool that cannot list its jobs."""
    return intent(pod) != ("", "")


def intent(pod: Pod) -> tuple[str, str]:
    """Return the recorded intent: the pool, and the user's statement about the job; both empty without an intent."""
    pool, _, stated = str((pod["metadata"].get("annotations") or {}).get(names.JOB_INTENT) or "").partition("/")
    return pool, stated


def intent_patch(pod: Pod, pool: str, stated: str = "") -> dict[str, Any]:
    """Return the strategic patch that records the intent to submit the pod to a pool that cannot list its jobs."""
    return {
        "metadata": {
            "uid": uid(pod),
            "annotations": {names.JOB_INTENT: f"{pool}/{stated}" if stated else pool},
            "finalizers": [names.POOL_FINALIZER],
        }
    }


def release_patch(pod: Pod) -> dict[str, Any]:
    """Return the strategic patch that removes the finalizer of a pool that cannot list its jobs."""
    return {"metadata": {"uid": uid(pod), "$deleteFromPrimitiveList/finalizers": [names.POOL_FINALIZER]}}


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return one condition of an object's status, empty if it has none of this type."""
    for entry in (obj.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            result: Mapping[str, Any] = entry
            return result
    return {}


def is_marked_missing(pod: Pod) -> bool:
    """Whether the condition of the pod reports its job as missing."""
    return condition(pod, names.JOB_MISSING).get("status") == "True"


def hold_patch(pod: Pod, job: int, scheduler_name: str) -> dict[str, Any]:
    """Return the strategic patch that sets the job on a pod: label, finalizer, and the toleration if it is missing.

    The UID is a precondition: the API server refuses the patch (409) for a new pod with the same name.
    """
    patch: dict[str, Any] = {
        "metadata": {"uid": uid(pod), "labels": {names.JOB_ID_LABEL: str(job)}, "finalizers": [names.FINALIZER]}
    }
    # a patch merges finalizers, but replaces the list of tolerations, which has no merge key
    pod_tolerations, managed = pod["spec"].get("tolerations") or (), managed_toleration(scheduler_name)
    if not tolerations.tolerates_forever(pod_tolerations, managed):
        patch["spec"] = {"tolerations": [managed, *pod_tolerations]}
    return patch


def label_patch(pod: Pod, job: int) -> dict[str, Any]:
    """Return the strategic patch that sets the label with the job id on a bound pod."""
    return {"metadata": {"uid": uid(pod), "labels": {names.JOB_ID_LABEL: str(job)}}}


def managed_toleration(scheduler_name: str) -> dict[str, str]:
    """Return the toleration for the taint of the colocated nodes of this scheduler; it has the fields of the taint."""
    return {"key": names.MANAGED_TAINT, "operator": "Equal", "value": scheduler_name, "effect": "NoExecute"}


def unhold_patch(pod: Pod) -> dict[str, Any]:
    """Return the strategic patch that removes the finalizer."""
    # removes this entry alone: finalizers that others have added meanwhile stay
    return {"metadata": {"uid": uid(pod), "$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}}


def withdraw_patch(pod: Pod) -> dict[str, Any]:
    """Return the strategic patch that removes finalizer and job id from a pod that is bound to a pool."""
    metadata = {"labels": {names.JOB_ID_LABEL: None}, "$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}
    return {"metadata": {"uid": uid(pod), **metadata}}


def slurm_node(pod: Pod) -> str:
    """Return the name in Slurm of the node that the pod was bound to; empty if the pod does not have it."""
    return str((pod["metadata"].get("annotations") or {}).get(names.SLURM_NODE_ANNOTATION, ""))


def forget_job_patch(pod: Pod) -> dict[str, Any]:
    """Return the strategic patch that removes the job id from a pod that is submitted again; the finalizer stays."""
    return {"metadata": {"uid": uid(pod), "labels": {names.JOB_ID_LABEL: None}}}


def group_patch(pod: Pod, group: str) -> dict[str, Any]:
    """Return the strategic patch that sets another ``group`` on a pod, and removes the id of the old group's job."""
    metadata = {"annotations": {names.GROUP: group}, "labels": {names.JOB_ID_LABEL: None}}
    return {"metadata": {"uid": uid(pod), **metadata}}


def conditional(patch: Mapping[str, Any], pod: Pod) -> dict[str, Any]:
    """Return the patch with the resource version of the pod as its precondition.

    The API server refuses it (409) if another process has written the pod since. That is what stops a write of a former
    leader that was suspended between the check of its lease and the first byte.
    """
    version = pod["metadata"].get("resourceVersion", "")
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def binding(
    pod: Pod, node: str, annotations: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the Binding. The UID is its precondition; the same write adds ``annotations`` and ``labels`` to the pod.

    The API server copies labels from version 1.33 on; before, the workload controller sets them.
    """
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "uid": uid(pod),
            "annotations": dict(annotations),
            "labels": dict(labels or {}),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def has_error(pod: Pod) -> bool:
    """Whether the condition of the pod reports an unexpected error."""
    return condition(pod, names.INTERNAL_ERROR).get("status") == "True"


def error_patch(pod: Pod, message: str, now: str) -> dict[str, Any] | None:
    """Return the status patch that reports an unexpected error, or with an empty message its end; ``None``: not due."""
    before = condition(pod, names.INTERNAL_ERROR)
    if not message:
        reason, text = "Handled", "podbridge handles the pod again"
        return condition_patch(pod, names.INTERNAL_ERROR, "False", reason, text, now) if has_error(pod) else None
    if before.get("status") == "True" and before.get("message") == message[:1024]:
        return None
    return condition_patch(pod, names.INTERNAL_ERROR, "True", UnexpectedError.reason, message, now)


def condition_patch(pod: Pod, kind: str, status: str, reason: str, message: str, now: str) -> dict[str, Any]:
    """Return the strategic status patch for one condition; the transition time changes only with the status."""
    before = condition(pod, kind)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    entry = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:1024],
        "lastProbeTime": now,
        "lastTransitionTime": since or now,
    }
    return {"metadata": {"uid": uid(pod)}, "status": {"conditions": [entry]}}


def partitions(pod: Mapping[str, Any], default: str) -> str:
    """Return the Slurm partitions of a pod, comma separated; ``default`` if it names none.

    Kueue can add a node selector to the pods that it admits, and no annotation. So the label of a partition in
    ``spec.nodeSelector`` selects this partition, before the annotation and the configured one.
    """
    annotations = pod["metadata"].get("annotations") or {}
    return ",".join(selected_partitions(pod["spec"])) or annotations.get(names.PARTITION) or default


def partition_source(pod: Mapping[str, Any]) -> str:
    """Return the field of a pod that names its partitions, for messages."""
    return "spec.nodeSelector" if selected_partitions(pod["spec"]) else names.PARTITION


def selected_partitions(spec: Mapping[str, Any]) -> list[str]:
    """Return the partitions that the node selector of a pod names, sorted."""
    prefix, selector = names.PARTITION_LABEL_PREFIX, spec.get("nodeSelector") or {}
    return sorted(key.removeprefix(prefix) for key, value in selector.items() if key.startswith(prefix) and value)
