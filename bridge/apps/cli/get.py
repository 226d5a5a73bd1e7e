"""``podbridge get``: tables of pods, jobs, nodes, pools and queues, and with ``--watch`` what changes in them."""

from __future__ import annotations

import difflib
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from bridge import names
from bridge.apps.cli import output, queues
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.session import SLURM, CommandSession
from bridge.apps.view import job_view, node_view, owner_view, pod_view, records
from bridge.apps.view.records import KINDS, NodeRecord, PodRecord, PoolRecord, SlurmJobRecord, WorkloadRecord
from bridge.clock import parse_rfc3339
from bridge.errors import BridgeError
from bridge.kube.discovery import is_served
from bridge.kube.resources import PODS
from bridge.slurm import states
from bridge.slurm.models import Job, Node
from bridge.workload import eligibility, links, node_ownership, pods, pool_selection
from bridge.workload.eligibility import slurm_name
from bridge.workload.quantity import MIB

PERIOD = 2.0
"""Seconds between two reads of ``--watch``."""
ALL_NAMESPACES = "*"
Record = Mapping[str, Any]
"""One of :data:`bridge.apps.view.records.KINDS`."""
Reader = Callable[[], Sequence[Record]]


@dataclass(frozen=True, slots=True)
class Listing:
    """What a command lists and how it prints it.

    ``names`` select objects, all if empty; ``sort_by`` is a column; ``ended``: all ended jobs, too; with ``watch``,
    changes are printed until the user interrupts. ``output`` is table, wide, json, yaml, name or schema.
    """

    names: Sequence[str] = ()
    selector: str = ""
    sort_by: str | None = None
    no_headers: bool = False
    watch: bool = False
    output: str = "table"
    ended: bool = False


def run(kind: str, connection: ConnectionOptions, namespace: str | None, listing: Listing) -> None:
    """Print the objects of ``kind``.

    ``namespace`` can be ``ALL_NAMESPACES``; ``None``: that of the kubeconfig's context, of jobs all.
    """
    if listing.output == "schema":
        output.print_document(records.schema(kind), "json")
        return
    session = CommandSession(connection)
    if namespace is None and kind != "jobs":
        namespace = session.namespace
    namespace = namespace if namespace != ALL_NAMESPACES else None
    selector, form = listing.selector, listing.output
    kinds: dict[str, Reader] = {
        "pods": lambda: pod_records(session, namespace, selector),
        "jobs": lambda: job_records(session, namespace, ended=listing.ended),
        "workloads": lambda: workload_records(session, namespace, selector),
        "nodes": lambda: node_records(session, selector),
        "pools": lambda: pool_records(session, selector),
        "queues": lambda: queues.records(session, selector),
    }
    read, about = _chosen(kind, kinds[kind], listing), KINDS[kind]
    printer = output.Printer(about, form, no_headers=listing.no_headers)
    if listing.watch:
        watch(session, read, printer, about.key)
        return
    listed = read()
    _print_gaps(session)
    scheduler = "" if kind in ("queues", "workloads") else f" of scheduler {session.config.scheduler_name}"
    place = f" in namespace {namespace}" if kind in ("pods", "jobs", "workloads") and namespace else ""
    printer.show(listed, nothing=f"No {kind}{scheduler} found{place}.")


def _chosen(kind: str, read: Reader, listing: Listing) -> Reader:
    """Return a function that reads the named records, in the order that the user chooses."""
    field, column = KINDS[kind].field, (listing.sort_by or "").removeprefix("-").replace("-", "_").lower()
    columns = [*KINDS[kind].columns, *KINDS[kind].wide]
    if column and column not in columns:
        raise BridgeError(f"--sort-by: {listing.sort_by!r} is not a column; allowed: {', '.join(columns)}")

    def chosen() -> Sequence[Record]:
        records = list(read())
        there = {str(record[field]): None for record in records}
        missing = [name for name in listing.names if name not in there]
        if missing and not listing.watch:  # a watched object may come later, or go
            close = difflib.get_close_matches(missing[0], there, 1)
            hint = f"did you mean {close[0]}?" if close else f"podbridge get {kind} lists all; -n selects a namespace"
            raise BridgeError(f"{kind}: {', '.join(missing)} not found", hint=hint)
        if listing.names:
            records = [record for record in records if str(record[field]) in listing.names]
        if column:
            records.sort(key=lambda record: _order(record, column), reverse=str(listing.sort_by).startswith("-"))
        return records

    return chosen


