"""The records of ``podbridge get`` and ``top`` as JSON and YAML: their fields are stable.

Times are RFC 3339, UTC, empty if unknown; amounts are numbers, of memory in bytes; what does not exist is ``null`` or
empty. A later version may add fields. The texts of the fields are in the schema that ``get -o schema`` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from typing_extensions import TypedDict  # pydantic requires it before Python 3.12


class Usage(TypedDict):
    """What is used of a resource, and what there is of it."""

    used: Annotated[float, "requested by pods that have not ended; on a node of Slurm, held by its jobs"]
    total: Annotated[float, "offered by the node, the pool or the quota"]


class PodRecord(TypedDict):
    """A pod of the scheduler, with its job in Slurm."""

    namespace: Annotated[str, "its namespace"]
    name: Annotated[str, "its name"]
    uid: Annotated[str, "its UID"]
    phase: Annotated[str, "the phase, or `Terminating`"]
    job: Annotated[int | str | None, "a number: the Slurm job; a text: `POOL/JOB` at a pool; null: none yet"]
    slurm_state: Annotated[str, "the state of the Slurm job, as in `get jobs`: `RUNNING`, `released`"]
    partition: Annotated[str, "the partition of the Slurm job"]
    node: Annotated[str, "the node or pool that the pod is bound to"]
    reason: Annotated[str, "why it waits or how it ended, with Slurm's reason after a colon"]
    created: Annotated[str, "when it was created"]
    not_read: Annotated[list[str], "what could not be read, with the error: `slurm_state` may be missing"]


class SlurmJobRecord(TypedDict):
    """A placeholder job of Slurm, or a pod whose job is missing."""

    job: Annotated[int | None, "the id in Slurm; null: the pod has none"]
    state: Annotated[str, "the states in Slurm, joined by `+`; `released`: podbridge ended it after its pods"]
    partition: Annotated[str, "its partition"]
    nodes: Annotated[list[str], "its nodes, by their names in Slurm"]
    pods: Annotated[list[str], "its pods as `NAMESPACE/NAME`; of a group, `KIND NAMESPACE/NAME`"]
    phases: Annotated[list[str], "the phases of these pods, each one time"]
    reason: Annotated[str, "why it waits, by Slurm"]
    problem: Annotated[str, "what disagrees between Slurm and Kubernetes"]
    pod_nodes: Annotated[list[str], "the Kubernetes nodes of its pods"]
    name: Annotated[str, "its name in Slurm"]
    user: Annotated[str, "its user in Slurm"]
    submitted: Annotated[str, "when it was submitted"]
    started: Annotated[str, "when it started"]


class WorkloadRecord(TypedDict):
    """A Job, JobSet or LeaderWorkerSet."""

    namespace: Annotated[str, "its namespace"]
    kind: Annotated[str, "its kind"]
    name: Annotated[str, "its name"]
    pods: Annotated[int | None, "how many pods it makes in the end; null: not known"]
    done: Annotated[int, "pods that have succeeded"]
    running: Annotated[int, "pods that run or start"]
    waiting: Annotated[int, "pods that wait"]
    failed: Annotated[int, "pods that have failed"]
    reason: Annotated[str, "why most of its pods wait"]
    created: Annotated[str, "when it was created"]


class NodeRecord(TypedDict):
    """A Kubernetes node that is not virtual, with its Slurm node."""

    name: Annotated[str, "its name"]
    slurm_name: Annotated[str, "its name in Slurm; empty: it is no node of Slurm"]
    ready: Annotated[str, "the condition Ready: `True`, `False` or `Unknown`"]
    cordoned: Annotated[bool, "whether it is cordoned"]
    slurm_state: Annotated[str, "its states in Slurm, joined by `+`"]
    managed: Annotated[bool, "whether it has the taint of this scheduler"]
    reason: Annotated[str, "Slurm's reason of its state"]
    cpus: Annotated[int | None, "its CPUs in Slurm"]
    memory: Annotated[int | None, "its memory in Slurm, bytes"]


class PoolRecord(TypedDict):
    """A pool."""

    pool: Annotated[str, "its name"]
    ready: Annotated[str, "the condition Ready: `True`, `False` or `Unknown`"]
    reason: Annotated[str, "the reason of the condition"]
    message: Annotated[str, "the message of the condition"]
    pods: Annotated[Usage, "pods"]
    cpu: Annotated[Usage, "CPUs"]
    memory: Annotated[Usage, "bytes"]
    labels: Annotated[dict[str, str], "the labels that its site has set"]
    created: Annotated[str, "when its virtual node was created"]


class PlaceRecord(TypedDict):
    """A place of a pod or group that waits or has waited: a pool, or the Slurm beside the kubelets."""

    place: Annotated[str, "the pool; `local`: the Slurm beside the kubelets"]
    eligible: Annotated[bool | None, "whether it could run the pod; null: not known"]
    room: Annotated[bool | None, "whether it would fit there now, beside podbridge's pods at a pool; null: not known"]
    job: Annotated[str, "the id of its job there"]
    state: Annotated[str, "`queued`, `started`, `won`, `withdrawn`, `refused`, or another state of the job"]
    expected_start: Annotated[str, "when its job is expected to start there"]
    reason: Annotated[str, "why it does not start there now"]


class QueueRecord(TypedDict):
    """A MasterQueue with its ClusterQueue."""

    queue: Annotated[str, "its name"]
    ready: Annotated[str, "the condition Ready: `True`, `False` or `Unknown`"]
    reason: Annotated[str, "the reason of the condition"]
    message: Annotated[str, "the message of the condition"]
    offered: Annotated[str, "flavors that are offered, of all: `2/3`"]
    pending: Annotated[int | None, "pending workloads; null: not read"]
    admitted: Annotated[int | None, "admitted workloads; null: not read"]
    cpu: Annotated[Usage | None, "CPUs reserved, and the quota; null: no quota"]
    memory: Annotated[Usage | None, "bytes reserved, and the quota; null: no quota"]
    stop_policy: Annotated[str, "the stop policy of the ClusterQueue"]
    local_queues: Annotated[list[str], "its LocalQueues as `NAMESPACE/NAME`"]
    created: Annotated[str, "when it was created"]


class Listed(NamedTuple):
    """A kind of ``podbridge get``: its records, their columns, those of ``-o wide`` only, and how one is named.

    ``prefix`` and ``field`` make its name for other commands, and ``key`` are the fields that identify it.
    """

    record: type
    columns: Sequence[str]
    wide: Sequence[str]
    prefix: str
    field: str
    key: Sequence[str]


KINDS: dict[str, Listed] = {
    "pods": Listed(
        PodRecord,
        ("namespace", "name", "phase", "job", "slurm_state", "node", "reason", "age"),
        ("partition", "uid"),
        *("pod/", "name", ("uid",)),
    ),
    "jobs": Listed(
        SlurmJobRecord,
        ("job", "state", "partition", "nodes", "pods", "phases", "reason", "problem"),
        ("pod_nodes", "name", "user", "submitted", "started"),
        *("", "job", ("job", "pods")),
    ),
    "workloads": Listed(
        WorkloadRecord,
        ("namespace", "kind", "name", "pods", "done", "running", "waiting", "failed", "reason", "age"),
        ("created",),
        *("", "name", ("kind", "namespace", "name")),
    ),
    "nodes": Listed(
        NodeRecord,
        ("name", "slurm_name", "ready", "cordoned", "slurm_state", "managed", "reason"),
        ("cpus", "memory"),
        *("node/", "name", ("name",)),
    ),
    "pools": Listed(
        PoolRecord,
        ("pool", "ready", "reason", "pods", "cpu", "memory", "age"),
        ("message", "labels"),
        *("node/", "pool", ("pool",)),
    ),
    "queues": Listed(
        QueueRecord,
        ("queue", "ready", "offered", "pending", "admitted", "cpu", "memory", "age"),
        ("reason", "stop_policy", "local_queues", "message"),
        *("masterqueue.vk.io/", "queue", ("queue",)),
    ),
}


def schema(kind: str) -> dict[str, Any]:
    """Return the JSON schema of what ``podbridge get`` prints for a kind: a list of records."""
    from pydantic import TypeAdapter  # `podbridge --help` does not wait for it

    record = KINDS[kind].record
    result = TypeAdapter(list[record]).json_schema()  # type: ignore[valid-type]
    for each in (record, Usage):
        described = result["$defs"].get(each.__name__, {}).get("properties", {})
        hints = get_type_hints(each, include_extras=True)
        for name, about in described.items():
            about["description"] = get_args(hints[name])[1]
    return result
