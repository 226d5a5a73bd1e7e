"""Kinds of groups that a controller creates: Job, JobSet and LeaderWorkerSet.

All pods of a ``batch/v1`` Job are one group if the annotation ``bridge.vk.io/gang`` is ``true``. Each replicated job of
a JobSet is a group, or the whole JobSet (annotation ``bridge.vk.io/gang: all``). Each replica of a LeaderWorkerSet, a
leader and its workers, is a group. Its controller creates the workers of a replica after its leader. With
``startupPolicy: LeaderReady`` or exclusive topology it waits until the leader is ready or has a node. Such a leader is
not in the group of its workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names
from bridge.kube.resources import JOBS, Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind import (
    Kind,
    Owner,
    Place,
    Pod,
    annotation,
    controller,
    label,
    limited,
    number,
    required_label,
    required_number,
)

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of the pods of an indexed Job."""


def pods_of_job(spec: Mapping[str, Any]) -> int | None:
    """Return the number of pods that run at the same time; ``None`` if some of them start only after others have ended.

    ``spec`` is that of a Job. A Job without ``completions`` runs ``parallelism`` pods and replaces only failed ones.
    """
    parallelism, completions = number(spec.get("parallelism", 1)) or 0, number(spec.get("completions"))
    if completions is None:
        # the API server sets completions to 1 if neither field is set
        return parallelism
    return completions if completions <= parallelism else None


def completed_of_job(owner: Owner) -> int:
    """Return the number of pods of a Job that have succeeded; the Job controller does not create them again."""
    status = owner.get("status") or {}
    # the Job controller moves a pod from here to `succeeded` when it has removed its finalizer from the pod
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
    return (number(status.get("succeeded")) or 0) + len(uncounted)


def completion_index(pod: Pod, spec: Mapping[str, Any], size: int) -> int | None:
    """Return the completion index of the pod in a Job of ``size`` pods; ``None`` if it has none below ``size``."""
    index = number(annotation(pod, COMPLETION_INDEX)) if spec.get("completionMode") == "Indexed" else None
    return index if index is not None and index < size else None


def _job_name(pod: Pod) -> str | None:
    reference = controller(pod)
    return reference["name"] if reference.get("kind") == "Job" and reference["apiVersion"] == "batch/v1" else None