def _order(record: Mapping[str, Any], column: str) -> tuple[float, str]:
    """Return the place of a record by a column: numbers by their value, before texts; what pods use of an amount."""
    value = record.get(column)
    if column == "age":
        return (-parse_rfc3339(record["created"]), "") if record["created"] else (math.inf, "")
    if isinstance(value, Mapping) and "used" in value:
        value = value["used"]
    return (value, "") if isinstance(value, (int, float)) else (math.inf, output.cell(record, column))


def watch(
    session: CommandSession,
    read: Reader,
    printer: output.Printer,
    key: Sequence[str],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Print the records, then those that change, until the user interrupts. ``key``: the fields that identify one.

    A read that fails, or lacks a part that could be read before, is reported on standard error and repeated; the first
    one raises its :class:`BridgeError`.
    """
    before: dict[tuple[str, ...], Record] | None = None
    gaps: set[str] = set()
    while True:
        session.forget()
        try:
            now = {tuple(str(record[field]) for field in key): record for record in read()}
            if before is not None and not gaps >= session.not_read.keys():
                raise BridgeError("; ".join(session.gaps))
        except BridgeError as error:
            if before is None:
                raise
            click.echo(output.printable(f"podbridge: {error}"), err=True)
        else:
            if before is None:
                _print_gaps(session)
            printer.add(changes(before or {}, now))
            sys.stdout.flush()
            before, gaps = now, set(session.not_read)
        sleep(PERIOD)


def changes(before: Mapping[Any, Record], now: Mapping[Any, Record]) -> list[Record]:
    """Return the records that are new or have changed, then those that are gone, with the field ``deleted``."""
    changed = [record for name, record in now.items() if before.get(name) != record]
    return changed + [{**record, "deleted": True} for name, record in before.items() if name not in now]


def _print_gaps(session: CommandSession) -> None:
    for line in session.gaps:
        click.echo(output.printable(f"podbridge: not read: {line}"), err=True)


def pod_records(session: CommandSession, namespace: str | None, selector: str) -> list[PodRecord]:
    """Return a record for each pod of the scheduler; ``not_read`` in it says why the state in Slurm is missing."""
    jobs = session.attempt(SLURM, lambda: session.jobs_by_uid) or {}
    return [pod_record(pod, jobs.get(links.key(pod)), session.gaps) for pod in session.pods(namespace, selector)]


def pod_record(pod: pods.Pod, job: Job | None, gaps: list[str]) -> PodRecord:
    """Return the record of a pod and its job; ``gaps`` are what could not be read."""
    view = pod_view.of(pod)
    # an ended job keeps its last reason, for which the pod does not wait
    waits = job is not None and states.is_pending(job.states) and view.state == pod_view.WAITING
    slurm_reason = f": {job.reason}" if job is not None and job.reason and waits else ""
    return {
        "namespace": view.namespace,
        "name": view.name,
        "phase": pod_view.phase(pod),
        "job": pods.job_id(pod) or (job.job_id if job else view.job) or None,
        "slurm_state": job_view.state(job, [pod]) if job else "",
        "node": view.node,
        "reason": job_view.reason(view, job) + slurm_reason,
        "created": pod["metadata"]["creationTimestamp"],
        "partition": job.partition if job else "",
        "uid": pods.uid(pod),
        "not_read": gaps,
    }


def workload_records(session: CommandSession, namespace: str | None, selector: str) -> list[WorkloadRecord]:
    """Return a record for each Job, JobSet and LeaderWorkerSet that no other object controls."""
    all_pods = session.listed(PODS.path(namespace))
    result: list[WorkloadRecord] = []
    for kind in owner_view.LISTED:
        for resource in filter(lambda each: is_served(session.kube, each), kind.resources):
            path = resource.path(namespace)
            manifests = session.attempt(f"{kind.title}s", lambda p=path: session.listed(p, labelSelector=selector))  # type: ignore[misc]
            result += owner_view.records(kind, manifests or [], all_pods)
    return result


def job_records(
    session: CommandSession, namespace: str | None, *, ended: bool, listed: Sequence[pods.Pod] | None = None
) -> list[SlurmJobRecord]:
    """Return a record for each placeholder job of this cluster, and for each pod without the job that it needs.

    ``namespace`` selects the jobs of its pods; ``None``: all jobs. The jobs are read first: a new pod is never missing.
    ``ended``: see :func:`bridge.apps.view.job_view.records`; ``listed``: the pods, if they are read already. Nodes that
    cannot be read are noted: their names in Slurm are missing then, and not all problems are found.
    """
    jobs = session.attempt(SLURM, lambda: session.jobs)
    there = session.pods(namespace) if listed is None else listed
    if jobs is None:
        return job_view.of_pods(there)
    nodes = [node for node in (session.attempt("nodes", session.nodes) or []) if not pool_selection.is_virtual(node)]
    slurm_names = {node["metadata"]["name"]: slurm_name(node) for node in nodes if session.config.slurm_rest_api}
    return job_view.records(jobs, there, slurm_names, namespace, ended=ended)


def node_records(session: CommandSession, selector: str) -> list[NodeRecord]:
    """Return a record for each Kubernetes node that is not virtual, with its Slurm node."""
    slurm_nodes, nodes = session.known_nodes, session.nodes(selector)
    own = session.config.scheduler_name
    return [node_record(each, slurm_nodes, own) for each in nodes if not pool_selection.is_virtual(each)]


def node_record(node: Mapping[str, Any], slurm_nodes: Mapping[str, Node], scheduler: str) -> NodeRecord:
    """Return the record of a node; ``scheduler`` is that of podbridge."""
    other = slurm_nodes.get(slurm_name(node))
    return {
        "name": node["metadata"]["name"],
        "slurm_name": other.name if other else "",
        "ready": eligibility.readiness(node).get("status", "Unknown"),
        "cordoned": bool((node.get("spec") or {}).get("unschedulable")),
        "slurm_state": "+".join(sorted(other.states)) if other else "",
        "managed": node_ownership.holder(node) == scheduler,
        "reason": other.reason if other else "not a Slurm node",
        "cpus": other.cpus if other else None,
        "memory": other.memory_mib * MIB if other else None,
    }


def pool_records(session: CommandSession, selector: str) -> list[PoolRecord]:
    """Return a record for each pool: its virtual node, and the resources that the scheduler's pods request there."""
    return pool_records_of(session.nodes(selector), session.pods(None))


def pool_records_of(nodes: Iterable[dict[str, Any]], all_pods: Iterable[pods.Pod]) -> list[PoolRecord]:
    """Return a record for each of these nodes that is virtual."""
    manifests = {node["metadata"]["name"]: node for node in nodes}
    pools, _ = node_view.nodes(manifests.values(), map(pod_view.of, all_pods))
    return [
        {
            "pool": use.name,
            "ready": use.status,
            "reason": use.reason,
            "pods": use.usage("pods"),
            "cpu": use.usage("cpu"),
            "memory": use.usage("memory"),
            "created": manifests[use.name]["metadata"]["creationTimestamp"],
            "message": eligibility.readiness(manifests[use.name]).get("message", ""),
            "labels": dict(sorted(_own_labels(manifests[use.name]).items())),
        }
        for use in pools
    ]


def _own_labels(node: dict[str, Any]) -> dict[str, str]:
    """Return the labels of a virtual node that the site has set: not those of Kubernetes and of podbridge."""
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    fixed = (names.POOL_LABEL, "virtual-node.interlink/type")
    return {k: v for k, v in labels.items() if not k.partition("/")[0].endswith("kubernetes.io") and k not in fixed}
