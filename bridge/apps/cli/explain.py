"""Why a pod is pending or where it runs, and the next step: for ``podbridge explain pod`` and the web page."""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.apps.cli import explain_places, output, queues, reports
from bridge.apps.cli.session import CommandSession
from bridge.apps.view import job_view, node_room, pod_view, queue_view, wait_reasons
from bridge.clock import parse_rfc3339
from bridge.slurm import job_words, states
from bridge.slurm.models import Job
from bridge.workload import eligibility, links, places, pods, pool_selection, resources
from bridge.workload.quantity import MIB
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage

OVERDUE = 60.0
"""Seconds after which a deleted pod that still has podbridge's finalizer is no longer usual."""
REQUEST_MEMORY = "set resources.requests.memory of its containers and create the pod again: it asks for a whole node"


def describe(session: CommandSession, pod: pods.Pod) -> dict[str, Any]:
    """Return the report: a summary, lines for each section, the parts that could not be read, and the next step."""
    scheduler = pod["spec"].get("schedulerName")
    report: dict[str, Any] = {"summary": "", "kubernetes": _kubernetes(pod)}
    report["conditions"] = reports.conditions(pod.get("status") or {})
    report |= {section: [] for section in ("places", "slurm", "volumes", "nodes", "events", "not_read")}
    if (scheduler or "") != session.config.scheduler_name:
        summary = f"not managed by podbridge: its scheduler is {scheduler}{_default_scheduler_text(pod)}"
        advice = f"create it in a managed namespace, or set spec.schedulerName to {session.config.scheduler_name}"
        return report | {"summary": summary, "next": advice}
    report["kubernetes"] += session.attempt("pods of its group", lambda: _group(session, pod)) or []
    job = session.job_of(pod)
    labelled = pods.job_id(pod)
    if job is None and labelled is not None:
        unlisted = ", which Slurm no longer lists" if session.knows_slurm else ""
        report["kubernetes"].append(f"its label names Slurm job {labelled}{unlisted}")
    report["summary"], advice = _summary(pod, job, session)
    allowed = pool_selection.of(pod)
    if job:
        report["slurm"] = job_view.lines(job, job_view.state(job, [pod]), session.all_jobs, time.time())
    is_whole, note = _default_memory(session, pod, job)
    if job and note:
        report["slurm"][1] += f" ({note})"
    advice = REQUEST_MEMORY if is_whole and not advice else advice
    if job is None and allowed.local and session.knows_slurm:
        report["slurm"] = ["no job"]
    elif job is None and labelled is not None and not pods.is_bound(pod):
        position = queue_view.positions(session.published).get(labelled)
        report["slurm"] = [position.text] if position is not None else []
    rooms: list[node_room.Room] = []
    if not pods.is_bound(pod) and allowed.local:
        storage = explain_places.storage(session, pod)
        report["volumes"] = _volumes(pod, storage) if storage is not None else []
        rooms = explain_places.of_nodes(session, pod, storage, job)
        report["nodes"] = node_room.lines(rooms)
    report["places"] = explain_places.describe(session, pod, job, rooms)
    report["events"] = reports.events(session.attempt("Events", lambda: session.events(pod)) or [])
    return report | {"not_read": session.gaps, "next": advice}


def _default_memory(session: CommandSession, pod: pods.Pod, job: Job | None) -> tuple[bool, str]:
    """Return whether a pod waits that requests no memory and whose job asks for a whole node, and this in words."""
    asks = explain_places.asks(pod, job)
    is_requested = names.MEM_PER_NODE in (pod["metadata"].get("annotations") or {})
    if is_requested or "memory" in resources.pod_requests(pod["spec"]) or asks is None or not asks.memory_mib:
        return False, ""
    per_cpu = session.config.defaults.memory_per_cpu
    is_whole, note = job_view.default_memory(asks, session.known_nodes.values(), per_cpu)
    return is_whole and (job is None or states.is_pending(job.states)), note


def _default_scheduler_text(pod: pods.Pod) -> str:
    """Return why admission has left a pod of a managed namespace to the default scheduler."""
    reason = (pod["metadata"].get("annotations") or {}).get(names.DEFAULT_SCHEDULER_REASON)
    return f", to which admission has left it: {reason}" if reason else ""


