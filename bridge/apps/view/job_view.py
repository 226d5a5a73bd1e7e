"""A Slurm job as users see it: what it asks for, why it waits, its pods, and where the two sides disagree. Pure.

A pod and its job are read one after the other. A pod that starts or ends meanwhile can show a problem that is gone in
the next answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bridge import clock, job_ends
from bridge.apps.view import pod_view
from bridge.apps.view.pod_view import PodView
from bridge.apps.view.records import SlurmJobRecord
from bridge.apps.view.wait_reasons import BINDING, NOT_PROCESSED
from bridge.core.grouping import grouped
from bridge.slurm import job_words, states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job, JobLink, Node, PodRef
from bridge.workload import links, pods, translate

RELEASED = "released"
"""The state of a job that podbridge has cancelled after the end of its pods; ``CANCELLED`` in Slurm."""


def records(
    jobs: Iterable[Job],
    all_pods: Iterable[pods.Pod],
    slurm_names: Mapping[str, str],
    namespace: str | None = None,
    *,
    ended: bool = True,
) -> list[SlurmJobRecord]:
    """Return a record for each job, and one for each pod that needs a job which is not in ``jobs``.

    Without ``ended``, leave out the jobs that have ended and disagree with no pod: Slurm lists them for MinJobAge.
    ``all_pods`` are the pods of the scheduler in ``namespace`` (``None``: in all namespaces); ``slurm_names`` maps the
    names of the Kubernetes nodes that are not virtual to their names in Slurm. The field ``problem`` says what
    disagrees; it is empty if both sides agree.
    """
    by_uid = {pods.uid(pod): pod for pod in all_pods}
    members = grouped((links.key(pod), translate.pod_ref(pod)) for pod in by_uid.values())
    listed: set[str] = set()
    result = []
    for job in jobs:
        if job.link is None or namespace not in (None, job.link.namespace):
            continue
        refs = list(job.link.pods) if job.link.group is None else members.get(job.link.group.key, [])
        listed.update(ref.uid for ref in refs)
        record = _of_job(job, job.link, refs, by_uid, slurm_names)
        if ended or record["problem"] or states.end_of(job.states) is None:
            result.append(record)
    return result + [
        _of_pods([pod], problem)
        for uid, pod in by_uid.items()
        if uid not in listed and (problem := _without_job(pod, slurm_names))
    ]


def of_pods(all_pods: Iterable[pods.Pod]) -> list[SlurmJobRecord]:
    """Return a record for each job that a pod names, for a user who may not read Slurm: it has what the hub wrote."""
    live = (pod for pod in all_pods if not pods.is_finished(pod))
    by_job = grouped((job_id, pod) for pod in live if (job_id := pods.job_id(pod)) is not None)
    return [_of_pods(members) for _, members in sorted(by_job.items())]


def _of_job(
    job: Job, link: JobLink, refs: list[PodRef], by_uid: Mapping[str, pods.Pod], slurm_names: Mapping[str, str]
) -> SlurmJobRecord:
    """Return the record of a job; ``refs`` are its pods, of a group those that exist."""
    there = [by_uid[ref.uid] for ref in refs if ref.uid in by_uid]
    if link.group is not None:
        refs = [ref for ref in refs if not pods.is_finished(by_uid[ref.uid])] or refs
    problems = [_problem(job, ref, by_uid.get(ref.uid), slurm_names) for ref in refs]
    if link.group is not None and not refs and states.end_of(job.states) is None:
        problems = [f"no pod of {link.names[0]} exists"]
    return {
        "job": job.job_id,
        "state": state(job, there),
        "partition": job.partition,
        "nodes": list(job.nodes),
        "pods": list(link.names),
        "phases": sorted({pod_view.phase(pod) for pod in there}),
        "reason": job.reason,
        "problem": "; ".join(filter(None, problems)),
        "pod_nodes": sorted({node for pod in there if (node := pod["spec"].get("nodeName"))}),
        "name": job.name,
        "user": job.user_name,
        "submitted": clock.rfc3339(job.submit_time) if job.submit_time else "",
        "started": clock.rfc3339(job.start_time) if job.start_time and not states.is_pending(job.states) else "",
    }


def _of_pods(members: Sequence[pods.Pod], problem: str = "") -> SlurmJobRecord:
    """Return the record of the job that pods name; ``reason`` is why the first of them waits."""
    views = [pod_view.of(pod) for pod in members]
    waiting = next((view for view in views if view.state == pod_view.WAITING and not problem), None)
    return {
        "job": pods.job_id(members[0]),
        "state": "",
        "partition": "",
        "nodes": [],
        "pods": list(map(pods.key, members)),
        "phases": sorted({pod_view.phase(pod) for pod in members}),
        "reason": (job_words.read_waiting(waiting.message).reason or waiting.reason) if waiting is not None else "",
        "problem": problem,
        "pod_nodes": sorted({view.node for view in views if view.node}),
        "name": "",
        "user": "",
        "submitted": "",
        "started": "",
    }


def state(job: Job, there: Iterable[pods.Pod]) -> str:
    """Return the states of a job, joined; :data:`RELEASED` if it was cancelled because its pods ended or were deleted.

    Slurm shows no difference.
    """
    members = list(there)
    over = states.end_of(job.states) is job_ends.CANCELLED
    over = over and all(pods.is_finished(pod) or pods.is_deleted(pod) for pod in members)
    reasons = {(pod.get("status") or {}).get("reason") for pod in members if pods.is_finished(pod)}
    return RELEASED if over and job_ends.CANCELLED.reason not in reasons else "+".join(sorted(job.states))


def reason(view: PodView, job: Job | None) -> str:
    """Return why a pod waits: the reason of its condition, or what its job shows since.

    The condition of a pod reports a job that has been pending for some seconds, and no job that has started.
    """
    if job is None or view.state != pod_view.WAITING or view.reason not in (NOT_PROCESSED, "SlurmPending", "Racing"):
        return view.reason
    if states.is_allocated(job.states):
        return BINDING
    return "SlurmPending" if states.is_pending(job.states) and view.reason == NOT_PROCESSED else view.reason


def problem(job: Job, pod: pods.Pod) -> str:
    """Return what disagrees between a job and one of its pods; empty if nothing does.

    The nodes are compared only if the pod has the name of its node in Slurm.
    """
    known = job if pods.slurm_node(pod) else replace(job, nodes=())
    return _problem(known, translate.pod_ref(pod), pod, {})


def _problem(job: Job, ref: PodRef, pod: pods.Pod | None, slurm_names: Mapping[str, str]) -> str:
    """Return what disagrees between a job and one of its pods; ``None``: the pod does not exist."""
    name, over = f"pod {ref.namespace}/{ref.name}", states.end_of(job.states) is not None
    if pod is None:
        return "" if over else f"{name} does not exist"
    if pods.is_finished(pod):
        return "" if over else f"{name} has ended, but its job is not released"
    labelled = pods.job_id(pod)
    if over:
        # a pod that waits gets a new job
        return f"{name} is bound, but its job has ended" if pods.is_bound(pod) and labelled == job.job_id else ""
    if not pods.is_bound(pod):
        return ""
    if labelled != job.job_id:
        return f"{name} has job {labelled}" if labelled is not None else f"{name} is bound without this job"
    if states.is_pending(job.states):
        return f"{name} is bound, but its job is pending"
    node = pod["spec"]["nodeName"]
    given = pods.slurm_node(pod) or slurm_names.get(node, node)
    if job.nodes and given not in job.nodes:
        return f"{name} is on node {given}, its job on {','.join(job.nodes)}"
    return ""


def _without_job(pod: pods.Pod, slurm_names: Mapping[str, str]) -> str:
    """Return what is wrong with a pod without a job in Slurm; empty if it needs none, or none yet."""
    if pods.is_finished(pod):
        return ""
    labelled = pods.job_id(pod)
    if labelled is not None:
        return f"Slurm does not list job {labelled} of the pod"
    if pods.is_bound(pod) and pod["spec"]["nodeName"] in slurm_names:
        return "the pod is bound without a job"
    return ""


def lines(job: Job, shown: str, everyone: Iterable[Job], now: float) -> list[str]:
    """Return what the job asks for, Slurm's reason, its nodes and components, its position and its start.

    ``shown`` is its state, as :func:`state` returns it.
    """
    result = [f"job {job.job_id} is {shown} in partition {job.partition or '?'}"]
    facts = {
        "asks for": job_words.amounts(job.request),
        "reason": job.reason and f"{job.reason}{f' ({job.description})' if job.description else ''}",
        "time limit": _time_limit(job),
        "nodes": ",".join(job.nodes),
    }
    result += [f"{name}: {fact}" for name, fact in facts.items() if fact]
    for part in job.parts:
        nodes = f" on {','.join(part.nodes)}" if part.nodes else ""
        excluded = f", excluded nodes: {','.join(part.excluded_nodes)}" if part.excluded_nodes else ""
        result.append(f"component {part.job_id} is {'+'.join(sorted(part.states))}{nodes}{excluded}")
    if states.is_pending(job.states):
        result.append(_position(job, everyone))
        result.append(f"estimated start: {job_words.expected_start(job, now) or 'not computed by Slurm yet'}")
    elif job.start_time:
        result.append(f"started: {clock.rfc3339(job.start_time)}")
        if states.is_allocated(job.states) and now < job.end_time < now + job_words.UNLIMITED:
            result.append(f"time left: {job_words.minutes((job.end_time - now) / 60)}")
    if job.excluded_nodes and not job.parts:
        result.append(f"excluded nodes: {','.join(job.excluded_nodes)}")
    return result


def _time_limit(job: Job) -> str:
    if 60 * job.time_limit >= job_words.UNLIMITED:
        return "none"
    return job_words.minutes(job.time_limit) if job.time_limit else ""


def _position(job: Job, everyone: Iterable[Job]) -> str:
    """Return the position of a pending job among the pending jobs of its partitions that are not held.

    Slurm considers jobs by priority, then by id; backfill can start a job before others.
    """
    if not job.priority:
        return "priority 0: the job is held"
    partitions = set(job.partition.split(","))
    pending = [other for other in everyone if other.priority and states.is_pending(other.states)]
    queue = [other for other in pending if partitions & set(other.partition.split(","))]
    ahead = sum((-other.priority, other.job_id) < (-job.priority, job.job_id) for other in queue)
    return f"priority {job.priority}: position {ahead + 1} of {len(queue)} in partition {job.partition or '?'}"


def default_memory(asks: Allotment, nodes: Iterable[Node], per_cpu: str | None) -> tuple[bool, str]:
    """Return whether the job of a pod that requests no memory asks for all of a node, and in words what it asks for.

    ``per_cpu`` is the memory that podbridge requests for such a pod, if any: ``defaults.memoryPerCpu``.
    """
    sizes = [size for node in nodes if (size := node.memory_mib - node.reserved_mib) > 0]
    asked = job_words.memory(asks.memory_mib)  # an amount of a message is rounded
    whole = any(asks.memory_mib >= size or asked == job_words.memory(size) for size in sizes)
    if per_cpu is not None and not whole:
        return False, f"the pod requests no memory, so podbridge requests {per_cpu} for each CPU"
    amount = "all memory of a node" if whole else "the default memory of the partition"
    return whole, f"the pod requests no memory, so Slurm gives it {amount}"
