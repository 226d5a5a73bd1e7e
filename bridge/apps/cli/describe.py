"""``podbridge describe``: all facts about one pod, job, node, pool or MasterQueue, from Kubernetes and from Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.apps.cli import queues, reports
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.explain_objects import find_pool, job_report
from bridge.apps.cli.get import job_records, node_records, pod_records
from bridge.apps.cli.session import CommandSession
from bridge.errors import BridgeError, KubeForbiddenError
from bridge.kube.resources import EVENTS
from bridge.workload import pods, resources


def run(connection: ConnectionOptions, kind: str, name: str, namespace: str | None, form: str) -> None:
    """Print the facts. Raises :class:`BridgeError` if the object does not exist."""
    session = CommandSession(connection)
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "pod": lambda: pod(session, namespace or session.namespace, name),
        "job": lambda: job(session, name),
        "node": lambda: node(session, name),
        "pool": lambda: pool(session, name),
        "queue": lambda: queue(session, name),
    }
    reports.show(f"{kind.capitalize()} {name}", makers[kind](), form)


def pod(session: CommandSession, namespace: str, name: str) -> dict[str, Any]:
    """Return the record of a pod, its requests, tolerations, conditions, job and Events."""
    found = next((each for each in session.pods(namespace) if each["metadata"]["name"] == name), None)
    uid = pods.uid(found) if found is not None else ""
    record = next((each for each in pod_records(session, namespace, "") if each["uid"] == uid), None)
    if found is None or record is None:  # the second list may no longer contain it
        scheduler = session.config.scheduler_name
        raise BridgeError(
            f"scheduler {scheduler} has no pod {name} in namespace {namespace}", hint="select another with -n"
        )
    del record["not_read"]
    metadata = found["metadata"]
    events = session.attempt("Events", lambda: reports.events(session.events(found))) or []
    requests = {key: f"{value.normalize():f}" for key, value in resources.pod_requests(found["spec"]).items()}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if _is_own(key)}
    report = {
        "kubernetes": record,
        "requests": requests,
        "annotations": annotations,
        "finalizers": list(metadata.get("finalizers") or ()),
        "conditions": reports.conditions(found.get("status") or {}),
        "job": next((each for each in _jobs(session, namespace) if each["job"] == record["job"]), {}),
        "events": events,
    }
    return report | {"not_read": session.gaps, "next": f"podbridge explain pod {name} -n {namespace}"}


def _is_own(key: str) -> bool:
    """Whether an annotation is one of podbridge, of slurm-bridge or of a pool."""
    return any(part in key.partition("/")[0] for part in ("vk.io", "slinky.slurm.net", "podbridge"))


def _jobs(session: CommandSession, namespace: str | None = None) -> list[dict[str, Any]]:
    known = session.config.slurm_rest_api and session.knows_slurm
    return job_records(session, namespace, ended=True) if known else []


def job(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the record of a job, and the lines of ``podbridge explain job``."""
    if not name.isdigit():
        raise BridgeError(f"NAME: {name!r} is not a job id; allowed: a number, as podbridge get jobs prints it")
    report = job_report(session, int(name))
    record = next((each for each in _jobs(session) if str(each["job"]) == name), {})
    return {"summary": report["summary"], "job": record, **{k: report[k] for k in ("slurm", "pods", "problem", "next")}}


def node(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the record of a node, its Slurm node, taints, conditions, pods and Events."""
    record = next((each for each in node_records(session, "") if each["name"] == name), None)
    found = next((each for each in session.nodes() if each["metadata"]["name"] == name), None)
    if record is None or found is None:
        known = ", ".join(sorted(each["name"] for each in node_records(session, ""))[:20])
        raise BridgeError(f"node {name} does not exist, or is virtual (describe pool)", hint=f"nodes: {known}")
    other = session.slurm_nodes.get(record["slurm_name"])
    slurm = {}
    if other is not None:
        slurm = {
            "state": "+".join(sorted(other.states)),
            "reason": other.reason,
            "cpus": other.cpus,
            "memory_mib": other.memory_mib,
            "gres": other.gres,
            "partitions": ",".join(other.partitions),
            "features": ",".join(other.features),
        }
    return {
        "kubernetes": {key: record[key] for key in ("name", "slurm_name", "ready", "cordoned", "managed")},
        "slurm": slurm,
        "taints": _taints(found),
        "conditions": reports.conditions(found.get("status") or {}),
        "pods": _pods_on(session, name),
        "events": _events(session, found),
    }


def pool(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the record of a pool, what its virtual node offers, conditions, pods and Events."""
    found, record = find_pool(session, name)
    offered = {key: f"{value.normalize():f}" for key, value in resources.allocatable(found).items()}
    labels = found["metadata"].get("labels") or {}
    return {
        "pool": {key: value for key, value in record.items() if key not in ("labels", "message")},
        "offers": offered,
        "labels": [f"{key}={value}" for key, value in sorted(labels.items())],
        "taints": _taints(found),
        "conditions": reports.conditions(found.get("status") or {}),
        "pods": _pods_on(session, name),
        "events": _events(session, found),
        "next": f"podbridge explain pool {name}",
    }


def queue(session: CommandSession, name: str) -> dict[str, Any]:
    """Return the record of a MasterQueue, its ClusterQueue, LocalQueues, flavors, workloads and Events."""
    found = queues.find(session, name)
    cluster, workloads = queues.cluster_queue(session, found), queues.workloads(session, name)
    report, record = queues.describe(found, cluster, workloads), queues.record(found, cluster)
    own = (found.get("spec") or {}).get("flavors") or ()
    spec = cluster.get("spec") or {}
    return {
        "summary": report["summary"],
        "queue": {key: value for key, value in record.items() if key not in ("local_queues", "message")},
        "cluster_queue": {
            "strategy": spec.get("queueingStrategy", ""),
            "cohort": spec.get("cohortName") or spec.get("cohort", ""),
            "lends_to": ", ".join(sorted({to["queue"] for item in own for to in item.get("canLendTo") or ()})),
        },
        "local_queues": [item for item in record["local_queues"].split(",") if item],
        "flavors": [queues.flavor_line(flavor) for flavor in report["flavors"]],
        "conditions": reports.conditions(found.get("status") or {}),
        "pending": [f"{item['workload']} ({item['age']}): {item['message']}" for item in report["pending"]],
        "admitted": queues.admitted(workloads),
        "events": _events(session, found),
        "next": f"podbridge explain queue {name}",
    }


def _taints(found: dict[str, Any]) -> list[str]:
    return [f"{t['key']}={t.get('value', '')}:{t['effect']}" for t in (found.get("spec") or {}).get("taints") or ()]


def _pods_on(session: CommandSession, name: str) -> list[str]:
    """Return a line for each pod of the scheduler that is bound to a node and has not ended."""
    bound = [each for each in session.pods(None) if each["spec"].get("nodeName") == name and not pods.is_finished(each)]
    return [f"{pods.key(each)} {(each.get('status') or {}).get('phase', '')}" for each in bound]


def _events(session: CommandSession, found: dict[str, Any]) -> list[str]:
    """Return the Events of a node. Their UID is the UID or the name of the node; they are in namespace default."""
    uid, name = found["metadata"]["uid"], found["metadata"]["name"]
    try:
        items = session.kube.get(EVENTS.path(), {"fieldSelector": f"regarding.name={name}"})["items"]
    except KubeForbiddenError:
        return []
    return reports.events([each for each in items if (each.get("regarding") or {}).get("uid") in (uid, name)])