def _kubernetes(pod: pods.Pod) -> list[str]:
    status = pod.get("status") or {}
    lines = [f"phase {status.get('phase')}, created {output.age(pod['metadata']['creationTimestamp'])} ago"]
    if pods.is_deleted(pod):
        lines.append(f"deleted at {pod['metadata']['deletionTimestamp']}, not terminated yet")
    if pods.is_bound(pod):
        lines.append(f"on node {pod['spec']['nodeName']}")
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (each.get("lastState") or {}).get("terminated")
        if ended and (each.get("state") or {}).get("waiting"):
            ending = f"exit code {ended['exitCode']}: {_cause(ended)}"
            lines.append(f"container {each['name']} waits for its restart, {ending}")
    requests = sorted(resources.pod_requests(pod["spec"]).items())
    amounts = (f"{name} {_amount(name, value)}" for name, value in requests)
    return [*lines, f"requests {', '.join(amounts) or 'nothing'}"]


def _amount(name: str, value: Decimal) -> str:
    return job_words.memory(float(value) / MIB) if name == "memory" else f"{value.normalize():f}"


def _cause(status: Mapping[str, Any]) -> str:
    return ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))


def _group(session: CommandSession, pod: pods.Pod) -> list[str]:
    """Return the size of the pod's group and how many of its members exist, are bound and have ended."""
    member = links.membership(pod)
    if member is None:
        return []
    existing, bound, ended = session.group_counts(pod)
    part = f"[{member.key.index}]" if member.key.index else ""
    least = f" (at least {member.minimum})" if member.minimum != member.size else ""
    return [
        f"member of {member.key.kind} {member.key.name}{part}, a group of {member.size}{least}: "
        f"{existing} pods exist, {bound} are bound, {ended} have ended"
    ]


def _volumes(pod: pods.Pod, storage: Storage) -> list[str]:
    """Return a line for each claim of the pod, and what the pod waits for."""
    lines = []
    for name, _ in pod_volumes.claims(pod):
        claim = storage.claim(pod["metadata"]["namespace"], name)
        if claim is None:
            continue  # named by the problem
        node = (claim["metadata"].get("annotations") or {}).get(pod_volumes.SELECTED_NODE)
        volume = claim["spec"].get("volumeName")
        place = (f", volume {volume}" if volume else "") + (f", provisioned for node {node}" if node else "")
        lines.append(f"claim {name}: {claim['status'].get('phase')}{place}")
    if problem := pod_volumes.needs(pod, storage).problem:
        lines.append(f"waits: {problem}")
    return lines


def _finished(pod: pods.Pod, view: pod_view.PodView) -> tuple[str, str]:
    metadata, status, (container, _) = pod["metadata"], pod["status"], pod_view.failed_container(pod)
    has_run = view.times.started is not None
    held = ", still held by podbridge's finalizer" if pods.is_held(pod) else ""
    cause = ": ".join(filter(None, (_cause(status), "" if status.get("reason") else view.message)))
    logs = f"kubectl logs {metadata['name']} -n {metadata['namespace']} -c {container}" if container and has_run else ""
    return f"finished ({status['phase']}){held}{f': {cause}' if cause else ''}", logs