def _place_in_job(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place:
    spec = owner["spec"]
    size = pods_of_job(spec)
    if size is None:
        raise InvalidGroupError(
            f"Job {owner['metadata']['name']}: spec.completions: {spec['completions']} is not allowed for a gang; "
            f"allowed: at most spec.parallelism ({spec.get('parallelism', 1)})"
        )
    limited(size, f"Job {owner['metadata']['name']}: spec.parallelism")
    return Place("", max(size, 1), max(size, 1), completion_index(pod, spec, size))


JOB = Kind("job", "Job", (JOBS,), _job_name, _place_in_job, opt_in=True)


_JOBSET = "jobset.sigs.k8s.io/"
JOBSET_NAME, JOBSET_UID = _JOBSET + "jobset-name", _JOBSET + "jobset-uid"
REPLICATED_JOB, JOB_INDEX = _JOBSET + "replicatedjob-name", _JOBSET + "job-index"
_JOBSET_WRITER = "the JobSet controller"

ReplicatedJob = Mapping[str, Any]


def pods_of_jobset(owner: Owner) -> int:
    """Return the number of pods of all replicated jobs; jobs whose pods start one after the other count as 0."""
    return sum(_size_of_replicated_job(entry) or 0 for entry in _replicated_jobs(owner))


def completed_of_jobset(owner: Owner, index: str) -> int:
    """Return the number of pods of the complete Jobs of one replicated job, or of all if ``index`` is empty."""
    statuses = (owner.get("status") or {}).get("replicatedJobsStatus") or ()
    jobs = {entry["name"]: number(entry.get("succeeded")) or 0 for entry in statuses}
    entries = [entry for entry in _replicated_jobs(owner) if index in ("", entry["name"])]
    return sum(jobs.get(entry["name"], 0) * (pods_of_job(_job_spec(entry)) or 0) for entry in entries)


def _replicated_jobs(owner: Owner) -> list[ReplicatedJob]:
    replicated_jobs: list[ReplicatedJob] = owner["spec"].get("replicatedJobs") or []
    return replicated_jobs


def _job_spec(entry: ReplicatedJob) -> Mapping[str, Any]:
    """Return the specification of one Job. The JobSet controller creates indexed Jobs by default."""
    spec: Mapping[str, Any] = entry["template"].get("spec") or {}
    return {"completionMode": "Indexed", **spec}


def _size_of_replicated_job(entry: ReplicatedJob) -> int | None:
    pods = pods_of_job(_job_spec(entry))
    return None if pods is None else pods * _replicas(entry)


def _replicas(entry: ReplicatedJob) -> int:
    replicas = number(entry.get("replicas", 1))
    return 1 if replicas is None else replicas


def _place_in_jobset(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    name, uid = owner["metadata"]["name"], label(pod, JOBSET_UID)
    if uid is not None and uid != owner["metadata"]["uid"]:
        raise InvalidGroupError(
            f"metadata.labels[{JOBSET_UID}]: {uid!r} is not allowed: JobSet {name} was created again; allowed: "
            f"{owner['metadata']['uid']!r}"
        )
    entries, job_name = _replicated_jobs(owner), required_label(pod, REPLICATED_JOB, _JOBSET_WRITER)
    entry = next((entry for entry in entries if entry["name"] == job_name), None)
    if entry is None:
        allowed = ", ".join(entry["name"] for entry in entries)
        raise InvalidGroupError(f"metadata.labels[{REPLICATED_JOB}]: {job_name!r} is not allowed; allowed: {allowed}")
    if whole:
        _check_whole(owner)
        members, index = entries, ""
    elif _size_of_replicated_job(entry) is None:
        return None
    else:
        members, index = [entry], job_name
    size = limited(
        sum(_size_of_replicated_job(member) or 0 for member in members), f"JobSet {name}: spec.replicatedJobs"
    )
    return Place(index, max(size, 1), max(size, 1), _slot(pod, members, entry, size))


def _slot(pod: Pod, members: list[ReplicatedJob], replicated_job: ReplicatedJob, size: int) -> int | None:
    """Return the index of the pod among all pods of ``members``, in the order of the JobSet."""
    if any(_job_spec(member)["completionMode"] != "Indexed" for member in members):
        return None
    spec = _job_spec(replicated_job)
    pods_per_job = pods_of_job(spec) or 0
    index = completion_index(pod, spec, pods_per_job)
    if index is None:
        return None
    before = sum(_size_of_replicated_job(member) or 0 for member in members[: members.index(replicated_job)])
    slot = before + required_number(pod, JOB_INDEX, _JOBSET_WRITER) * pods_per_job + index
    return slot if slot < size else None


def _check_whole(owner: Owner) -> None:
    """Raise :class:`InvalidGroupError` if the pods of the JobSet do not all start together."""
    problem = ""
    if (owner["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
        problem = "spec.startupPolicy.startupPolicyOrder: 'InOrder' starts the replicated jobs one after the other"
    for entry in _replicated_jobs(owner):
        if entry.get("dependsOn"):
            problem = f"spec.replicatedJobs[{entry['name']}].dependsOn: starts it after another replicated job"
        if _size_of_replicated_job(entry) is None:
            problem = f"spec.replicatedJobs[{entry['name']}].template.spec.completions: exceeds parallelism"
    if problem:
        raise InvalidGroupError(
            f"annotation {names.GANG}: 'all' is not allowed for JobSet {owner['metadata']['name']}: {problem}; "
            f"allowed: 'true' (one group for each replicated job), 'false'"
        )


JOBSET = Kind(
    "jobset",
    "JobSet",
    (Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", True),),
    lambda pod: label(pod, JOBSET_NAME),
    _place_in_jobset,
)


_LWS = "leaderworkerset.sigs.k8s.io/"
LWS_NAME, GROUP_INDEX, WORKER_INDEX = _LWS + "name", _LWS + "group-index", _LWS + "worker-index"
LWS_SIZE = _LWS + "size"
"""Annotation of the pods: the size of the replica when the pod was created."""
EXCLUSIVE_TOPOLOGY = _LWS + "exclusive-topology"
_LWS_WRITER = "the LeaderWorkerSet controller"


def _place_in_lws(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    size = number(annotation(pod, LWS_SIZE)) or number((owner["spec"].get("leaderWorkerTemplate") or {}).get("size", 1))
    size = limited(size or 1, f"LeaderWorkerSet {owner['metadata']['name']}: spec.leaderWorkerTemplate.size")
    index = str(required_number(pod, GROUP_INDEX, _LWS_WRITER))
    worker = required_number(pod, WORKER_INDEX, _LWS_WRITER)
    if _leader_first(owner):
        if worker == 0 or size == 1:
            return None
        index, size, worker = f"{index}-workers", size - 1, worker - 1
    return Place(index, size, size, worker if worker < size else None)


def _leader_first(owner: Owner) -> bool:
    annotations = owner["metadata"].get("annotations") or {}
    return owner["spec"].get("startupPolicy") == "LeaderReady" or EXCLUSIVE_TOPOLOGY in annotations


LWS = Kind(
    "lws",
    "LeaderWorkerSet",
    (Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", True),),
    lambda pod: label(pod, LWS_NAME),
    _place_in_lws,
)
