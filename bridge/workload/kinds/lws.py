"""A LeaderWorkerSet: each replica, a leader and its workers, is a group.

The controller creates the workers of a replica after its leader. With ``startupPolicy: LeaderReady`` or exclusive
topology it waits until the leader is ready or has a node. Such a leader is not in the group of its workers.
"""

from __future__ import annotations

from bridge.kube.resources import Resource
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, annotation, label, limited, number, required_number

PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME, GROUP_INDEX, WORKER_INDEX = PREFIX + "name", PREFIX + "group-index", PREFIX + "worker-index"
SIZE = PREFIX + "size"
"""Annotation of the pods: the size of the replica when the pod was created."""
EXCLUSIVE_TOPOLOGY = PREFIX + "exclusive-topology"
_WRITER = "the LeaderWorkerSet controller"


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    size = number(annotation(pod, SIZE)) or number((owner["spec"].get("leaderWorkerTemplate") or {}).get("size", 1))
    size = limited(size or 1, f"LeaderWorkerSet {owner['metadata']['name']}: spec.leaderWorkerTemplate.size")
    index = str(required_number(pod, GROUP_INDEX, _WRITER))
    worker = required_number(pod, WORKER_INDEX, _WRITER)
    if _leader_first(owner):
        if worker == 0 or size == 1:
            return None
        index, size, worker = f"{index}-workers", size - 1, worker - 1
    return Place(index, size, size, worker if worker < size else None)


def _leader_first(owner: Owner) -> bool:
    annotations = owner["metadata"].get("annotations") or {}
    return owner["spec"].get("startupPolicy") == "LeaderReady" or EXCLUSIVE_TOPOLOGY in annotations


KIND = Kind(
    "lws",
    "LeaderWorkerSet",
    (Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", True),),
    lambda pod: label(pod, NAME),
    _place,
)