def _placed(pod: pods.Pod, view: pod_view.PodView, job: Job | None, session: CommandSession) -> tuple[str, str]:
    """Return where a pod is, what keeps it from running there, and the next step."""
    remote = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB)
    why = ": ".join(filter(None, (view.reason, view.message)))
    if remote or not pool_selection.of(pod).local:
        place = f"on pool {view.node}" + (f" as job {remote}" if remote else ": not submitted yet")
        return place + (f": {why}" if why else ""), ""
    number = job.job_id if job else None if session.knows_slurm else pods.job_id(pod)
    place = f"{'runs' if view.state == pod_view.RUNNING else 'starts'} on {view.node} "
    place += f"with Slurm job {number}" if number else "without a Slurm job"
    problem = job_view.problem(job, pod) if job is not None else ""
    step = wait_reasons.DESCRIBE if pod_view.is_stuck(pod) else ""
    step = step.format(pod=pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
    return ": ".join(filter(None, (place, why, problem))), step


def _summary(pod: pods.Pod, job: Job | None, session: CommandSession) -> tuple[str, str]:
    """Return the state of a pod in a sentence and the next step, which is empty if there is nothing to do."""
    view, place = pod_view.of(pod), {"pod": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    if not view.open:
        return _finished(pod, view)
    if view.deleted and view.node:
        return _ending(pod, session)
    if view.deleted:
        return _withdrawn(pod, job)
    if view.node:
        return _placed(pod, view, job, session)
    if job is not None and job_view.reason(view, job) == wait_reasons.BINDING:
        return f"Slurm job {job.job_id} is allocated; the binding is in progress", ""
    number = job.job_id if job is not None else pods.job_id(pod)
    race = f"queued at {', '.join(places.recorded(pod))}; " if places.open_pools(pod) else ""
    if job is not None and states.is_pending(job.states) and view.reason != "GangDiffers":
        step = wait_reasons.next_step("SlurmPending", job.reason, **place, job=number)
        return f"{race}its Slurm job is pending: {job.reason or 'no reason yet'}{job_words.asks(job)}", step
    if view.reason == wait_reasons.GATED and (queued := _queued(pod, session)):
        name, why = queued
        step = f"kubectl describe workload {name} -n {place['namespace']}"
        return f"pending: {view.reason}: Kueue has no quota for it: {why}", step
    text = view.message or wait_reasons.meaning(view.reason)
    cause = job_words.read_waiting(text).reason
    step = wait_reasons.next_step(view.reason, cause, **place, job=number or "", message=text)
    advise = {"SlurmRefused": _partition_advice, "Unschedulable": _pool_advice}.get(view.reason)
    step = (advise and advise(pod, session)) or step
    return (race + text if view.reason == "SlurmPending" else f"pending: {view.reason}: {text}"), step


def _queued(pod: pods.Pod, session: CommandSession) -> tuple[str, str] | None:
    """Return Kueue's Workload of the pod or of its owner, and why it has no quota."""
    metadata = pod["metadata"]
    uids = {pods.uid(pod), *(owner["uid"] for owner in metadata.get("ownerReferences") or ())}
    return queues.awaited(session, metadata["namespace"], uids)


def _partition_advice(pod: pods.Pod, session: CommandSession) -> str:
    """Return how to correct a partition that does not exist; empty if it does, or if that is not known."""
    named = pods.partitions(pod, "")
    known = session.known_partitions
    if not named or not known or set(named.split(",")) <= known:
        return ""
    listed = f"partition {named} does not exist; there are {', '.join(sorted(known))}"
    if pods.selected_partitions(pod["spec"]):
        return f"{listed}: correct spec.nodeSelector and create the pod again"
    close = next(iter(difflib.get_close_matches(named, known, 1)), min(known))
    metadata = pod["metadata"]
    command = (
        f"kubectl annotate pod {metadata['name']} -n {metadata['namespace']} --overwrite {names.PARTITION}={close}"
    )
    return f"{listed}: {command}"


def _pool_advice(pod: pods.Pod, session: CommandSession) -> str:
    """Return which pool the pod may mean, if it names one that does not exist."""
    nodes = session.attempt("nodes", session.nodes)
    known = {node["metadata"]["name"] for node in filter(pool_selection.is_virtual, nodes or ())}
    unknown = [name for name in pool_selection.of(pod).named if name not in {*known, names.ANY_POOL, names.LOCAL_POOL}]
    if not unknown or nodes is None:
        return ""
    if not known:
        return f"this cluster has no pool: remove {names.POOLS}, or ask your administrator to add {unknown[0]}"
    close = difflib.get_close_matches(unknown[0], known, 1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
    return f"no pool is named {unknown[0]}; {meant} Correct {names.POOLS} and create the pod again"


def _ending(pod: pods.Pod, session: CommandSession) -> tuple[str, str]:
    """Return what a deleted pod on a node waits for: its containers, or a kubelet that does not answer."""
    name, node_name = pod["metadata"]["name"], pod["spec"]["nodeName"]
    nodes = session.attempt("nodes", session.nodes) or []
    node = next((each for each in nodes if each["metadata"]["name"] == node_name), None)
    if node is None or eligibility.readiness(node).get("status") == "True" or pool_selection.is_virtual(node):
        return f"is being deleted: its containers on {node_name} end", ""
    force = f"kubectl delete pod {name} -n {pod['metadata']['namespace']} --force"
    return (
        f"is being deleted, but the kubelet of {node_name} does not answer: it stays until the kubelet returns",
        f"start the kubelet; if the machine is off for certain: {force}",
    )


def _withdrawn(pod: pods.Pod, job: Job | None) -> tuple[str, str]:
    """Return what a deleted pod without a node waits for: finalizers keep it."""
    number = job.job_id if job is not None else pods.job_id(pod)
    others = [name for name in pod["metadata"].get("finalizers") or () if name != names.FINALIZER]
    if not pods.is_held(pod):
        kept = f"finalizers of others keep it: {', '.join(others)}" if others else "the API server removes it"
        return f"is being deleted: {kept}", ""
    waits = f"has cancelled Slurm job {number}" if number else "knows that Slurm has no job of it"
    seconds = time.time() - parse_rfc3339(pod["metadata"]["deletionTimestamp"])
    text = f"is being deleted: podbridge removes its finalizer when it {waits}"
    return text, wait_reasons.ADMINISTRATOR if seconds >= OVERDUE else ""
