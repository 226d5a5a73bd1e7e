"""``podbridge top``: pods, jobs, nodes and pools of the cluster on one screen, read again every few seconds."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import starmap
from typing import Any

import click

from bridge import __version__
from bridge.apps.cli import output
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.get import job_records, pool_records_of
from bridge.apps.cli.session import SLURM, CommandSession
from bridge.apps.view import job_view, node_room, node_view, pod_view
from bridge.apps.view.pod_view import PodView
from bridge.clock import rfc3339
from bridge.errors import BridgeError, KubeError
from bridge.kube.kube_client import KubeClient
from bridge.slurm import states
from bridge.slurm.models import Job
from bridge.workload import eligibility, links, quantity

WAITING = 10
"""Number of waiting pods that are shown, the oldest first."""
MEASURED = ["measured_cpu", "measured_memory"]
NODE_METRICS = "/apis/metrics.k8s.io/v1beta1/nodes"
CLEAR = "\033[H\033[2J"
"""Moves the cursor to the top left of a terminal and clears it."""


def run(connection: ConnectionOptions, form: str, *, once: bool, interval: float) -> None:
    """Print the state every ``interval`` seconds until the user interrupts; once if ``once`` or not on a terminal."""
    session = CommandSession(connection)
    if form in ("json", "yaml"):
        output.print_document(read(session), form)
        return
    if once or not sys.stdout.isatty():
        click.echo(text(read(session)))
        return
    while True:
        try:
            shown = text(read(session))
        except BridgeError as error:
            shown = output.printable(f"podbridge: {error}")
        size = shutil.get_terminal_size()
        lines = [line[: size.columns] for line in shown.splitlines()[: size.lines - 1]]
        click.echo(CLEAR + "\n".join(lines))
        time.sleep(interval)
        session.forget()


def read(session: CommandSession) -> dict[str, Any]:
    """Return the state: counts of pods and jobs, the use of nodes and pools, and the pods that have waited longest."""
    # before the pods: the job of a new pod is not missing
    jobs = session.attempt(SLURM, lambda: session.jobs_by_uid) or {}
    listed = session.attempt("pods of all namespaces", lambda: session.pods(None))
    namespace = None if listed is not None else session.namespace
    listed = session.pods(namespace) if listed is None else listed
    views = [pod_view.of(pod) for pod in listed]
    each_job = [jobs.get(links.key(pod)) for pod in listed]
    waiting = [(view, job) for view, job in zip(views, each_job, strict=True) if view.state == pod_view.WAITING]
    records = job_records(session, namespace, ended=True, listed=listed)
    measured, manifests = _measured(session.kube), session.attempt("nodes", session.nodes) or []
    nodes, pools = _nodes(session, manifests, views), pool_records_of(manifests, listed)
    return {
        "version": __version__,
        "kubernetes": session.kube.server,
        "slurm": session.slurm.slurm_release if session.config.slurm_rest_api and session.knows_slurm else None,
        "pods": dict(Counter(pod_view.phase(pod) or "Unknown" for pod in listed)),
        "waiting": dict(Counter(starmap(job_view.reason, waiting)).most_common()),
        "jobs": dict(Counter(each["state"] for each in records if each["state"]).most_common()),
        "problems": [{"job": each["job"], "problem": each["problem"]} for each in records if each["problem"]],
        "nodes": [{**each, **measured.get(each["name"], {})} for each in nodes],
        "pools": [{**each, **measured.get(each["pool"], {})} for each in pools],
        "not_read": session.gaps,
        "oldest": [_waiting(*each) for each in sorted(waiting, key=lambda each: each[0].times.created)[:WAITING]],
    }


def text(state: dict[str, Any]) -> str:
    """Return the state as a screen of text."""
    slurm = f", Slurm {state['slurm']}" if state["slurm"] else ""
    now = time.strftime("%H:%M:%S")
    blocks = [f"podbridge {state['version']}, Kubernetes {state['kubernetes']}{slurm}, {now}"]
    summary = [f"Pods     {_counts(state['pods'])}"]
    if state["waiting"]:
        summary.append(f"Waiting  {_counts(state['waiting'])}")
    summary.append(f"Jobs     {_counts(state['jobs'])}")
    blocks.append("\n".join(summary))
    if state["not_read"]:
        blocks.append("\n".join(["Not read", *(output.printable(f"  {gap}") for gap in state["not_read"])]))
    if state["problems"]:
        lines = [output.printable(f"job {each['job'] or '-'}: {each['problem']}") for each in state["problems"]]
        blocks.append("\n".join(["Problems (podbridge get jobs)", *lines]))
    tables = (
        ("nodes", ["name", "ready", "slurm_state", "pods", "cpu", "memory"]),
        ("pools", ["pool", "ready", "reason", "pods", "cpu", "memory"]),
        ("oldest", ["namespace", "name", "reason", "job", "age"]),
    )
    for key, columns in tables:
        if state[key]:
            if any(MEASURED[0] in each for each in state[key]):
                columns += MEASURED
            blocks.append(output.table(state[key], columns))
    return "\n\n".join(blocks)


def _measured(kube: KubeClient) -> dict[str, dict[str, str]]:
    """Return the use of CPU and memory of each node, as ``kubectl top node``; empty without metrics-server."""
    with suppress(KubeError):
        return {each["metadata"]["name"]: _use(each["usage"]) for each in kube.get(NODE_METRICS)["items"]}
    return {}


def _use(usage: Mapping[str, str]) -> dict[str, str]:
    cpu, memory = quantity.parse(usage["cpu"]), quantity.mebibytes(quantity.parse(usage["memory"]))
    return dict(zip(MEASURED, (f"{cpu:.2f}", f"{memory}Mi"), strict=True))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _waiting(view: PodView, job: Job | None) -> dict[str, Any]:
    lives = job is not None and states.end_of(job.states) is None
    number = str(job.job_id) if job is not None and lives else view.job
    return {
        "namespace": view.namespace,
        "name": view.name,
        "reason": job_view.reason(view, job),
        "job": int(number) if number.isdecimal() else None,
        "created": rfc3339(view.times.created),
    }


def _nodes(
    session: CommandSession, manifests: Sequence[dict[str, Any]], views: Sequence[PodView]
) -> list[dict[str, Any]]:
    """Return the nodes that are also Slurm nodes, the scheduler's pods there, and what all jobs of Slurm hold."""
    slurm_names = {node["metadata"]["name"]: eligibility.slurm_name(node) for node in manifests}
    slurm_nodes = session.known_nodes
    _, colocated = node_view.nodes(manifests, views)
    return [
        {
            "name": use.name,
            "ready": use.status,
            "slurm_state": "+".join(sorted(slurm_node.states)),
            "pods": use.pods,
            **node_room.held_of(slurm_node),
        }
        for use in colocated
        if (slurm_node := slurm_nodes.get(slurm_names[use.name])) is not None
    ]
