"""Write docs/reference/keys.md from the code. ``--check`` only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

from prometheus_client import REGISTRY
from pydantic import BaseModel

from bridge import (
    ends,
    metrics,  # noqa: F401  (its import registers them)
    names,
)
from bridge.config import Config
from bridge.namespace_policies import FIELDS, SIZES
from bridge.workload import pool_selection
from bridge.workload.annotations import KEYS, Key
from bridge.workload.groups import MAX_TOGETHER
from bridge.workload.kinds.table import GANG_VALUES
from reference_reasons import REASONS

TARGET = Path(__file__).parents[1] / "docs/reference/keys.md"

POOL_ANNOTATIONS = (
    (names.POOLS, "pod or namespace", f"the pools, in order: {pool_selection.ALLOWED}"),
    (
        names.PLACEMENT,
        "pod",
        f"`{names.RACE}`: the pod waits at several of them at once, see [late binding](../users/late-binding.md)",
    ),
    (names.FLAGS, "pod", "options of the submit command, if `limits.allow_user_flags` is true at the site"),
    (names.FLAVOR, "pod", "one of the site's flavors"),
    (names.PRE_EXEC, "pod", "a script that runs before the containers, if `limits.allow_pre_exec` is true"),
    (names.MPI_FLAGS, "pod", "mpiexec and its options before the command, if `limits.allow_runtime_options` is true"),
    (
        names.SINGULARITY_MOUNTS,
        "pod",
        "values of `--bind` for apptainer or singularity, if `limits.allow_runtime_options` is true",
    ),
    (names.SINGULARITY_OPTIONS, "pod", "other options of apptainer or singularity, under the same condition"),
    (names.ENROOT_MOUNTS, "pod", "mounts for enroot, under the same condition"),
    (names.ENROOT_OPTIONS, "pod", "other options of enroot, under the same condition"),
    (names.FUSE_PREFIX + "<volume>", "pod", "a script that mounts the volume, if `limits.allow_fuse` is true"),
    (names.CVMFS_PREFIX + "<volume>", "pod", "the volume is the site's CernVM-FS, if `volumes.cvmfs_path` is set"),
    (names.IMAGE_ROOT, "pod", "prefix of image names that are neither a path nor a URL"),
    (names.JOB_WORKDIR, "pod", "directory of emptyDir volumes, below one of `volumes.host_paths`"),
)


GROUP_ANNOTATIONS = (
    (
        names.GANG,
        "pod, owner of the pod or of the group, namespace",
        "; ".join(f"`{value}`: {meaning}" for value, meaning in GANG_VALUES.items()),
    ),
    (
        names.MEMBERS_PER_NODE,
        "pod, owner of the pod or of the group",
        f"how many pods of the group may share one node, from 1 to {MAX_TOGETHER}; 1 without it",
    ),
)

OWN_NAMES = (
    (names.JOB_ID_LABEL, "label on the pod", "its Slurm job; set by the binding, or after some seconds of waiting"),
    (names.NODE_ANNOTATION, "annotation on the pod", "the Kubernetes node that Slurm allocated"),
    (names.SLURM_NODE_ANNOTATION, "annotation on the pod", "Slurm's name of that node"),
    (names.JOB_ID_ANNOTATION, "annotation on the pod", "its Slurm job, from the binding on"),
    (names.JOB_START_ANNOTATION, "annotation on the pod", "when Slurm allocated that job"),
    (
        names.GROUP,
        "annotation on the pod",
        "its [group](../users/groups.md): kind, name, UID and index; size, minimum and slot",
    ),
    (
        names.JOB_LIMITS,
        "annotation on the pod",
        "limits of the namespace's [policy](admission.md#policies) that the scheduler checks, as JSON",
    ),
    (names.FINALIZER, "finalizer of the pod", "from the creation of a pod for Slurm until its job is released"),
    (names.MANAGED_TAINT, "taint of nodes", "value: the scheduler's name; effect NoExecute"),
    (names.SLURM_NODENAME_LABEL, "label on a node", "the name of the node in Slurm, if it differs"),
    (
        names.PARTITION_LABEL_PREFIX + "NAME",
        "label of nodes",
        "with `nodes.partitionLabels`: `true` for each Slurm partition of the node. A pod that "
        "[selects](../admins/kueue.md) it uses this partition",
    ),
    (names.EXTERNAL_NODE_LABEL, "label on a node", "any value: podbridge registers it as an external node in Slurm"),
    (names.EXTERNAL_NODE_PARTITIONS, "annotation on a node", "partitions of an external node, comma separated"),
    (names.EXTERNAL_NODE_FEATURES, "annotation on a node", "further features of an external node, comma separated"),
    (names.TOPOLOGY_SPEC, "annotation on a node", "topology of an external node, as `Topology` in slurm.conf"),
    (names.EXTERNAL_NODE_PROBLEM, "annotation on a node", "why the node is not registered as described"),
    (names.SLURM_REASON, "annotation on a node", "Slurm's state and reason, on a node that podbridge has cordoned"),
    (
        names.SLURM_ASLEEP,
        "annotation on a node",
        "with `queues.enabled`: Slurm's power saving has stopped the node; [queues](../admins/kueue.md) count it",
    ),
    (
        names.INSTALLATION,
        "annotation of a mutating webhook configuration",
        "scheduler, namespaces and partitions of the installation, by which others detect [collisions]("
        "../admins/several-schedulers.md)",
    ),
    (
        names.SLURM_NAME_CONFLICT,
        "annotation on a node",
        "the other nodes with the same name in Slurm; podbridge uses none of them",
    ),
    (
        names.TRACEPARENT,
        "annotation on the pod",
        "the W3C trace context of the pod. Admission sets it, unless the user has; see [traces](../admins/tracing.md)",
    ),
    (
        names.POOL_SECRETS,
        "annotation on a namespace",
        "the pools, comma separated, that may get its [Secrets and tokens](../admins/pools.md#secrets-and-tokens); "
        "`*`: any",
    ),
    (names.REMOTE_JOB, "annotation on the pod", "`<pool>/<job>`: the job at the site"),
    (names.PLACES, "annotation on the pod", "the places of a pod that races: pools, `local`"),
    (names.GRANT, "annotation on the pod", "`<pool>/<ticket>`: the place that won, from the binding on"),
    (names.RACE_ALLOWED, "annotation on a virtual node", "`true` if its site lets pods race"),
    (
        names.JOB_INTENT,
        "annotation on the pod",
        "the pool, if it cannot list its jobs; set before podbridge submits the pod",
    ),
    (
        names.POOL_FINALIZER,
        "finalizer of the pod",
        "set with this annotation, until the pool has confirmed that it has no job of the pod",
    ),
    (
        names.DEFAULT_SCHEDULER_REASON,
        "annotation on the pod",
        "why admission has left a pod of a managed namespace to the default scheduler",
    ),
    (names.POOL_TAINT, "taint of a virtual node", "value: the pool; effect NoSchedule; Kueue tolerates it for a pod"),
    (names.VIRTUAL_TAINT, "taint of a virtual node", "value `true`; effect NoSchedule"),
    (names.POOL_LABEL, "label of a virtual node", "its pool"),
    (
        names.QUEUE_APPLIED,
        "annotation of a ResourceFlavor or ClusterQueue",
        "digest of what podbridge has applied for its [MasterQueue](../admins/kueue.md)",
    ),
    (names.VIRTUAL_TYPE_LABEL, "label of a virtual node", f"`{names.VIRTUAL_TYPE}`"),
    (names.SITE_ANNOUNCED, "annotation of a virtual node", "the labels and taints that the site has announced"),
    (names.SITE_FOLDER, "annotation of a virtual node", "id of the directory at the site that contains its jobs"),
)


def table(headers: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def in_code(rows: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Return the rows with the first column as code."""
    return [[f"`{name}`", *rest] for name, *rest in rows]


