"""Kueue's group of plain pods: a label has its name, an annotation the number of its pods.

Pods of a StatefulSet or Deployment that Kueue manages have the annotation ``pod-group-serving``. Their controller may
create one after the other has become ready, so each of them starts alone.
"""

from __future__ import annotations

from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, annotation, label, limited, number

PREFIX = "kueue.x-k8s.io/"
NAME, TOTAL = PREFIX + "pod-group-name", PREFIX + "pod-group-total-count"
SERVING = PREFIX + "pod-group-serving"
INDEX_LABEL = PREFIX + "pod-group-pod-index-label"
"""Annotation: the label of the pods that has their index in the group."""


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    if annotation(pod, SERVING) == "true":
        return None
    total = number(annotation(pod, TOTAL))
    if not total:
        raise InvalidGroupError(
            f"annotation {TOTAL}: {annotation(pod, TOTAL)!r} is not allowed in a group of pods; allowed: a whole "
            f"number of at least 1"
        )
    limited(total, f"annotation {TOTAL}")
    slot = number(label(pod, annotation(pod, INDEX_LABEL) or ""))
    return Place("", total, total, slot if slot is not None and slot < total else None)


KIND = Kind("kueue", "pod group", (), lambda pod: label(pod, NAME), _place)
