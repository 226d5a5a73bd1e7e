"""docs/reference/keys.md, from the code."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

from prometheus_client import REGISTRY
from pydantic import BaseModel

from bridge import job_ends, names
from bridge.config.hub import Config
from bridge.config.interlink import InterlinkSection
from bridge.config.policies import FIELDS, SIZES
from bridge.config.pool_kind import RestSection
from bridge.telemetry import metrics  # noqa: F401  (registers the metrics)
from bridge.workload import pool_selection, services
from bridge.workload.annotations import KEYS, Key
from bridge.workload.groups import MAX_TOGETHER
from bridge.workload.kinds.kind_table import GANG_VALUES
from generate.reasons import REASONS

TARGET = Path(__file__).parents[2] / "docs/reference/keys.md"

POOL_ANNOTATIONS = (
    (names.POOLS, f"of a pod or namespace: the pools, in order: {pool_selection.ALLOWED}"),
    (
        names.PLACEMENT,
        f"`{names.RACE}`: the pod waits at several of them at once, see [late binding](../users/late-binding.md)",
    ),
    (
        names.EXPOSE,
        "TCP ports by which [Services](../users/run-pods.md#services) reach the pod: `8888`, `8888,9000`, or `true` "
        f"for all declared ones; at most {services.MOST_EXPOSED}",
    ),
    (
        names.REACH,
        "[Services](../users/run-pods.md#reach-services) that the pod reaches: `scheduler:8786`, `db.other:5432`, "
        f"`web:8080:80` (port 80 at port 8080); at most {services.MOST_REACHED}",
    ),
)
SITE_ANNOTATIONS = (
    *(names.FLAGS, names.FLAVOR, names.PRE_EXEC, names.MPI_FLAGS, names.SINGULARITY_MOUNTS, names.SINGULARITY_OPTIONS),
    *(names.ENROOT_MOUNTS, names.ENROOT_OPTIONS, names.IMAGE_ROOT, names.JOB_WORKDIR),
    *(names.FUSE_PREFIX + "<volume>", names.CVMFS_PREFIX + "<volume>"),
)

GROUP_ANNOTATIONS = (
    (
        names.GANG,
        "pod, owners, namespace",
        "; ".join(f"`{value}`: {meaning}" for value, meaning in GANG_VALUES.items()),
    ),
    (
        names.MEMBERS_PER_NODE,
        "pod, owners",
        f"how many pods of the group may share one node, from 1 to {MAX_TOGETHER}; 1 without it",
    ),
    (
        names.ARRAY,
        "pod, owners, namespace",
        "`true`: at a site, the pods of one owner are one [array](../users/from-sbatch.md#array)",
    ),
    (names.MPI, "pod", "at a site, the members are one MPI job by `pmi2` or `pmix`; `none` without it"),
    (
        names.RENDEZVOUS,
        "pod",
        "at a site, [how members find each other](../users/groups.md#groups-at-pools): `torch`, `hostfile`, or both",
    ),
)

OWN_NAMES = (
    (names.JOB_ID_LABEL, "pod label", "its Slurm job"),
    (names.NODE_ANNOTATION, "pod annotation", "the Kubernetes node that Slurm allocated"),
    (names.SLURM_NODE_ANNOTATION, "pod annotation", "Slurm's name of that node"),
    (names.JOB_ID_ANNOTATION, "pod annotation", "its Slurm job, once bound"),
    (names.JOB_START_ANNOTATION, "pod annotation", "when Slurm allocated that job"),
    (names.GROUP, "pod annotation", "its [group](../users/groups.md), as JSON"),
    (names.JOB_LIMITS, "pod annotation", "limits of the [policy](admission.md#policies) that the scheduler checks"),
    (names.EXPOSE_PERMITTED, "pod annotation", "its user had the permission `expose` at its creation"),
    (names.FINALIZER, "pod finalizer", "of a pod for Slurm, until its job is released"),
    (names.MANAGED_TAINT, "node taint", "value: the scheduler's name; effect NoExecute"),
    (names.SLURM_NODENAME_LABEL, "node label", "the name of the node in Slurm, if it differs"),
    (
        names.PARTITION_LABEL_PREFIX + "NAME",
        "node label",
        "a [Slurm partition](../admins/kueue.md#slurm-partitions) of the node",
    ),
    (names.EXTERNAL_NODE_LABEL, "node label", "any value: register it as an external node"),
    (names.EXTERNAL_NODE_PARTITIONS, "node annotation", "partitions of an external node, comma separated"),
    (names.EXTERNAL_NODE_FEATURES, "node annotation", "further features of an external node, comma separated"),
    (names.TOPOLOGY_SPEC, "node annotation", "topology of an external node, as `Topology` in slurm.conf"),
    (names.EXTERNAL_NODE_PROBLEM, "node annotation", "why the node is not registered as described"),
    (names.SLURM_REASON, "node annotation", "Slurm's state and reason, if podbridge cordoned it"),
    (names.SLURM_ASLEEP, "node annotation", "Slurm's power saving has stopped the node"),
    (
        names.INSTALLATION,
        "webhook configuration annotation",
        "data to detect [collisions](../admins/several-schedulers.md)",
    ),
    (names.SLURM_NAME_CONFLICT, "node annotation", "other nodes with its Slurm name; none is used"),
    (names.TRACEPARENT, "pod annotation", "its W3C [trace context](../admins/tracing.md)"),
    (
        names.POOL_SECRETS,
        "namespace annotation",
        "the pools that may get its [Secrets and tokens](../admins/pools.md#secrets-and-tokens); `*`: any",
    ),
    (names.REMOTE_JOB, "pod annotation", "`<pool>/<job>`: the job at the site"),
    (names.PLACES, "pod annotation", "places of a pod that races"),
    (names.GRANT, "pod annotation", "`<pool>/<ticket>`: the place that won"),
    (names.PLACE_IN_JOB, "pod annotation", "`<gang>/<rank>/<size>`: its place in its group's job at a pool"),
    (names.RACE_ALLOWED, "virtual node annotation", "`true` if its site lets pods race"),
    (names.SHAPES_IN_JOB, "pod annotation", "the shapes by rank, if they differ: `1x<digest>,4x<digest>`"),
    (names.GANGS_ALLOWED, "virtual node annotation", "`true` if its site runs groups"),
    (
        names.HETEROGENEOUS_GANGS_ALLOWED,
        "virtual node annotation",
        "`true` if their pods may request different resources",
    ),
    (names.FLAVOR_LIMITS, "virtual node annotation", "limits of its flavors"),
    (names.REACH_ALLOWED, "virtual node annotation", "`true` if its pods may reach Services"),
    (names.EXPECTED_WAIT, "virtual node annotation", "expected wait in seconds"),
    (names.METRICS_PATH_ANNOTATION, "virtual node annotation", f"`{names.METRICS_PATH}/<pool>`, for metrics-server"),
    (names.JOB_INTENT, "pod annotation", "the pool, if it cannot list its jobs; set before the submission"),
    (names.POOL_FINALIZER, "pod finalizer", "set with this annotation, until the job is gone"),
    (names.DEFAULT_SCHEDULER_REASON, "pod annotation", "why admission left it to the default scheduler"),
    (names.POOL_TAINT, "virtual node taint", "value: the pool; effect NoSchedule"),
    (names.VIRTUAL_TAINT, "virtual node taint", "value `true`; effect NoSchedule"),
    (names.POOL_LABEL, "virtual node label", "its pool"),
    (names.QUEUE_APPLIED, "Kueue object annotation", "digest of what its [MasterQueue](../admins/kueue.md) requires"),
    (names.VIRTUAL_TYPE_LABEL, "virtual node label", f"`{names.VIRTUAL_TYPE}`"),
    (names.SITE_ANNOUNCED, "virtual node annotation", "labels and taints from the site"),
    (names.SITE_FOLDER, "virtual node annotation", "id of the site's folder"),
)


def table(headers: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def in_code(rows: Iterable[tuple[str, ...]]) -> list[list[str]]:
    """Return the rows with the first column as code."""
    return [[f"`{name}`", *rest] for name, *rest in rows]


def permission(key: Key) -> str:
    """Return when an annotation needs a permission."""
    return "yes" if key.permission else "beyond policy" if key.name in {**FIELDS, **SIZES} else ""


def slurm_annotations() -> str:
    """Return the table of the annotations for Slurm."""
    rows = [[f"`{key.name}`", key.meaning, key.allowed, f"`{key.example}`", permission(key)] for key in KEYS.values()]
    return table(["annotation", "meaning", "allowed", "example", "needs a permission"], rows)


def configuration(model: type[BaseModel] = Config, prefix: str = "") -> list[list[str]]:
    """Return a row for each key of the configuration; keys that all REST pools have stand once."""
    rows: list[list[str]] = []
    repeated = issubclass(model, RestSection) and model is not InterlinkSection
    if repeated:
        common = "`, `".join(field.alias or name for name, field in RestSection.model_fields.items())
        rows.append([f"`{prefix}*`: `{common}`", "", "As for `pools.interlink[]`."])
    for name, field in model.model_fields.items():
        if repeated and name in RestSection.model_fields:
            continue
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
            kind = "Histogram: " if collector.type == "histogram" else ""
            rows.append([f"`{collector.name}{suffix}`", kind + collector.documentation])
    return sorted(rows)


def reasons() -> list[str]:
    """Return a table of reasons for each place where they appear; those of ended jobs are in the table of ends."""
    return [f"### {where}\n\n" + table(["reason", "meaning"], in_code(rows)) for where, rows in REASONS.items()]


def end_rows() -> list[list[str]]:
    """Return the table of ends, from the one that the code uses."""
    return [
        [
            f"`{end.reason}`",
            "" if end.site_reason == end.reason else f"`{end.site_reason}`",
            end.text,
            "yes" if end.disruption else "no",
            end.source,
        ]
        for end in job_ends.ENDS
    ]


def text() -> str:
    """Return the whole page."""
    parts = [
        "# Reference",
        "<!-- written by hack/generate.sh from the code; a test compares -->",
        "## Annotations of pods and their owners",
        (
            "A pod's own annotation overrides those of its owners. [Admission](admission.md#policies) "
            "describes policies and permissions."
        ),
        slurm_annotations(),
        "## Annotations for groups",
        "Precedence: the pod, its owners, the owner of its [group](../users/groups.md), the namespace.",
        table(["annotation", "where", "meaning"], in_code(GROUP_ANNOTATIONS)),
        "## Annotations for pools",
        table(["annotation", "meaning"], in_code(POOL_ANNOTATIONS)),
        "Sites honour these, if they [allow them](scripts.md#annotations): "
        + ", ".join(f"`{name}`" for name in SITE_ANNOTATIONS)
        + ".",
        "## Names that podbridge writes or reads",
        table(["name", "where", "what"], in_code(OWN_NAMES)),
        "## Configuration",
        (
            "The option `--config` names a YAML file. Durations are seconds. `podbridge config check "
            "FILE` checks a file; `podbridge config schema` prints a JSON schema."
        ),
        table(["key", "default", "meaning"], configuration()),
        "## Reasons on pods and nodes",
        "The message has the cause.",
        *reasons(),
        "## Ends of jobs",
        (
            "When its job ends, a pod gets the reason in its status, in an Event and, on colocated "
            "nodes, in the condition `DisruptionTarget`. The condition is `True` for a *disruption*, "
            "which a Job can exclude from its back-off limit (`podFailurePolicy`)."
        ),
        table(["reason", "at a site, if it differs", "the job", "disruption", "reported by"], end_rows()),
        "## Metrics",
        "The port is `serving.metricsPort`, the path is `/metrics`. Names of counters end in `_total`.",
        table(["metric", "meaning"], metric_rows()),
    ]
    return "\n\n".join(parts) + "\n"


def files() -> dict[Path, str]:
    """Return the page."""
    return {TARGET: text()}
