"""``podbridge top``: pods, jobs, nodes and pools of the cluster on one screen, read again every few seconds."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from bridge import __version__, names
from bridge.apps.cli import output
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.get import job_records, pool_records
from bridge.apps.cli.session import CommandSession
from bridge.clock import parse_rfc3339
from bridge.errors import BridgeError
from bridge.workload import eligibility, pods, pool_selection, resources

WAITING = 10
"""Number of waiting pods that are shown, the oldest first."""
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
    jobs = session.jobs  # before the pods: the job of a new pod is not missing
    listed = session.pods(None)
    open_pods = [pod for pod in listed if not pods.is_finished(pod)]
    waiting = [pod for pod in open_pods if not pods.is_bound(pod)]
    records = job_records(session, None, ended=False)
    return {
        "version": __version__,
        "kubernetes": session.kube.server,
        "slurm": session.slurm.slurm_release if session.config.slurm_rest_api else None,
        "pods": dict(Counter(_phase(pod) for pod in listed)),
        "waiting": dict(Counter(_reason(pod) for pod in waiting).most_common()),
        "jobs": dict(Counter("+".join(sorted(job.states)) for job in jobs).most_common()),
        "problems": [{"job": each["job"], "problem": each["problem"]} for each in records if each["problem"]],
        "nodes": _nodes(session, open_pods),
        "pools": pool_records(session, ""),
        "oldest": [_waiting(pod) for pod in sorted(waiting, key=_created)[:WAITING]],
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
            rows = [[each.get(column) for column in columns] for each in state[key]]
            blocks.append(output.table(output.headers(columns), rows))
    return "\n\n".join(blocks)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _phase(pod: pods.Pod) -> str:
    return "Terminating" if pods.is_deleted(pod) else str((pod.get("status") or {}).get("phase", "Unknown"))


def _reason(pod: pods.Pod) -> str:
    condition = pods.condition(pod, names.POD_SCHEDULED)
    return str((condition.get("reason") if condition.get("status") == "False" else "") or "NotProcessed")


def _created(pod: pods.Pod) -> float:
    return parse_rfc3339(pod["metadata"]["creationTimestamp"])


def _waiting(pod: pods.Pod) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "reason": _reason(pod),
        "job": pods.job_id(pod),
        "age": output.age(metadata["creationTimestamp"]),
    }


def _nodes(session: CommandSession, open_pods: Sequence[pods.Pod]) -> list[dict[str, Any]]:
    """Return the nodes that are also Slurm nodes, and what the scheduler's pods request there."""
    records = []
    for node in session.nodes():
        slurm_node = session.slurm_nodes.get(eligibility.slurm_name(node))
        if slurm_node is None or pool_selection.is_virtual(node):
            continue
        name, offered = node["metadata"]["name"], resources.allocatable(node)
        requests = [resources.pod_requests(p["spec"]) for p in open_pods if p["spec"].get("nodeName") == name]
        used = resources.total(requests)
        records.append(
            {
                "name": name,
                "ready": eligibility.readiness(node).get("status", "Unknown"),
                "slurm_state": "+".join(sorted(slurm_node.states)),
                "pods": len(requests),
                "cpu": output.usage("cpu", used, offered),
                "memory": output.usage("memory", used, offered),
            }
        )
    return records
