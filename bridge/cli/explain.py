"""``podbridge explain pod``: why a pod waits or where it runs, from both sides, and what to do next."""

from __future__ import annotations

from typing import Any

import click
import yaml

from bridge import clock, names
from bridge.cli import output
from bridge.cli.main import Where
from bridge.cli.session import Session
from bridge.errors import BridgeError, KubeError, KubeNotFoundError
from bridge.kube.resources import PODS
from bridge.script import consent
from bridge.slurm import states
from bridge.slurm.models import Job
from bridge.workload import eligibility, pods, pool_selection, resources
from scheduler import occupancy


def run(where: Where, namespace: str | None, name: str, form: str) -> None:
    """Print the story of one pod."""
    session = Session(where)
    namespace = namespace or session.namespace
    try:
        pod = session.kube.get(PODS.path(namespace, name))
    except KubeNotFoundError as error:
        raise BridgeError(
            f"there is no pod {name} in namespace {namespace}", hint="look in other namespaces with -n"
        ) from error
    story = tell(session, pod)
    if form in ("json", "yaml"):
        click.echo(yaml.safe_dump(story, sort_keys=False) if form == "yaml" else _json(story))
        return
    click.echo(f"Pod {namespace}/{name}: {story['summary']}")
    for title in ("kubernetes", "slurm", "pools", "nodes", "events"):
        if story[title]:
            click.echo(f"\n{title.capitalize()}")
            for line in story[title]:
                click.echo(f"  {line}")
    if story["next"]:
        click.echo(f"\nNext: {story['next']}")


def tell(session: Session, pod: pods.Pod) -> dict[str, Any]:
    """Gather the story: a summary, lines for each side, and advice."""
    kubernetes = _kubernetes(pod)
    if (pod["spec"].get("schedulerName") or "") != session.config.scheduler_name:
        return {
            "summary": f"not podbridge's: its scheduler is {pod['spec'].get('schedulerName')}",
            "kubernetes": kubernetes,
            "slurm": [],
            "pools": [],
            "nodes": [],
            "events": [],
            "next": "create it in a managed namespace, or set spec.schedulerName to " + session.config.scheduler_name,
        }
    job = session.jobs_by_uid.get(pods.uid(pod))
    if job is None and (labelled := pods.job_id(pod)) is not None:
        kubernetes.append(f"its label names Slurm job {labelled}, which Slurm does not show any more")
    summary, advice = _verdict(pod, job)
    where = pool_selection.of(pod)
    waits = not pods.is_bound(pod)
    return {
        "summary": summary,
        "kubernetes": kubernetes,
        "slurm": _slurm(job) if job else ["no job"] if where.local else [],
        "pools": _pools(session, pod) if where.remote and waits else [],
        "nodes": _nodes(session, pod) if where.local and waits else [],
        "events": [f"{e.get('reason')}: {e.get('note')}" for e in session.events(pod)[-8:]],
        "next": advice,
    }


def _kubernetes(pod: pods.Pod) -> list[str]:
    status = pod.get("status") or {}
    lines = [f"phase {status.get('phase')}, created {output.age(pod['metadata']['creationTimestamp'])} ago"]
    if pods.is_deleted(pod):
        lines.append(f"being deleted since {pod['metadata']['deletionTimestamp']}")
    if pods.is_bound(pod):
        lines.append(f"on node {pod['spec']['nodeName']}")
    conditions = [c for c in status.get("conditions") or () if c.get("message")]
    lines += [f"{c['type']}={c['status']}: {c['message']}" for c in conditions]
    asked = resources.pod_requests(pod["spec"])
    lines.append("asks for " + (", ".join(f"{n} {v.normalize():f}" for n, v in sorted(asked.items())) or "nothing"))
    return lines