def permission(key: Key) -> str:
    """Return when an annotation needs a permission."""
    return "yes" if key.permission else "beyond the namespace's policy" if key.name in {**FIELDS, **SIZES} else ""


def annotations() -> str:
    """Return the table of the annotations for Slurm."""
    rows = [[f"`{key.name}`", key.meaning, key.allowed, f"`{key.example}`", permission(key)] for key in KEYS.values()]
    return table(["annotation", "meaning", "allowed", "example", "needs a permission"], rows)


def configuration(model: type[BaseModel] = Config, prefix: str = "") -> list[list[str]]:
    """Return a row for each key of the configuration."""
    rows: list[list[str]] = []
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            rows += configuration(field.annotation, key + ".")
            continue
        default: Any = "required" if field.is_required() else field.get_default(call_default_factory=True)
        if listed := [t for t in get_args(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]:
            rows += configuration(listed[0], key + "[].") if get_origin(field.annotation) is list else []
        rows.append([f"`{key}`", f"`{default if default is not None else 'unset'}`", field.description or ""])
    return rows


def metric_rows() -> list[list[str]]:
    """Return a row for each metric."""
    rows = []
    for collector in REGISTRY.collect():
        if collector.name.startswith("podbridge_"):
            suffix = "_total" if collector.type == "counter" else ""
            rows.append([f"`{collector.name}{suffix}`", collector.type, collector.documentation])
    return sorted(rows)


def reason_rows() -> list[list[str]]:
    """Return a row for each reason; those of ended jobs are in the table of ends."""
    return [[where, f"`{reason}`", meaning] for where, reason, meaning in REASONS]


def end_rows() -> list[list[str]]:
    """Return the table of ends, from the one that the code uses."""
    return [
        [
            f"`{end.reason}`",
            "the same" if end.site_reason == end.reason else f"`{end.site_reason}`",
            f"the job {end.text}",
            "yes" if end.disruption else "no",
            end.source,
        ]
        for end in ends.ENDS
    ]


def text() -> str:
    """Return the whole page."""
    parts = [
        "# Reference",
        "<!-- written by hack/reference.py from the code; a test compares -->",
        "## Annotations of pods and their owners",
        "A pod's own annotation overrides that of its Job, JobSet and other owners. For permissions see "
        "[admission](admission.md).",
        annotations(),
        "## Annotations for groups",
        "[Groups of pods](../users/groups.md) describes them. The pod's own annotation has precedence, then those of "
        "its owners, of the group's owner, and of the namespace.",
        table(["annotation", "where", "meaning"], in_code(GROUP_ANNOTATIONS)),
        "## Annotations for pools",
        "[Scripts](scripts.md) describes their effect, [sites](../sites/sites.md) what a site allows.",
        table(["annotation", "where", "meaning"], in_code(POOL_ANNOTATIONS)),
        "## Names that podbridge writes or reads",
        table(["name", "where", "what"], in_code(OWN_NAMES)),
        "## Configuration",
        "The option `--config` names a YAML file. Durations are seconds. `podbridge config check FILE` prints the "
        "errors of a file; `podbridge config schema` prints a JSON schema.",
        table(["key", "default", "meaning"], configuration()),
        "## Reasons on pods and nodes",
        table(["where", "reason", "meaning"], reason_rows()),
        "## Ends of jobs",
        "When its job ends, a pod gets the reason in its status, in an Event and, on colocated nodes, in the condition "
        "`DisruptionTarget`. A *disruption* has other causes than the pod: the condition is `True`, and a Job can "
        "exclude it from its back-off limit (`podFailurePolicy`). For other ends the condition is `False` on colocated "
        "nodes, and absent at a site. At a site, a pod has the reason of a kubelet where there is one.",
        table(["reason", "at a site", "meaning", "disruption", "reported by"], end_rows()),
        "## Metrics",
        "The port is `serving.metricsPort`, the path is `/metrics`.",
        table(["metric", "type", "meaning"], metric_rows()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text() else "docs/reference/keys.md is out of date: run hack/reference.py")
    TARGET.write_text(text())
