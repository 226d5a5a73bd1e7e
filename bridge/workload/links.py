"""The link between a pod and its Slurm job: the key and the comment of the job; pods whose jobs are missing. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from bridge import names
from bridge.core import isolation
from bridge.core.grouping import grouped
from bridge.slurm import states
from bridge.slurm.models import JobLink, PodRef, Snapshot
from bridge.workload import groups, pods, resources
from bridge.workload.devices import extended_claims
from bridge.workload.groups import InvalidGroupError, Membership

Pod = Mapping[str, Any]


def membership(pod: Pod) -> Membership | None:
    """Return the place of a pod in its group; ``None`` for a pod that has a job alone."""
    member = group_of(pod)
    return None if member is None or member.alone else member


def group_of(pod: Pod) -> Membership | None:
    """Return the place of a pod in its group, also of a member with a job of its own; ``None`` for a bare pod.

    A pod with an invalid annotation, which only a pod from before admission can have, is a bare pod.
    """
    annotations = pod["metadata"].get("annotations") or {}
    text = annotations.get(names.GROUP)
    if text is None:
        return None
    try:
        return groups.decode(text, pod["metadata"]["namespace"], groups.together(annotations))
    except InvalidGroupError:
        return None


def size_and_minimum(members: Iterable[tuple[Pod, Membership]]) -> tuple[int, int]:
    """Return the size and the minimum of a group of at least one pod.

    If the pods that have not ended differ in them, the most frequent values count; of equally frequent ones, those of
    the oldest pod. Any user of the namespace may label a pod as a member and state a size.
    """
    entries = list(members)
    unfinished = [entry for entry in entries if not pods.is_finished(entry[0])] or entries
    unfinished.sort(key=lambda entry: pods.age(entry[0]))
    return Counter((member.size, member.minimum) for _, member in unfinished).most_common(1)[0][0]


def key(pod: Pod) -> str:
    """Return the key of the pod's job (:attr:`~bridge.slurm.models.JobLink.keys`): its UID, or the key of its group."""
    text = (pod["metadata"].get("annotations") or {}).get(names.GROUP)
    return pods.uid(pod) if text is None else _group_key(text, pod["metadata"]["namespace"]) or pods.uid(pod)


def link(pod: Pod, cluster: str) -> JobLink:
    """Return the comment of the pod's job."""
    member = membership(pod)
    if member is None:
        metadata = pod["metadata"]
        return JobLink(cluster, (PodRef(metadata["namespace"], metadata["name"], metadata["uid"]),), shape=shape(pod))
    return JobLink(cluster, (), member.key, member.size)


def on_pods(candidates: Iterable[Pod], cluster: str, is_requested: Callable[[int], bool]) -> dict[int, JobLink]:
    """Return the jobs that the ``candidates`` name and still need, by id; only those whose id ``is_requested``."""
    jobs: dict[int, JobLink] = {}
    for pod in candidates:
        job_id = pods.job_id(pod)
        if job_id is not None and is_requested(job_id) and (pods.is_held(pod) or not pods.is_finished(pod)):
            jobs[job_id] = link(pod, cluster)
    return jobs


def shape(pod: Pod) -> str:
    """Return a digest of what the pod requests from Slurm.

    It covers the job annotations except the name, resources, claims, the pod's own deadline and the grace period.

    Any user who may create pods in a namespace may label a pod as a member of a group there. So only pods with the same
    shape as the members for which a job was submitted get a place of the job: no other account, partition or user is
    used, and no more resources than Slurm has allocated. In the same way, a pod that a user has changed after the
    submission does not get the node of its job.
    """
    annotations = pod["metadata"].get("annotations") or {}
    settings = sorted(
        (name, value)
        for name, value in annotations.items()
        if name.startswith(names.JOB_ANNOTATION_PREFIX) and name != names.JOB_NAME
    )
    requests = sorted((name, str(value.normalize())) for name, value in resources.pod_requests(pod["spec"]).items())
    times = [pod["spec"].get(field) for field in ("activeDeadlineSeconds", "terminationGracePeriodSeconds")]
    claimed = extended_claims.shape(pod)
    partitions = pods.selected_partitions(pod["spec"])
    text = json.dumps([settings, requests, times, *([claimed] if claimed else []), *partitions])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def placed_shape(pod: Pod) -> str:
    """Return the shape of the pod, followed by a digest of the nodes that the pod allows.

    It is used for members that request the same, but have too few nodes in common: each kind of them gets a component.
    """
    spec = pod["spec"]
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    text = json.dumps([spec.get("nodeSelector") or {}, required, spec.get("tolerations") or []], sort_keys=True)
    return f"{shape(pod)}.{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def shape_for(shapes: Iterable[str]) -> Callable[[Pod], str]:
    """Return the function that makes shapes like these: :func:`shape` or :func:`placed_shape`."""
    return placed_shape if any("." in text for text in shapes) else shape


def by_shape(members: Iterable[Pod], shape_of: Callable[[Pod], str] = shape) -> dict[str, list[Pod]]:
    """Return the pods of each shape; the shapes in the order in which they appear."""
    return grouped((shape_of(pod), pod) for pod in members)


@lru_cache(maxsize=32768)  # the text differs between members: a decision needs the keys of all pods
def _group_key(text: str, namespace: str) -> str:
    try:
        member = groups.decode(text, namespace)
        return "" if member.alone else member.key.key
    except InvalidGroupError:
        return ""


def is_any_missing(snapshot: Snapshot) -> bool:
    """Whether a job of podbridge that had not ended is missing; if none is, :func:`missing_jobs` need not be called."""
    absent_jobs = (snapshot.jobs[job_id] for job_id in snapshot.absent)
    return any(
        observed_job.missing and observed_job.is_confirmed and states.end_of(observed_job.job.states) is None
        for observed_job in absent_jobs
    )


def missing_jobs(everyone: Iterable[Pod], snapshot: Snapshot, max_grace: float) -> tuple[int, dict[str, Pod]]:
    """Return the number of pods that should have a job, and the pods whose job is missing, by UID.

    A deleted pod counts if its grace period exceeds ``max_grace`` seconds: the end of its job shortens it.

    A job counts as missing as soon as it is not in the list: polls read missing jobs a few at a time, and the loss of
    thousands must show at once. But no job counts before slurmctld itself has reported twice that one of them does not
    exist, or shows another pod's job with its id. Jobs that are listed and whose details are to be read do not count.
    """
    count, is_certain = 0, False
    pods_by_uid: dict[str, Pod] = {}
    for pod in everyone:
        try:
            labelled = pods.job_id(pod)
            if labelled is None or not pods.is_bound(pod) or pods.is_finished(pod):
                continue
            if pods.is_ending(pod, max_grace):
                continue
            count += 1
            uid = pods.uid(pod)
            observed_job = snapshot.jobs.get(labelled)
            if observed_job is None:
                if labelled not in snapshot.unread:
                    pods_by_uid[uid] = pod
            elif observed_job.job.link is not None and key(pod) not in observed_job.job.link.keys:
                pods_by_uid[uid] = pod
                is_certain = True
            elif observed_job.missing or (
                labelled in snapshot.absent and states.end_of(observed_job.job.states) is None
            ):
                pods_by_uid[uid] = pod
                is_certain = is_certain or (observed_job.missing and observed_job.is_confirmed)
        except Exception as error:
            isolation.report("workload", pods.key(pod), error)
    return count, pods_by_uid if is_certain else {}
