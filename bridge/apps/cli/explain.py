"""Why a pod is pending or where it runs, and the next step: for ``podbridge explain pod`` and the web page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge import clock, names
from bridge.apps.cli import output, reports
from bridge.apps.cli.session import SLURM, CommandSession
from bridge.errors import KubeError
from bridge.script import consent
from bridge.slurm import states
from bridge.slurm.models import Job
from bridge.workload import eligibility, host_ports, links, places, pods, pool_selection, resources
from scheduler.nodes import occupancy
from scheduler.volumes import pod_volumes
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import NodeFilter


def describe(session: CommandSession, pod: pods.Pod) -> dict[str, Any]:
    """Return the report: a summary, lines for each section, the parts that could not be read, and the next step."""
    scheduler = pod["spec"].get("schedulerName")
    report: dict[str, Any] = {"summary": "", "kubernetes": _kubernetes(pod)}
    report |= {section: [] for section in ("slurm", "pools", "volumes", "nodes", "events", "not_read")}
    if (scheduler or "") != session.config.scheduler_name:
        summary = f"not managed by podbridge: its scheduler is {scheduler}{_default_scheduler_text(pod)}"
        advice = f"create it in a managed namespace, or set spec.schedulerName to {session.config.scheduler_name}"
        return report | {"summary": summary, "next": advice}
    report["kubernetes"] += session.attempt("pods of its group", lambda: _group(session, pod)) or []
    job = (session.attempt(SLURM, lambda: session.jobs_by_uid) or {}).get(links.key(pod))
    if job is None and (labelled := pods.job_id(pod)) is not None:
        unlisted = ", which Slurm no longer lists" if session.knows_slurm else ""
        report["kubernetes"].append(f"its label names Slurm job {labelled}{unlisted}")
    report["summary"], advice = _summary(pod, job, session)
    allowed = pool_selection.of(pod)
    if job:
        report["slurm"] = slurm_lines(job, session.all_jobs)
    elif allowed.local and session.knows_slurm:
        report["slurm"] = ["no job"]
    waits = not pods.is_bound(pod)
    if waits and allowed.remote:
        report["pools"] = session.attempt("pools", lambda: _pools(session, pod)) or []
    if waits and allowed.local:
        storage = _storage(session, pod) if pod_volumes.claims(pod) else None
        report["volumes"] = _volumes(pod, storage) if storage is not None else []
        report["nodes"] = session.attempt("nodes", lambda: _nodes(session, pod, storage)) or []
    report["events"] = reports.events(session.attempt("Events", lambda: session.events(pod)) or [])
    return report | {"not_read": session.gaps, "next": advice}


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
    conditions = [c for c in status.get("conditions") or () if c.get("message")]
    lines += [f"{c['type']}={c['status']}: {c['message']}" for c in conditions]
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (each.get("lastState") or {}).get("terminated")
        if ended and (each.get("state") or {}).get("waiting"):
            ending = f"exit code {ended['exitCode']}: {_cause(ended)}"
            lines.append(f"container {each['name']} waits for its restart, {ending}")
    lines += _race(pod)
    requests = resources.pod_requests(pod["spec"])
    lines.append("requests " + (", ".join(f"{n} {v.normalize():f}" for n, v in sorted(requests.items())) or "nothing"))
    return lines


def _cause(status: Mapping[str, Any]) -> str:
    return ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))


def _race(pod: pods.Pod) -> list[str]:
    """Return the places of a pod that races, and the one that got it."""
    pools = places.recorded(pod)
    if not pools:
        return []
    if not pods.is_bound(pod):
        return [f"queued at {', '.join(pools)}: the first place whose job starts gets the pod"]
    ticket = (pod["metadata"].get("annotations") or {}).get(names.GRANT, "").partition("/")[2]
    if places.is_granted(pod, pod["spec"]["nodeName"], ticket):
        return [f"was queued at {', '.join(pools)}: pool {pod['spec']['nodeName']} was the first to start its job"]
    return [f"was queued at {', '.join(pools)}: the colocated Slurm was the first to start its job"]


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


def slurm_lines(job: Job, everyone: Iterable[Job]) -> list[str]:
    """Return the state of a job, Slurm's reason, its nodes and components, its position and its start."""
    lines = [f"job {job.job_id} is {'+'.join(sorted(job.states))} in partition {job.partition or '?'}"]
    if job.reason:
        lines.append(f"reason: {job.reason}{f' ({job.description})' if job.description else ''}")
    if job.nodes:
        lines.append(f"nodes: {','.join(job.nodes)}")
    for part in job.parts:
        nodes = f" on {','.join(part.nodes)}" if part.nodes else ""
        excluded = f", excluded nodes: {','.join(part.excluded_nodes)}" if part.excluded_nodes else ""
        lines.append(f"component {part.job_id} is {'+'.join(sorted(part.states))}{nodes}{excluded}")
    if states.is_pending(job.states):
        lines.append(_position(job, everyone))
        start = clock.rfc3339(job.start_time) if job.start_time else "not computed by Slurm yet"
        lines.append(f"estimated start: {start}")
    elif job.start_time:
        lines.append(f"started: {clock.rfc3339(job.start_time)}")
    if job.excluded_nodes and not job.parts:
        lines.append(f"excluded nodes: {','.join(job.excluded_nodes)}")
    return lines


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


