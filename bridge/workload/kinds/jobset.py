"""A JobSet: each replicated job is a group, or the whole JobSet (annotation ``bridge.vk.io/gang: all``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names
from bridge.kube.resources import Resource
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import job
from bridge.workload.kinds.kind import Kind, Owner, Place, Pod, label, limited, number, required_label, required_number

PREFIX = "jobset.sigs.k8s.io/"
NAME, UID = PREFIX + "jobset-name", PREFIX + "jobset-uid"
REPLICATED_JOB, JOB_INDEX = PREFIX + "replicatedjob-name", PREFIX + "job-index"
_WRITER = "the JobSet controller"

ReplicatedJob = Mapping[str, Any]


def pods_of(owner: Owner) -> int:
    """Return the number of pods of all replicated jobs; jobs whose pods start one after the other count as 0."""
    return sum(_size(entry) or 0 for entry in _replicated_jobs(owner))


def completed(owner: Owner, index: str) -> int:
    """Return the number of pods of the complete Jobs of one replicated job, or of all if ``index`` is empty."""
    statuses = (owner.get("status") or {}).get("replicatedJobsStatus") or ()
    jobs = {entry["name"]: number(entry.get("succeeded")) or 0 for entry in statuses}
    entries = [entry for entry in _replicated_jobs(owner) if index in ("", entry["name"])]
    return sum(jobs.get(entry["name"], 0) * (job.pods_of(_job_spec(entry)) or 0) for entry in entries)


def _replicated_jobs(owner: Owner) -> list[ReplicatedJob]:
    replicated_jobs: list[ReplicatedJob] = owner["spec"].get("replicatedJobs") or []
    return replicated_jobs


def _job_spec(entry: ReplicatedJob) -> Mapping[str, Any]:
    """Return the specification of one Job. The JobSet controller creates indexed Jobs by default."""
    spec: Mapping[str, Any] = entry["template"].get("spec") or {}
    return {"completionMode": "Indexed", **spec}


def _size(entry: ReplicatedJob) -> int | None:
    pods = job.pods_of(_job_spec(entry))
    return None if pods is None else pods * _replicas(entry)


def _replicas(entry: ReplicatedJob) -> int:
    replicas = number(entry.get("replicas", 1))
    return 1 if replicas is None else replicas


def _place(pod: Pod, owner: Owner, whole: bool, replicas: int) -> Place | None:
    name, uid = owner["metadata"]["name"], label(pod, UID)
    if uid is not None and uid != owner["metadata"]["uid"]:
        raise InvalidGroupError(
            f"metadata.labels[{UID}]: {uid!r} is not allowed: JobSet {name} was created again; allowed: "
            f"{owner['metadata']['uid']!r}"
        )
    entries, job_name = _replicated_jobs(owner), required_label(pod, REPLICATED_JOB, _WRITER)
    entry = next((entry for entry in entries if entry["name"] == job_name), None)
    if entry is None:
        allowed = ", ".join(entry["name"] for entry in entries)
        raise InvalidGroupError(f"metadata.labels[{REPLICATED_JOB}]: {job_name!r} is not allowed; allowed: {allowed}")
    if whole:
        _check_whole(owner)
        members, index = entries, ""
    elif _size(entry) is None:
        return None
    else:
        members, index = [entry], job_name
    size = limited(sum(_size(member) or 0 for member in members), f"JobSet {name}: spec.replicatedJobs")
    return Place(index, max(size, 1), max(size, 1), _slot(pod, members, entry, size))


def _slot(pod: Pod, members: list[ReplicatedJob], replicated_job: ReplicatedJob, size: int) -> int | None:
    """Return the index of the pod among all pods of ``members``, in the order of the JobSet."""
    if any(_job_spec(member)["completionMode"] != "Indexed" for member in members):
        return None
    spec = _job_spec(replicated_job)
    pods_per_job = job.pods_of(spec) or 0
    index = job.completion_index(pod, spec, pods_per_job)
    if index is None:
        return None
    before = sum(_size(member) or 0 for member in members[: members.index(replicated_job)])
    slot = before + required_number(pod, JOB_INDEX, _WRITER) * pods_per_job + index
    return slot if slot < size else None


def _check_whole(owner: Owner) -> None:
    """Raise :class:`InvalidGroupError` if the pods of the JobSet do not all start together."""
    problem = ""
    if (owner["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
        problem = "spec.startupPolicy.startupPolicyOrder: 'InOrder' starts the replicated jobs one after the other"
    for entry in _replicated_jobs(owner):
        if entry.get("dependsOn"):
            problem = f"spec.replicatedJobs[{entry['name']}].dependsOn: starts it after another replicated job"
        if _size(entry) is None:
            problem = f"spec.replicatedJobs[{entry['name']}].template.spec.completions: exceeds parallelism"
    if problem:
        raise InvalidGroupError(
            f"annotation {names.GANG}: 'all' is not allowed for JobSet {owner['metadata']['name']}: {problem}; "
            f"allowed: 'true' (one group for each replicated job), 'false'"
        )


KIND = Kind(
    "jobset",
    "JobSet",
    (Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", True),),
    lambda pod: label(pod, NAME),
    _place,
)