def _slurm(job: Job) -> list[str]:
    lines = [f"job {job.job_id} is {'+'.join(sorted(job.states))} in partition {job.partition or '?'}"]
    if job.reason:
        lines.append(f"reason: {job.reason}{f' ({job.description})' if job.description else ''}")
    if job.nodes:
        lines.append(f"nodes: {','.join(job.nodes)}")
    if job.start_time:
        word = "estimated start" if states.is_pending(job.states) else "started"
        lines.append(f"{word}: {clock.rfc3339(job.start_time)}")
    if job.excluded_nodes:
        lines.append(f"excluded nodes: {','.join(job.excluded_nodes)}")
    return lines


def _nodes(session: Session, pod: pods.Pod) -> list[str]:
    asked = resources.node_requests(pod["spec"])
    lines = []
    for view in eligibility.views((n for n in session.nodes() if not pool_selection.is_virtual(n)), _taken(session)):
        other = session.slurm_nodes.get(view.slurm_name)
        if other is None:
            continue
        if states.is_asleep(other.states):
            view = eligibility.once_up(view)
        why = eligibility.refusal(pod["spec"], asked, view)
        lines.append(f"{view.name}: {why or 'fits'}; Slurm: {'+'.join(sorted(other.states))} {other.reason}".rstrip())
    return lines


def _taken(session: Session) -> dict[str, resources.Resources]:
    """Return by node what pods of other schedulers take of it; nothing where the user may not list them."""
    there = occupancy.Occupancy(session.config.scheduler_name)
    try:
        for pod in session.other_pods():
            there.changed("add", None, pod)
    except KubeError:
        return {}
    return there.lasting(0)


def _pools(session: Session, pod: pods.Pod) -> list[str]:
    asked = resources.pod_requests(pod["spec"])
    lines = []
    what, namespace = consent.confidential_everywhere(pod), pod["metadata"]["namespace"]
    annotations = session.annotations(namespace) if what else None
    for node in filter(pool_selection.is_virtual, session.nodes()):
        ready = eligibility.readiness(node)
        why = eligibility.refusal(pod["spec"], asked, eligibility.view(node))
        if ready.get("status") != "True":
            why = f"not ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
        elif not why and annotations is not None and not consent.lets_secrets_go(annotations, node["metadata"]["name"]):
            why = consent.exclusion(namespace, what)
        lines.append(f"{node['metadata']['name']}: {why or 'fits'}")
    return lines or ["there is no pool"]


def _verdict(pod: pods.Pod, job: Job | None) -> tuple[str, str]:
    waiting = pods.condition(pod, names.POD_SCHEDULED)
    if pods.is_finished(pod):
        held = " and still held by podbridge's finalizer" if pods.is_held(pod) else ""
        return f"over ({pod['status']['phase']}){held}", ""
    remote = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB)
    if pods.is_bound(pod) and (remote or not pool_selection.of(pod).local):
        return f"on pool {pod['spec']['nodeName']}" + (f" as job {remote}" if remote else ": not taken yet"), ""
    if pods.is_bound(pod):
        return f"runs on {pod['spec']['nodeName']}" + (
            f" with Slurm job {job.job_id}" if job else " without a Slurm job"
        ), ""
    if pods.is_gated(pod):
        return "waits for its scheduling gates", "somebody else (for example Kueue) has to take the gates off"
    if waiting.get("reason") == "SlurmNodeStarting":
        return f"waits: {waiting.get('message', '')}", "sinfo -R; kubectl get nodes"
    if job is not None and states.is_allocated(job.states):
        if waiting.get("reason") == "NodeBusy":
            return waiting["message"], "it is bound when the pods named there have ended"
        return f"Slurm job {job.job_id} has its nodes: the binding is under way", ""
    if job is not None and states.is_pending(job.states):
        return f"waits in Slurm: {job.reason or 'not looked at yet'}", f"squeue -j {job.job_id} --start"
    reason = waiting.get("reason", "")
    if reason:
        return (
            f"waits: {reason}: {waiting.get('message', '')}",
            "mend what the message names; podbridge tries again by itself",
        )
    return "waits for podbridge's scheduler", "podbridge check"


def _json(story: dict[str, Any]) -> str:
    import json

    return json.dumps(story, indent=2)