def _storage(session: CommandSession, pod: pods.Pod) -> Storage | None:
    """Return the storage objects that the pod's claims depend on; ``None`` if the user may not list them."""
    try:
        return Storage(session.storage(pod["metadata"]["namespace"]))
    except KubeError:
        return None


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


def _nodes(session: CommandSession, pod: pods.Pod, storage: Storage | None) -> list[str]:
    requests = host_ports.node_requests(pod["spec"])
    allows = NodeFilter(pod_volumes.needs(pod, storage), storage).refusal if storage is not None else lambda _: ""
    nodes = [node for node in session.nodes() if not pool_selection.is_virtual(node)]
    slurm_nodes = (session.attempt(SLURM, lambda: session.slurm_nodes) or {}) if session.knows_slurm else {}
    lines, extended = [], session.device_names()
    for view in eligibility.views(nodes, _taken(session)):
        other = slurm_nodes.get(view.slurm_name)
        if other is None and session.knows_slurm:
            continue
        if other is not None and states.is_asleep(other.states):
            view = eligibility.once_up(view)
        view = eligibility.with_devices(view, extended)
        why = eligibility.refusal(pod["spec"], requests, view) or allows(view)
        slurm = f"; Slurm: {'+'.join(sorted(other.states))} {other.reason}".rstrip() if other is not None else ""
        lines.append(f"{view.name}: {why or 'fits'}{slurm}")
    return lines


def _taken(session: CommandSession) -> dict[str, resources.Resources]:
    """Return by node the requests of other schedulers' pods; empty if the user may not list these pods."""

    def count() -> dict[str, resources.Resources]:
        there = occupancy.Occupancy(session.config.scheduler_name, max_grace=session.config.max_grace_period)
        for pod in session.other_pods():
            there.changed("add", None, pod)
        return there.lasting(0)

    try:
        return session.shared("requests of other pods", count)
    except KubeError:
        return {}


def _pools(session: CommandSession, pod: pods.Pod) -> list[str]:
    requests = resources.pod_requests(pod["spec"])
    lines = []
    what, namespace = consent.confidential_everywhere(pod), pod["metadata"]["namespace"]
    annotations = session.annotations(namespace) if what else None
    for node in filter(pool_selection.is_virtual, session.nodes()):
        ready = eligibility.readiness(node)
        why = eligibility.refusal(pod["spec"], requests, eligibility.view(node))
        if ready.get("status") != "True":
            why = f"not ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
        elif not why and annotations is not None and not consent.lets_secrets_go(annotations, node["metadata"]["name"]):
            why = consent.exclusion(namespace, what)
        lines.append(f"{node['metadata']['name']}: {why or 'fits'}")
    return lines or ["no pool exists"]


def _summary(pod: pods.Pod, job: Job | None, session: CommandSession) -> tuple[str, str]:
    waiting = pods.condition(pod, names.POD_SCHEDULED)
    if pods.is_finished(pod):
        held = ", still held by podbridge's finalizer" if pods.is_held(pod) else ""
        cause = _cause(pod["status"])
        return f"finished ({pod['status']['phase']}){held}{f': {cause}' if cause else ''}", ""
    remote = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB)
    if pods.is_bound(pod) and (remote or not pool_selection.of(pod).local):
        return f"on pool {pod['spec']['nodeName']}" + (f" as job {remote}" if remote else ": not submitted yet"), ""
    if pods.is_bound(pod):
        number = job.job_id if job else None if session.knows_slurm else pods.job_id(pod)
        return f"runs on {pod['spec']['nodeName']} " + (
            f"with Slurm job {number}" if number else "without a Slurm job"
        ), ""
    if pods.is_gated(pod):
        return "has scheduling gates", "wait until their controller (for example Kueue) removes them"
    if waiting.get("reason") == "SlurmNodeStarting":
        return f"pending: {waiting.get('message', '')}", "sinfo -R; kubectl get nodes"
    if job is not None and states.is_allocated(job.states):
        if waiting.get("reason") == "NodeBusy":
            return waiting["message"], "wait until the pods named in the message have ended"
        if waiting.get("reason", "").startswith("Volume"):
            return waiting["message"], "kubectl describe pvc"
        return f"Slurm job {job.job_id} is allocated; the binding is in progress", ""
    if job is not None and states.is_pending(job.states):
        return f"its Slurm job is pending: {job.reason or 'no reason yet'}", f"squeue -j {job.job_id} --start"
    reason = waiting.get("reason", "")
    if reason == "SlurmPending" and not session.knows_slurm:
        explain = f"podbridge explain pod {pod['metadata']['name']} -n {pod['metadata']['namespace']}"
        queue = f"squeue -j {pods.job_id(pod)} --start" if pods.job_id(pod) is not None else "squeue --me --start"
        return f"its Slurm job is pending: {waiting.get('message', '')}", queue if session.reads_slurm else explain
    if reason == "Racing":
        return f"pending: {waiting.get('message', '')}", "wait until a job of it starts; the events name the jobs"
    if reason:
        return (
            f"pending: {reason}: {waiting.get('message', '')}",
            "fix the cause in the message; podbridge retries automatically",
        )
    return "pending: podbridge's scheduler has not processed it yet", "podbridge check"
