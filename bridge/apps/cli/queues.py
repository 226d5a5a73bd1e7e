"""``podbridge get queues`` and ``explain queue``: MasterQueues beside their ClusterQueues."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from bridge.apps.cli import output, reports
from bridge.apps.cli.session import CommandSession
from bridge.apps.view.records import QueueRecord, Usage
from bridge.errors import BridgeError
from bridge.kube.discovery import get_if_served, is_served
from bridge.kube.resources import MASTER_QUEUES, Resource
from bridge.workload.pods import condition
from bridge.workload.quantity import parse
from bridge.workload.resources import total
from controllers.queues.manifests import GROUP, VERSIONS

Object = Mapping[str, Any]
FEW = 5
"""Pending workloads that ``explain`` lists; all with ``-o wide``."""
_NEXT = {
    "Invalid": "correct the field, then kubectl apply the MasterQueue",
    "Conflict": "delete or rename the object that podbridge does not own, or rename the MasterQueue",
    "WriteFailed": "podbridge retries; read Kueue's message above",
    "BeingDeleted": "wait until its workloads have ended, or delete the MasterQueue too",
}


def records(session: CommandSession, selector: str) -> list[QueueRecord]:
    """Return a record for each MasterQueue, with the figures of its ClusterQueue."""
    return [record(queue, cluster_queue(session, queue)) for queue in master_queues(session, selector)]


def master_queues(session: CommandSession, selector: str = "") -> list[dict[str, Any]]:
    """List the MasterQueues. Raises :class:`BridgeError` if the API server does not serve them."""
    if not is_served(session.kube, MASTER_QUEUES):
        hint = "kubectl apply -f config/crds.yaml, see docs/admins/kueue.md"
        raise BridgeError("the API server has no MasterQueues", hint=hint)
    return session.listed(MASTER_QUEUES.path(), labelSelector=selector)


def find(session: CommandSession, name: str) -> dict[str, Any]:
    """Return a MasterQueue. Raises :class:`BridgeError` if it does not exist."""
    for queue in master_queues(session):
        if queue["metadata"]["name"] == name:
            return queue
    raise BridgeError(f"MasterQueue {name} does not exist", hint="list them with podbridge get queues")


def cluster_queue(session: CommandSession, queue: Object) -> Object | None:
    """Return the ClusterQueue of a MasterQueue; empty if it does not exist.

    ``None`` if it cannot be read, which is noted in ``not_read``.
    """

    def read() -> Object:
        kinds = (Resource(GROUP, version, "clusterqueues", False) for version in VERSIONS)
        found = (get_if_served(session.kube, kind, None, queue["metadata"]["name"]) for kind in kinds)
        return next((each for each in found if each is not None), {})

    return session.attempt("ClusterQueues", read)


def record(queue: Object, cluster: Object | None) -> QueueRecord:
    """Return the record of a MasterQueue; ``cluster`` is its ClusterQueue, which may be empty; ``None``: not read."""
    is_read, cluster = cluster is not None, cluster or {}
    status, counts = queue.get("status") or {}, cluster.get("status") or {}
    ready = condition(queue, "Ready")
    quota, used = total(_quotas(cluster).values()), total(_reservations(cluster).values())
    spec = queue.get("spec") or {}
    return {
        "queue": queue["metadata"]["name"],
        "ready": ready.get("status", "Unknown"),
        "reason": ready.get("reason", ""),
        "offered": status.get("offered", ""),
        "pending": counts.get("pendingWorkloads", 0) if is_read else None,
        "admitted": counts.get("admittedWorkloads", 0) if is_read else None,
        "cpu": _share("cpu", used, quota),
        "memory": _share("memory", used, quota),
        "created": queue["metadata"].get("creationTimestamp", ""),
        "stop_policy": (cluster.get("spec") or {}).get("stopPolicy", ""),
        "local_queues": [
            f"{item['namespace']}/{item.get('name') or queue['metadata']['name']}"
            for item in spec.get("localQueues") or ()
        ],
        "message": ready.get("message", ""),
    }


def describe(queue: Object, cluster: Object | None, workloads: Sequence[Object] | None) -> dict[str, Any]:
    """Return the report on a MasterQueue: its flavors, pending workloads in Kueue's order, the next step, and more.

    ``cluster`` and ``workloads`` are ``None`` if they were not read.
    """
    about, is_read, cluster = record(queue, cluster), cluster is not None, cluster or {}
    quotas, used = _quotas(cluster), _reservations(cluster)
    status, spec = queue.get("status") or {}, cluster.get("spec") or {}
    flavors = []
    for state in status.get("flavors") or ():
        flavor = state.get("flavor", "")
        amounts = used.get(flavor, {}), quotas.get(flavor, {})
        shares = {kind: _share(kind, *amounts) for kind in ("cpu", "memory")}
        told = {"name": state["name"], "flavor": flavor, "state": state["state"]}
        flavors.append({**told, **shares, "reason": state.get("reason", "")})
    waiting = [
        {
            "workload": f"{item['metadata']['namespace']}/{item['metadata']['name']}",
            "created": item["metadata"].get("creationTimestamp", ""),
            "message": condition(item, "QuotaReserved").get("message", "Kueue has not considered it yet"),
        }
        for item in sorted(filter(_waits, workloads or ()), key=_order)
    ]
    lends = {
        to["queue"] for item in (queue.get("spec") or {}).get("flavors") or () for to in item.get("canLendTo") or ()
    }
    return {
        "summary": _summary(about, None if workloads is None else len(waiting), is_read=is_read),
        "queue": {key: value for key, value in about.items() if key not in ("local_queues", "message")},
        "conditions": reports.conditions(status),
        "flavors": flavors,
        "pending": waiting,
        "admitted": _admitted(workloads or ()),
        "cluster_queue": {
            "strategy": spec.get("queueingStrategy", ""),
            "cohort": spec.get("cohortName") or spec.get("cohort", ""),
            "lends_to": ", ".join(sorted(lends)),
        },
        "local_queues": about["local_queues"],
        "next": _next(about, flavors, bool(status.get("conditions"))),
    }


def _admitted(workloads: Iterable[Object]) -> list[str]:
    """Return a line for each workload that has quota and has not finished: its name, its flavors and its age."""
    lines = []
    for item in workloads:
        if _waits(item) or condition(item, "Finished").get("status") == "True":
            continue
        assignments = ((item.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
        flavors = sorted({flavor for each in assignments for flavor in (each.get("flavors") or {}).values()})
        metadata = item["metadata"]
        age = output.age(metadata.get("creationTimestamp", ""))
        lines.append(f"{metadata['namespace']}/{metadata['name']} {','.join(flavors)} ({age})")
    return sorted(lines)


def in_lines(report: Mapping[str, Any], *, wide: bool) -> dict[str, Any]:
    """Return the report with pending workloads as lines; ``wide``: all of them."""
    shown = report["pending"] if wide else report["pending"][:FEW]
    pending = [f"{item['workload']} ({output.age(item['created'])}): {item['message']}" for item in shown]
    if len(report["pending"]) > len(shown):
        pending.append(f"and {len(report['pending']) - len(shown)} more: -o wide lists them")
    return {**report, "pending": pending}


def _summary(about: Mapping[str, Any], waiting: int | None, *, is_read: bool) -> str:
    """Return the state in a line; ``is_read``: the ClusterQueue was. What was not read is left out."""
    stopped = about["stop_policy"] not in ("", "None")
    state = f"stopped ({about['stop_policy']})" if stopped else "admits workloads"
    if about["ready"] != "True":
        state = f"not in step ({about['reason'] or 'no status'})"
    elif not is_read:
        state = "its ClusterQueue cannot be read"
    numbers = {"admitted": about["admitted"], "pending": waiting}
    counts = [f"{number} {name}" for name, number in numbers.items() if number is not None]
    offered = f"{about['offered'] or 'no'} flavors offered"
    return f"{state}; {', '.join([offered, *counts])}"


def _next(about: Mapping[str, Any], flavors: Sequence[Mapping[str, Any]], has_status: bool) -> str:
    if not has_status:
        return "the controllers have not read it: set queues.enabled, and see their log"
    if about["ready"] != "True":
        return _NEXT.get(about["reason"], "")
    if flavors and all(flavor["state"] != "Offered" for flavor in flavors):
        return "no flavor is offered: podbridge get pools, podbridge get nodes"
    return ""


def workloads(session: CommandSession, queue: str) -> list[dict[str, Any]] | None:
    """Return the workloads whose LocalQueue belongs to the ClusterQueue.

    ``None`` if they cannot be read, which is noted in ``not_read``.
    """

    def read() -> list[dict[str, Any]]:
        local_queues = _listed(session, "localqueues")
        metadata = [item["metadata"] for item in local_queues if item["spec"].get("clusterQueue") == queue]
        own = {(each["namespace"], each["name"]) for each in metadata}
        listed = _listed(session, "workloads")
        return [item for item in listed if (item["metadata"]["namespace"], item["spec"].get("queueName")) in own]

    return session.attempt("Workloads", read)


def _listed(session: CommandSession, plural: str, namespace: str | None = None) -> list[dict[str, Any]]:
    """List objects of Kueue, in the first version that the API server serves; empty if it serves none."""
    kinds = (Resource(GROUP, version, plural, True) for version in VERSIONS)
    kind = next((each for each in kinds if is_served(session.kube, each)), None)
    return session.listed(kind.path(namespace)) if kind is not None else []


def awaited(session: CommandSession, namespace: str, uids: Collection[str]) -> tuple[str, str] | None:
    """Return the name of the Workload that waits for quota and belongs to one of these objects, and Kueue's message.

    ``None`` if there is no such Workload. A list that the user may not read is noted in ``not_read``.
    """
    for item in session.attempt("Workloads", lambda: _listed(session, "workloads", namespace)) or ():
        owners = {owner.get("uid") for owner in item["metadata"].get("ownerReferences") or ()}
        if owners & set(uids) and _waits(item):
            message = condition(item, "QuotaReserved").get("message") or "Kueue has not considered it yet"
            return item["metadata"]["name"], f"queue {item['spec'].get('queueName', '')}: {message}"
    return None


def _waits(workload: Object) -> bool:
    return not any(condition(workload, kind).get("status") == "True" for kind in ("QuotaReserved", "Finished"))


def _order(workload: Object) -> tuple[int, str]:
    """Kueue's order within a queue: by priority, then by age."""
    return -int(workload["spec"].get("priority") or 0), workload["metadata"].get("creationTimestamp", "")


def _quotas(cluster: Object) -> dict[str, dict[str, Decimal]]:
    """Return the nominal quota of each flavor by resource."""
    groups = (cluster.get("spec") or {}).get("resourceGroups") or ()
    return {
        flavor["name"]: {item["name"]: parse(item["nominalQuota"]) for item in flavor.get("resources") or ()}
        for group in groups
        for flavor in group.get("flavors") or ()
    }


def _reservations(cluster: Object) -> dict[str, dict[str, Decimal]]:
    """Return what workloads have reserved of each flavor by resource."""
    entries = (cluster.get("status") or {}).get("flavorsReservation") or ()
    return {
        entry["name"]: {item["name"]: parse(item.get("total") or 0) for item in entry.get("resources") or ()}
        for entry in entries
    }


def _share(resource: str, used: Mapping[str, Decimal], quota: Mapping[str, Decimal]) -> Usage | None:
    """Return used and total amount; ``None`` without a quota of the resource."""
    if resource not in quota:
        return None
    return {"used": float(used.get(resource, 0)), "total": float(quota[resource])}
