"""A ``batch/v1`` Job: all its pods are one group if the annotation ``bridge.vk.io/gang`` is ``true``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.kube.resources import JOBS
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, annotation, controller, limited, number

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""


def pods_of(spec: Mapping[str, Any]) -> int | None:
    """Return the number of pods that run at the same time; ``None`` if some of them start only after others have ended.

    ``spec`` is that of a Job. A Job without ``completions`` runs ``parallelism`` pods and replaces only failed ones.
    """
    parallelism, completions = number(spec.get("parallelism", 1)) or 0, number(spec.get("completions"))
    if completions is None:
        # the API server sets completions to 1 if neither field is set
        return parallelism
    return completions if completions <= parallelism else None


def completed(owner: Owner) -> int:
    """Return the number of pods of a Job that have succeeded; the Job controller does not create them again."""
    status = owner.get("status") or {}
    # the Job controller moves a pod from here to `succeeded` when it has removed its finalizer from the pod
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
    return (number(status.get("succeeded")) or 0) + len(uncounted)


def completion_index(pod: Pod, spec: Mapping[str, Any], size: int) -> int | None:
    """Return the completion index of the pod in a Job of ``size`` pods; ``None`` if it has none below ``size``."""
    index = number(annotation(pod, COMPLETION_INDEX)) if spec.get("completionMode") == "Indexed" else None
    return index if index is not None and index < size else None


def _owner_name(pod: Pod) -> str | None:
    reference = controller(pod)
    return reference["name"] if reference.get("kind") == "Job" and reference["apiVersion"] == "batch/v1" else None


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place:
    spec = owner["spec"]
    size = pods_of(spec)
    if size is None:
        raise InvalidGroupError(
            f"Job {owner['metadata']['name']}: spec.completions: {spec['completions']} is not allowed for a gang; "
            f"allowed: at most spec.parallelism ({spec.get('parallelism', 1)})"
        )
    limited(size, f"Job {owner['metadata']['name']}: spec.parallelism")
    return Place("", max(size, 1), max(size, 1), completion_index(pod, spec, size))


KIND = Kind("job", "Job", (JOBS,), _owner_name, _place, opt_in=True)
