"""The link between a pod and its Slurm job: the key of the job, and the comment of the job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from bridge import names
from bridge.slurm.models import JobLink, PodRef
from bridge.workload import groups, pods
from bridge.workload.groups import InvalidGroupError, Membership


def membership(pod: Mapping[str, Any]) -> Membership | None:
    """Return the place of a pod in its group; ``None`` for a pod that has a job alone.

    A pod with an invalid annotation, which only a pod from before admission can have, has a job alone.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.GROUP)
    if text is None:
        return None
    try:
        return groups.membership(pod)
    except InvalidGroupError:
        return None


def key(pod: Mapping[str, Any]) -> str:
    """Return the key of the pod's job (:attr:`~bridge.slurm.models.JobLink.keys`): its UID, or the key of its group."""
    text = (pod["metadata"].get("annotations") or {}).get(names.GROUP)
    return pods.uid(pod) if text is None else _group_key(text, pod["metadata"]["namespace"]) or pods.uid(pod)


def link(pod: Mapping[str, Any], cluster: str) -> JobLink:
    """Return the comment of the pod's job."""
    member = membership(pod)
    if member is None:
        metadata = pod["metadata"]
        return JobLink(cluster, (PodRef(metadata["namespace"], metadata["name"], metadata["uid"]),))
    return JobLink(cluster, (), member.key, member.size)


@lru_cache(maxsize=32768)  # the text differs between members: a decision needs the keys of all pods
def _group_key(text: str, namespace: str) -> str:
    try:
        return groups.decode(text, namespace).key.key
    except InvalidGroupError:
        return ""
