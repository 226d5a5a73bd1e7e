"""``podbridge explain``: why an object is in its state, the next step, and all facts about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bridge.apps.cli import explain_places, queues, reports
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.explain import describe
from bridge.apps.cli.get import job_records, node_record, pod_record, pool_records_of
from bridge.apps.cli.session import CommandSession
from bridge.apps.view import job_view, node_room, owner_view, pod_view, wait_reasons
from bridge.apps.view.owner_view import OwnerKind, OwnerView
from bridge.apps.view.records import PlaceRecord, SlurmJobRecord
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.discovery import get_if_served
from bridge.kube.resources import EVENTS, POD_EVENTS, PODS
from bridge.slurm import states
from bridge.slurm.models import Job
from bridge.workload import eligibility, links, places, pods, pool_selection, resources
from bridge.workload.quantity import MIB

SHOWN = 20
"""Most pods, failures and refusals that a section names."""
WIDE = ("pod", "annotations", "finalizers", "job", "labels", "progress")
"""The sections of ``-o wide`` only: most of what they say stands in the others, too."""


def run(connection: ConnectionOptions, kind: str, name: str, namespace: str | None, form: str) -> None:
    """Print the report. Raises :class:`BridgeError` if the object does not exist."""
    session = CommandSession(connection)
    namespace = namespace or session.namespace
    makers: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
        "pod": (f"Pod {namespace}/{name}", partial(pod, session, namespace, name)),
        "node": (f"Node {name}", partial(node, session, name)),
        "pool": (f"Pool {name}", partial(pool, session, name)),
        "queue": (f"MasterQueue {name}", partial(queue, session, name)),
    }
    for each in owner_view.KINDS:
        makers[each.word] = f"{each.title} {namespace}/{name}", partial(owner, session, each, namespace, name)
    if name.isdigit():  # a job of Slurm, not a Job of Kubernetes
        makers["job"] = f"Slurm job {name}", partial(job, session, name)
    heading, make = makers[kind]
    report = make()
    if kind == "queue" and form in ("text", "wide"):
        report = queues.in_lines(report, wide=form == "wide")
    if form == "text":
        report = {section: content for section, content in report.items() if section not in WIDE}
        # most conditions without a message say no more than the phase
        report["conditions"] = [line for line in report.get("conditions", ()) if ": " in line]
    reports.show(heading, report, form)


def pod(session: CommandSession, namespace: str, name: str) -> dict[str, Any]:
    """Return the report of :func:`~bridge.apps.cli.explain.describe` with all facts about the pod.

    What the user may not read is noted in ``not_read``.
    """
    try:
        manifest = session.kube.get(PODS.path(namespace, name))
    except KubeNotFoundError as error:
        text = f"pod {name} does not exist in namespace {namespace}"
        raise BridgeError(text, hint="select another namespace with -n") from error
    report = describe(session, manifest)
    return {**report, **_facts(session, manifest), "not_read": session.gaps}


def _facts(session: CommandSession, manifest: pods.Pod) -> dict[str, Any]:
    metadata, jobs = manifest["metadata"], list[SlurmJobRecord]()
    record: dict[str, Any] = {}
    if manifest["spec"].get("schedulerName") == session.config.scheduler_name:
        job = session.job_of(manifest)
        record = {key: value for key, value in pod_record(manifest, job, []).items() if key != "not_read"}
        if job is not None:
            jobs = session.attempt("jobs", lambda: job_records(session, metadata["namespace"], ended=True)) or []
    return {
        "pod": record,
        "requests": {k: f"{v.normalize():f}" for k, v in resources.pod_requests(manifest["spec"]).items()},
        "annotations": {key: value for key, value in (metadata.get("annotations") or {}).items() if _is_own(key)},
        "finalizers": list(metadata.get("finalizers") or ()),
        "job": next((each for each in jobs if each["job"] == record["job"]), {}),
    }


def _is_own(key: str) -> bool:
    """Whether an annotation is one of podbridge, of slurm-bridge or of a pool."""
    return any(part in key.partition("/")[0] for part in ("vk.io", "slinky.slurm.net", "podbridge"))


def job(session: CommandSession, name: str) -> dict[str, Any]:
    """Return why the job waits or where it runs, its record, its pods, and what disagrees between both."""
    job_id = int(name)
    if not session.config.slurm_rest_api:
        raise BridgeError("no Slurm is configured", hint="set slurmRestApi, or explain the pod: podbridge explain pod")
    slurm_job = next((j for j in session.all_jobs if job_id in (j.job_id, *(p.job_id for p in j.parts))), None)
    if slurm_job is None:
        hint = "it may have ended long ago; podbridge get jobs --all lists the jobs that Slurm still knows"
        raise BridgeError(f"Slurm does not list job {job_id}", hint=hint)
    if slurm_job.link is None or slurm_job.link.cluster != session.cluster:
        raise BridgeError(f"Slurm job {job_id} is not a job of this installation", hint=f"scontrol show job {job_id}")
    # a slurmctld that lost its state assigns ids again: pods of earlier jobs may have the id too
    record, *others = [each for each in job_records(session, None, ended=True) if each["job"] == slurm_job.job_id]
    state = record["state"]
    summary = f"{state} on {','.join(slurm_job.nodes)}" if slurm_job.nodes else state
    names = record["pods"]
    old = "has the id of this job, from before slurmctld assigned it again"
    # of a group, the record names the group, which is no pod
    namespace, _, name = names[0].partition("/") if slurm_job.link.group is None else ("", "", "")
    step = f"podbridge explain pod {name} -n {namespace}" if name else ""
    if states.is_pending(slurm_job.states):
        summary = f"{state}: {slurm_job.reason or 'no reason yet'}"
        step = wait_reasons.next_step("", slurm_job.reason, pod=name, namespace=namespace, job=job_id)
    return {
        "summary": summary,
        "job": record,
        "places": _places(session, slurm_job),
        "slurm": job_view.lines(slurm_job, record["state"], session.all_jobs, time.time()),
        "pods": names,
        "problem": [*filter(None, [record["problem"]]), *(f"{','.join(each['pods'])} {old}" for each in others)],
        "next": step,
    }


def _places(session: CommandSession, slurm_job: Job) -> list[PlaceRecord]:
    """Return the places of the oldest pod that waits for a job."""
    link = slurm_job.link
    listed = session.pods(link.namespace) if link is not None and states.is_pending(slurm_job.states) else []
    waiting = [pod for pod in listed if link is not None and links.key(pod) in link.keys and places.may_return(pod)]
    return explain_places.of(session, min(waiting, key=pods.age)) if waiting else []


def node(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the record of a node, its Slurm node, taints, conditions, pods and Events."""
    nodes = {each["metadata"]["name"]: each for each in session.nodes() if not pool_selection.is_virtual(each)}
    if name not in nodes:
        hint = f"nodes: {', '.join(sorted(nodes)[:20])}"
        raise BridgeError(f"node {name} does not exist, or is virtual (explain pool)", hint=hint)
    manifest = nodes[name]
    record = node_record(manifest, session.known_nodes, session.config.scheduler_name)
    slurm_node = session.known_nodes.get(record["slurm_name"])
    slurm, use = {}, list[str]()
    if slurm_node is not None:
        use = node_room.held(slurm_node, session.node_holders.get(slurm_node.name, ()), time.time())
        slurm = {
            "state": "+".join(sorted(slurm_node.states)),
            "reason": slurm_node.reason,
            "cpus": slurm_node.cpus,
            "memory": slurm_node.memory_mib * MIB,
            "gres": slurm_node.gres,
            "partitions": ",".join(slurm_node.partitions),
            "features": ",".join(slurm_node.features),
        }
    return {
        "kubernetes": {key: record[key] for key in ("name", "slurm_name", "ready", "cordoned", "managed")},
        "slurm": slurm,
        "use": use,
        "taints": _taints(manifest),
        "conditions": reports.conditions(manifest.get("status") or {}),
        "pods": _pods_on(session.pods(None), name),
        "events": _events(session, manifest),
        "not_read": session.gaps,
    }


