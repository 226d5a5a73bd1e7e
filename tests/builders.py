"""Pods and nodes as the API server returns them, and jobs as the client of Slurm and the submitter of a site do."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bridge import names
from bridge.config.hub import Config, DefaultsSection
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.script.references import Objects
from bridge.slurm.models import Job, JobLink, Node, ObservedJob, PodRef, Snapshot
from bridge.slurm.versions import ApiVersion
from bridge.workload import eligibility
from bridge.workload.eligibility import NodeView

Object = dict[str, Any]

VERSION = ApiVersion("v0.0.45", external_jobs=True)
NO_OBJECTS = Objects()
CREATED = "2026-01-01T00:00:00Z"
DELETED = "2026-01-01T00:00:01Z"


def kubeconfig(folder: Path, server: str = "https://127.0.0.1:1", user: Object | None = None, **cluster: str) -> str:
    """Write a kubeconfig for a server and a user, without credentials by default; return the path of the file."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content))
    return str(file)


def container(name: str = "main", requests: Mapping[str, str] | None = None, **more: Any) -> Object:
    """Return a container whose limits are its requests: ``container(requests={"cpu": "2"})``."""
    return {"name": name, "resources": {"requests": dict(requests or {}), "limits": dict(requests or {})}, **more}


def pod(
    uid: str = "u1",
    *,
    job: int | str | None = None,
    held: bool | None = None,
    deleted: bool | str = False,
    node: str | None = None,
    phase: str = "Pending",
    conditions: Iterable[Object] = (),
    requests: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """Return a pod.

    Parameters
    ----------
    job
        The Slurm job of the label; a pod with a job is ``held`` by podbridge's finalizer.
    deleted
        Whether the pod is being deleted, or its ``deletionTimestamp``.
    requests
        The requests of its only container; without them, the pod has the ``containers`` of ``spec``, or none.
    metadata
        Replaces whole fields, such as ``name`` (``pod-`` and the UID).
    """
    fields: Object = {
        "namespace": "ns",
        "name": f"pod-{uid}",
        "uid": uid,
        "labels": {names.JOB_ID_LABEL: str(job)} if job else {},
        "annotations": dict(annotations or {}),
        "finalizers": [names.FINALIZER] if held or (held is None and job) else [],
        "creationTimestamp": CREATED,
    }
    if deleted:
        fields["deletionTimestamp"] = DELETED if deleted is True else deleted
    if requests is not None:
        spec["containers"] = [{"name": "main", "resources": {"requests": dict(requests)}}]
    if node:
        spec["nodeName"] = node
    status = {"phase": phase, "conditions": list(conditions)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": fields | dict(metadata or {}),
        "spec": spec,
        "status": status,
    }


def site_pod(uid: str, name: str = "pod", namespace: str = "ns", **environment: str) -> Object:
    """Return a pod that a site can run, with these variables in its container ``main``."""
    env = [{"name": key, "value": value} for key, value in environment.items()]
    main = {"name": "main", "image": "docker.io/library/busybox", "command": ["true"], "env": env}
    return pod(uid, metadata={"name": name, "namespace": namespace}, restartPolicy="Never", containers=[main])


def api_access(name: str = "kube-api-access-x7x7x") -> Object:
    """Return the volume that the API server adds to each pod."""
    sources: list[Object] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": name, "projected": {"defaultMode": 420, "sources": sources}}


def config(scheduler: str = "ours", **fields: Any) -> Config:
    """Return a configuration that knows no devices, and that gives pods memory of its own accord."""
    usual = {"gres": {}, "device_classes": {}, "defaults": DefaultsSection(memory_per_cpu="1Gi")}
    return Config(scheduler_name=scheduler, **{**usual, **fields})


def group(size: int, minimum: int | None = None, *, kind: str = "jobset", **more: Any) -> dict[str, str]:
    """Return the annotation of a member of the group ``train``, as the webhook writes it."""
    value = {"kind": kind, "name": "train", "uid": "o1", "size": size, "minimum": size if minimum is None else minimum}
    return {names.GROUP: json.dumps(value | more)}


def node(
    name: str = "n1",
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
    ready: str | None = None,
    taints: Iterable[Object] = (),
    **spec: Any,
) -> Object:
    """Return a node with 8 CPUs; ``ready`` is the status of its condition ``Ready``, which it else lacks."""
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"taints": list(taints), **spec},
        "status": {
            "allocatable": dict(allocatable or {"cpu": "8"}),
            "conditions": [] if ready is None else [{"type": "Ready", "status": ready}],
        },
    }


def node_view(name: str = "n1", **more: Any) -> NodeView:
    """Return what the scheduler reads of :func:`node`."""
    return eligibility.view(node(name, **more))


def slurm_nodes(*nodes: str, states: str = "IDLE") -> dict[str, Node]:
    """Return nodes of Slurm by name; ``states`` are joined by ``+``."""
    return {name: Node(name, frozenset(states.split("+"))) for name in nodes}


def link(*uids: str, cluster: str = "here") -> JobLink:
    """Return the comment of the job for pods of :func:`pod`."""
    return JobLink(cluster, tuple(PodRef("ns", f"pod-{uid}", uid) for uid in uids))


def observed(
    job_id: int,
    states: str,
    uid: str = "u1",
    *,
    comment: JobLink | None = None,
    nodes: Iterable[str] = (),
    confirmations: int = 0,
    missing: bool = False,
    **more: Any,
) -> ObservedJob:
    """Return a job of a snapshot; ``states`` are joined by ``+``. The ``comment`` is that of a pod with this UID."""
    found = Job(job_id, frozenset(states.split("+")), comment or link(uid), tuple(nodes), **more)
    return ObservedJob(found, confirmations, missing)


def snapshot(*jobs: ObservedJob, sequence: int = 7, began: float = 1000.0, **more: Any) -> Snapshot:
    """Return a complete snapshot with these jobs."""
    by_uid: dict[str, list[int]] = {}
    for entry in jobs:
        for key in entry.job.link.keys if entry.job.link else ():
            by_uid.setdefault(key, []).append(entry.job.job_id)
    found = {entry.job.job_id: entry for entry in jobs}
    ids = {key: tuple(sorted(numbers)) for key, numbers in by_uid.items()}
    return Snapshot(sequence=sequence, began=began, jobs=found, by_uid=ids, **more)


def job_status(job: str = "u1", phase: str = "queued", **more: Any) -> JobStatus:
    """Return the state of a job at a site."""
    return JobStatus(**{"job": job, "namespace": "ns", "name": "p", "phase": phase, **more})


def running(name: str = "main", *, started_at: float, **more: Any) -> ContainerState:
    """Return a container that runs at a site, started and ready."""
    values = {"state": "running", "started": True, "ready": True, **more}
    return ContainerState(name=name, started_at=started_at, **values)
