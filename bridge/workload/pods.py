"""What podbridge reads from a pod and the few patches it makes on one, shared by scheduler and controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names

Pod = Mapping[str, Any]
FINISHED = ("Succeeded", "Failed")


def key(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def uid(pod: Pod) -> str:
    """The pod's UID: the key of everything."""
    return str(pod["metadata"]["uid"])


def job_id(pod: Pod) -> int | None:
    """The Slurm job that the label names, or ``None``."""
    text = (pod["metadata"].get("labels") or {}).get(names.JOB_ID_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() else None


def is_bound(pod: Pod) -> bool:
    """Whether a node has been chosen."""
    return bool(pod["spec"].get("nodeName"))


def is_open(pod: Pod) -> bool:
    """Whether the pod is neither bound nor finished: what the scheduler has to look after."""
    return not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in FINISHED


def is_finished(pod: Pod) -> bool:
    """Whether no container of the pod runs any more: its phase says so."""
    return (pod.get("status") or {}).get("phase") in FINISHED


def is_deleted(pod: Pod) -> bool:
    """Whether somebody asked for the pod's deletion."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def urgency(pod: Pod) -> tuple[int, str, str]:
    """Sort by this to have the most urgent pod first: priority, then age, then name."""
    metadata = pod["metadata"]
    return -int(pod["spec"].get("priority") or 0), metadata.get("creationTimestamp", ""), metadata["name"]


def is_gated(pod: Pod) -> bool:
    """Whether the pod must not be scheduled yet."""
    return bool(pod["spec"].get("schedulingGates"))


def is_held(pod: Pod) -> bool:
    """Whether podbridge's finalizer is on the pod."""
    return names.FINALIZER in (pod["metadata"].get("finalizers") or ())


def condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    """One condition of the pod's status, empty when it has none of the kind."""
    for entry in (pod.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            found: Mapping[str, Any] = entry
            return found
    return {}


def hold_patch(pod: Pod, job: int, scheduler_name: str) -> dict[str, Any]:
    """Build the strategic patch that ties a pod to its job: label, finalizer, and the toleration where it is missing.

    The UID makes it a precondition: a pod re-created under the same name refuses the patch (409).
    """
    patch: dict[str, Any] = {
        "metadata": {
            "uid": uid(pod),
            "labels": {names.JOB_ID_LABEL: str(job)},
            "finalizers": [names.FINALIZER],
        }
    }
    tolerations = list(pod["spec"].get("tolerations") or ())
    if not any(t.get("key") == names.MANAGED_TAINT for t in tolerations):
        patch["spec"] = {"tolerations": [*tolerations, managed_toleration(scheduler_name)]}
    return patch


def managed_toleration(scheduler_name: str) -> dict[str, str]:
    """Tolerate the taint of the colocated nodes of this scheduler."""
    return {"key": names.MANAGED_TAINT, "operator": "Equal", "value": scheduler_name, "effect": "NoExecute"}


def unhold_patch(pod: Pod) -> dict[str, Any]:
    """Build the strategic patch that takes the finalizer off."""
    return {"metadata": {"uid": uid(pod), "$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}}


def forget_job_patch(pod: Pod) -> dict[str, Any]:
    """Build the strategic patch that takes the job off a pod which goes on waiting (the finalizer stays)."""
    return {"metadata": {"uid": uid(pod), "labels": {names.JOB_ID_LABEL: None}}}


def conditional(patch: Mapping[str, Any], pod: Pod) -> dict[str, Any]:
    """Return the patch with the resource version of the pod as its precondition.

    The API server refuses it (409) if another process has written the pod since. That is what stops a write of a former
    leader that was suspended between the check of its lease and the first byte.
    """
    version = pod["metadata"].get("resourceVersion", "")
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def binding(pod: Pod, node: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """Build the Binding: the UID is its precondition, and its annotations go to the pod in the same write."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": pod["metadata"]["name"],
            "namespace": pod["metadata"]["namespace"],
            "uid": uid(pod),
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def condition_patch(pod: Pod, kind: str, status: str, reason: str, message: str, now: str) -> dict[str, Any]:
    """Build the strategic status patch for one condition; the transition time moves only with the status."""
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