def pool(session: CommandSession, name: str) -> dict[str, Any]:
    """Return whether the pool is ready, what it offers and runs, and whether each waiting pod that selects it fits."""
    nodes = {node["metadata"]["name"]: node for node in session.nodes() if pool_selection.is_virtual(node)}
    if name not in nodes:
        raise BridgeError(f"pool {name} does not exist", hint=f"pools: {', '.join(sorted(nodes)) or 'none'}")
    node, all_pods = nodes[name], session.pods(None)
    (record,) = pool_records_of([node], all_pods)
    ready = eligibility.readiness(node)
    unbound = [pod for pod in all_pods if not pods.is_bound(pod) and not pods.is_finished(pod)]
    waiting = [pod for pod in unbound if name in pool_selection.of(pod).ordered([name])]
    good = ready.get("status") == "True"
    reader = explain_places.PoolReader(session, nodes.values())
    lines = [f"{pods.key(pod)}: {reader.candidates(pod)[name].why or 'fits'}" for pod in waiting[:SHOWN]]
    if len(waiting) > SHOWN:
        lines.append(f"and {len(waiting) - SHOWN} more")
    state = "Ready" if good else f"not Ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
    labels = node["metadata"].get("labels") or {}
    return {
        "summary": state,
        "pool": {key: value for key, value in record.items() if key != "labels"},
        "offers": {key: f"{value.normalize():f}" for key, value in resources.allocatable(node).items()},
        "waiting_pods": lines,
        "labels": [f"{key}={value}" for key, value in sorted(labels.items())],
        "taints": _taints(node),
        "conditions": reports.conditions(node.get("status") or {}),
        "pods": _pods_on(all_pods, name),
        "events": _events(session, node),
        "next": "" if good else "check the log of the submitter or the plugin at the site, and its batch system",
    }


