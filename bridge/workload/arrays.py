"""Which pods may be one array of the batch system at a site. Pure.

An array is one submission of many equal jobs. Each pod keeps a job of its own, so the annotation changes nothing but
the number of submissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names
from bridge.workload import pods

Pod = Mapping[str, Any]
VALUES = ("true", "false")


def problems(text: str | None) -> list[str]:
    """Return the error of a value of the annotation that is not allowed."""
    if text is None or text in VALUES:
        return []
    return [f"annotation {names.ARRAY}: {text[:100]!r} is not allowed; allowed: 'true', 'false'"]


def default_of(namespace_annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotation of a namespace, which its pods inherit after those of their owners."""
    return {name: text for name, text in namespace_annotations.items() if name == names.ARRAY}


def array_of(pod: Pod) -> tuple[str, bool | None]:
    """Return the UID of the controller whose equal pods may be one array, and whether the annotation says so.

    The UID is empty if the pod is in no array. Without the annotation, ``None``, the site decides. Admission copies
    that of the pod's owners or namespace.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.ARRAY)
    owner = pods.owner_reference(pod)
    if owner is None or text not in ("true", None):
        return "", None
    return owner["uid"], None if text is None else True
