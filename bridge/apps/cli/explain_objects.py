"""``podbridge explain job`` and ``explain pool``: why a job waits, and what a pool can run."""

from __future__ import annotations

from typing import Any

from bridge.apps.cli import reports
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.explain import slurm_lines
from bridge.apps.cli.get import job_records, pool_records
from bridge.apps.cli.session import CommandSession
from bridge.errors import BridgeError
from bridge.slurm import states
from bridge.workload import eligibility, pods, pool_selection, resources

SHOWN = 20
"""Number of waiting pods that the report on a pool names."""


def job(connection: ConnectionOptions, job_id: int, form: str) -> None:
    """Print the report on one Slurm job. Raises :class:`BridgeError` if it is no job of this installation."""
    session = CommandSession(connection)
    reports.show(f"Slurm job {job_id}", job_report(session, job_id), form)


def job_report(session: CommandSession, job_id: int) -> dict[str, Any]:
    """Return why the job waits or where it runs, its pods, and what disagrees between both."""
    if not session.config.slurm_rest_api:
        raise BridgeError("no Slurm is configured", hint="set slurmRestApi, or explain the pod: podbridge explain pod")
    found = next((each for each in session.all_jobs if job_id == each.job_id or _is_part(each, job_id)), None)
    if found is None:
        hint = "it may have ended long ago; podbridge get jobs --all lists the jobs that Slurm still knows"
        raise BridgeError(f"Slurm does not list job {job_id}", hint=hint)
    if found.link is None or found.link.cluster != session.cluster:
        raise BridgeError(f"Slurm job {job_id} is not a job of this installation", hint=f"scontrol show job {job_id}")
    # a slurmctld that lost its state assigns ids again: pods of earlier jobs may have the id too
    record, *others = [each for each in job_records(session, None, ended=True) if each["job"] == found.job_id]
    state = "+".join(sorted(found.states))
    summary = f"{state} on {','.join(found.nodes)}" if found.nodes else state
    problem, names = record["problem"], record["pods"].split(",")
    if states.is_pending(found.states):
        summary, step = f"{state}: {found.reason or 'no reason yet'}", f"squeue -j {job_id} --start"
    else:
        namespace, _, name = names[0].partition("/")
        step = f"podbridge explain pod {name} -n {namespace}" if name else ""
    return {
        "summary": summary,
        "slurm": slurm_lines(found, session.all_jobs),
        "pods": [f"{each}" for each in names if each],
        "problem": ([problem] if problem else [])
        + [f"{each['pods']} has the id of this job, from before slurmctld assigned it again" for each in others],
        "next": step,
    }


def _is_part(job: Any, job_id: int) -> bool:
    return any(part.job_id == job_id for part in job.parts)


def pool(connection: ConnectionOptions, name: str, form: str) -> None:
    """Print the report on one pool. Raises :class:`BridgeError` if it has no virtual node."""
    session = CommandSession(connection)
    reports.show(f"Pool {name}", pool_report(session, name), form)


def pool_report(session: CommandSession, name: str) -> dict[str, Any]:
    """Return whether the pool is ready, what is in use, and for each waiting pod that selects it whether it fits."""
    node, record = find_pool(session, name)
    ready = eligibility.readiness(node)
    waiting = [
        pod
        for pod in session.pods(None)
        if not pods.is_bound(pod) and not pods.is_finished(pod) and name in pool_selection.of(pod).ordered([name])
    ]
    good = ready.get("status") == "True"
    view = eligibility.view(node)
    lines = []
    for pod in waiting[:SHOWN]:
        why = eligibility.refusal(pod["spec"], resources.pod_requests(pod["spec"]), view)
        lines.append(f"{pods.key(pod)}: {why or 'fits'}")
    if len(waiting) > SHOWN:
        lines.append(f"and {len(waiting) - SHOWN} more")
    state = "Ready" if good else f"not Ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
    return {
        "summary": state,
        "use": {key: record[key] for key in ("pods", "cpu", "memory", "age", "message")},
        "waiting_pods": lines,
        "next": "" if good else "check the log of the submitter or the plugin at the site, and its batch system",
    }


def find_pool(session: CommandSession, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pool's virtual node and its record; raises :class:`BridgeError` with the names of the pools."""
    nodes = {node["metadata"]["name"]: node for node in session.nodes() if pool_selection.is_virtual(node)}
    record = next((each for each in pool_records(session, "") if each["pool"] == name), None)
    if name not in nodes or record is None:
        raise BridgeError(f"pool {name} does not exist", hint=f"pools: {', '.join(sorted(nodes)) or 'none'}")
    return nodes[name], record