def queue(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the report on a MasterQueue with its ClusterQueue, LocalQueues, admitted workloads and Events."""
    manifest = queues.find(session, name)
    report = queues.describe(manifest, queues.cluster_queue(session, manifest), queues.workloads(session, name))
    return {**report, "events": _events(session, manifest), "not_read": session.gaps}


def owner(session: CommandSession, kind: OwnerKind, namespace: str, name: str) -> dict[str, Any]:
    """Return the report on an owner: its progress, why its pods wait or are missing, how they ended, the next step."""
    found = (get_if_served(session.kube, resource, namespace, name) for resource in kind.resources)
    manifest = next((each for each in found if each is not None), None)
    if manifest is None:
        raise BridgeError(
            f"{kind.title} {name} does not exist in namespace {namespace}",
            hint="select another namespace with -n; podbridge get workloads lists those that have pods",
        )
    listed = session.listed(PODS.path(namespace), labelSelector=f"{kind.label}={name}")
    views = sorted(map(pod_view.of, listed), key=lambda view: (view.times.created, view.name))
    events = session.attempt("Events", lambda: _owner_events(session, kind, namespace, name)) or []
    view = owner_view.of(kind, manifest, views, events)
    name_of_oldest = view.oldest_waiting.name if view.oldest_waiting is not None else ""
    oldest = next((pod for pod in listed if pod["metadata"]["name"] == name_of_oldest), None)
    gated = view.suspended or any(each.reason == wait_reasons.GATED for each in views)
    queued = queues.awaited(session, namespace, {manifest["metadata"]["uid"]}) if gated else None
    return {
        "summary": view.summary + (f": Kueue has no quota for it: {queued[1]}" if queued else ""),
        "progress": {**({"pods": view.size} if view.size is not None else {}), **view.counts},
        "refused": view.refusals[:SHOWN],
        "waiting": [f"{each.count} {each.name}: {each.text}" for each in view.reasons],
        "places": explain_places.of(session, oldest) if oldest is not None else [],
        "failed": view.failures[:SHOWN],
        "ended_by_podbridge": view.ends[:SHOWN],
        "pods": _pod_lines(views),
        "not_read": session.gaps,
        "next": _owner_next(kind, view, namespace, name, queued[0] if queued else ""),
    }


def _owner_events(session: CommandSession, kind: OwnerKind, namespace: str, name: str) -> list[dict[str, Any]]:
    """List the Events about the owner and about the objects that create its pods, with their ``note``."""
    result = []
    for involved in dict.fromkeys((kind.title, kind.controller or kind.title)):
        only = f",involvedObject.name={name}" if involved == kind.title else ""
        listed = session.listed(POD_EVENTS.path(namespace), fieldSelector=f"involvedObject.kind={involved}{only}")
        result += [{**each, "note": each.get("message")} for each in listed if owner_view.concerns(kind, name, each)]
    return result


def _pod_lines(views: list[pod_view.PodView]) -> list[str]:
    """Return a line for each of the first pods, those that have not ended first."""
    ordered = sorted(views, key=lambda view: not view.open)
    lines = []
    for view in ordered[:SHOWN]:
        place = f" on {view.node}" if view.node and view.open else ""
        job = f", job {view.job}" if view.job else ""
        reason = f": {view.reason}" if view.reason else ""
        lines.append(f"{view.name}: {view.state}{place}{job}{reason}")
    return [*lines, *([f"and {len(ordered) - SHOWN} more"] if len(ordered) > SHOWN else ())]


def _owner_next(kind: OwnerKind, view: OwnerView, namespace: str, name: str, workload: str) -> str:
    """Return the next step; ``workload`` is Kueue's Workload that waits for quota, empty without one."""
    if workload:
        return f"kubectl describe workload {workload} -n {namespace}"
    if view.refusals and not view.counts["running"]:
        return f"kubectl delete {kind.word} {name} -n {namespace}, correct its pod template, and create it again"
    if view.oldest_waiting is not None:
        return f"podbridge explain pod {view.oldest_waiting.name} -n {namespace}"
    if view.suspended:
        return f'kubectl patch {kind.word} {name} -n {namespace} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
    if not view.failed:
        return ""
    has_run = next((failed.name for failed in view.failed if failed.times.started is not None), "")
    if has_run:
        return f"kubectl logs -n {namespace} {has_run} --all-containers"
    return f"podbridge explain pod {view.failed[0].name} -n {namespace}"


def _taints(manifest: dict[str, Any]) -> list[str]:
    return [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in (manifest.get("spec") or {}).get("taints") or ()]


def _pods_on(all_pods: list[dict[str, Any]], name: str) -> list[str]:
    """Return a line for each pod that is bound to a node and has not ended."""
    bound = [each for each in all_pods if each["spec"].get("nodeName") == name and not pods.is_finished(each)]
    return [f"{pods.key(each)} {(each.get('status') or {}).get('phase', '')}" for each in bound]


def _events(session: CommandSession, manifest: dict[str, Any]) -> list[str]:
    """Return the Events of a node. Their UID is the UID or the name of the node; they are in namespace default."""
    uid, name = manifest["metadata"]["uid"], manifest["metadata"]["name"]
    try:
        items = session.kube.get(EVENTS.path(), {"fieldSelector": f"regarding.name={name}"})["items"]
    except KubeForbiddenError:
        return []
    return reports.events([each for each in items if (each.get("regarding") or {}).get("uid") in (uid, name)])
