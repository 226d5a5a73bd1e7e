"""The eviction of workloads whose pool is silent. Pure.

Kueue has no stop policy for one flavor. It handles the condition ``Evicted`` of a Workload in the same way whoever has
set it: it suspends the job, and releases the quota when no pod of the job is active. With the reason ``NodeFailures``
it queues the workload again at once (``pkg/controller/jobframework/reconciler.go``, v0.15).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.clock import rfc3339
from controllers.queues.manifests import GROUP

Object = dict[str, Any]
REASON = "NodeFailures"
"""Kueue's ``WorkloadEvictedDueToNodeFailures``."""
EVICTED = "QueueEvicted"
"""Reason of the Event of the MasterQueue."""
PERIOD = 10.0
"""Seconds between two searches for workloads of one flavor."""


def to_evict(workloads: Iterable[Object], flavor: str) -> list[Object]:
    """Return the workloads with a reservation of this flavor that have neither finished nor been evicted."""
    return [item for item in workloads if flavor in _flavors(item) and not _has_condition(item, "Finished", "Evicted")]


def patch(workload: Object, message: str, now: float) -> Object:
    """Return the body of the server-side apply of the status; ``now`` in seconds since 1970.

    It has the version of the Workload that was read, so that a workload that Kueue has changed since is not evicted.
    """
    metadata = workload["metadata"]
    condition = {
        "type": "Evicted",
        "status": "True",
        "reason": REASON,
        "message": message,
        "lastTransitionTime": rfc3339(now),
        "observedGeneration": metadata.get("generation", 0),
    }
    return {
        "apiVersion": workload["apiVersion"],
        "kind": "Workload",
        "metadata": {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion")},
        "status": {"conditions": [condition]},
    }


def list_path(version: str) -> str:
    """Return the path of the Workloads of all namespaces."""
    return f"/apis/{GROUP}/{version}/workloads"


def status_path(version: str, workload: Object) -> str:
    """Return the path of the status of a Workload."""
    metadata = workload["metadata"]
    return f"/apis/{GROUP}/{version}/namespaces/{metadata['namespace']}/workloads/{metadata['name']}/status"


def _flavors(workload: Object) -> set[str]:
    admission = (workload.get("status") or {}).get("admission") or {}
    assignments = admission.get("podSetAssignments") or ()
    return {flavor for assignment in assignments for flavor in (assignment.get("flavors") or {}).values()}


def _has_condition(workload: Object, *kinds: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any(c["type"] in kinds and c["status"] == "True" for c in conditions)
