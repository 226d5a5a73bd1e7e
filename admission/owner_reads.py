"""Reads of the owners of pods. Users make these objects as large as etcd stores them, and their number has no limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from admission.object_size import is_larger
from bridge.kube.discovery import get_if_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import Resource

Object = dict[str, Any]

READS = 3
"""Concurrent reads: an object of 1.5 MiB needs up to 100 MiB while it is read."""
MOST_CACHED = 5_000
"""Values of an object that is cached: of common ones less than 200 remain."""
_UNUSED = frozenset({"managedFields", "containers", "initContainers", "ephemeralContainers", "volumes"})
"""The large parts of objects and of their templates of pods. Admission reads none of them."""
_reads = threading.BoundedSemaphore(READS)


def read(
    client: KubeClient, resource: Resource, namespace: str | None, name: str, *, metadata_only: bool = False
) -> Object | None:
    """Return an object without its large parts; ``None`` if it does not exist. Raises ``Kube*`` errors."""
    with _reads:
        found = get_if_served(client, resource, namespace, name, metadata_only=metadata_only)
        return None if found is None else _without_unused(found)


def may_be_cached(found: Mapping[str, Any]) -> bool:
    """Whether an object is small."""
    return not is_larger(found, MOST_CACHED)


def _without_unused(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_unused(each) for key, each in value.items() if key not in _UNUSED}
    return [_without_unused(each) for each in value] if isinstance(value, list) else value
