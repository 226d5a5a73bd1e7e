"""Write docs/reference.md from the code: annotations, configuration, metrics, reasons. ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args, get_origin

from prometheus_client import REGISTRY
from pydantic import BaseModel

from bridge import (
    metrics,  # noqa: F401  (its import registers them)
    names,
)
from bridge.config import Config
from bridge.namespace_policies import FIELDS
from bridge.slurm import states
from bridge.workload import pool_selection
from bridge.workload.annotations import KEYS, Key

TARGET = Path(__file__).parents[1] / "docs" / "reference.md"

REASONS = (
    (
        "Pod, `PodScheduled=False`",
        "SlurmJobsLost",
        "Slurm lost three jobs of the pod, or their comments, within ten minutes; podbridge submits it less often",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmPending",
        "the job is pending in Slurm; the message has Slurm's reason and estimated start",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmNodeStarting",
        "Slurm boots the job's node, or its kubelet is not Ready yet; the pod is bound then. After 15 "
        "minutes its job is cancelled",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmRefused",
        "Slurm refused the job; the message has its text; podbridge retries with back-off",
    ),
    ("Pod, `PodScheduled=False`", "SlurmUnavailable", "Slurm does not answer; podbridge retries"),
    (
        "Pod, `PodScheduled=False`",
        "SlurmUnknownOutcome",
        "a request got no answer; podbridge looks for its job before it retries",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmJobsMissing",
        "many jobs disappeared from Slurm at once; podbridge submits none for now",
    ),
    ("Pod, `PodScheduled=False`", "SlurmAuth", "Slurm refuses podbridge's token"),
    (
        "Pod, `PodScheduled=False`",
        "Unschedulable",
        "no node fits, or the pod cannot be converted to a job; the message has the reason",
    ),
    ("Pod, `PodScheduled=False`", "InvalidAnnotation", "an annotation that admission did not check is invalid"),
    (
        "Pod, `PodScheduled=False`",
        "NodeRefused",
        "the pod does not fit on the allocated node in Kubernetes; podbridge cancels the job and submits again",
    ),
    (
        "Pod, `PodScheduled=False`",
        "NodeBusy",
        "pods on the allocated node have not ended yet; the message names them. The pod is bound when there is "
        "capacity; the job is cancelled after `busyNodeTimeout`",
    ),
    ("Pod, Event", "Scheduled", "bound to the allocated node"),
    ("Pod, Event", "SlurmWarning", "Slurm accepted the job with a warning"),
    ("Pod, `DisruptionTarget`, status and Event", "JobGone", "Slurm no longer knows the job"),
    (
        "Pod, `DisruptionTarget`, status and Event",
        "Requeued",
        "Slurm removed the job from the node and queued it again",
    ),
    (
        "Pod, `bridge.vk.io/JobMissing` and Event",
        "JobsMissing",
        "its job and many others are missing; the brake on mass ending holds the pod",
    ),
    ("Pod, `bridge.vk.io/JobMissing=False`", "JobFound", "its job is listed again"),
    ("Node, Event", "SlurmNodeDrained", "cordoned, because the node is drained or down in Slurm"),
    ("Node, Event", "SlurmNameConflict", "other nodes have the same Slurm node name; podbridge uses none of them"),
    ("Node, Event", "SlurmNameSettled", "no other node has the same Slurm node name any more"),
    ("Node, Event", "SlurmNodeResumed", "uncordoned, because Slurm allocates the node again"),
    ("Node, Event", "SlurmNodeDraining", "drained in Slurm, because it is cordoned"),
    ("Node, Event", "SlurmNodeUndrained", "resumed in Slurm, because it is uncordoned"),
    ("Pod, Event", "BridgeSubmitted", "the site has accepted the pod; the message names the job"),
    ("Pod, Event", "BridgeQueued", "the job is pending at the site; the message has the reason"),
    ("Pod, Event", "BridgeStarted", "its first container runs at the site"),
    ("Pod, Event", "BridgeWaiting", "a ConfigMap or Secret is missing, or the site does not answer; podbridge retries"),
    ("Pod, Event", "BridgeRejected", "the site cannot run the pod; the pod has failed, its status has the reason"),
    ("Pod, Event", "BridgeCancelled", "the job at the site is being cancelled"),
    ("Pod, Event", "BridgeFailed", "the pod failed at the site; the message has the reason"),
    ("Pod, Event", "BridgeJobLost", "the site no longer knows the job; the pod has failed"),
    ("Pod, status", "NotPossibleAtSite", "the site cannot run the pod; the message names field and value"),
    ("Pod, status", "WaitingForReference", "a ConfigMap, Secret or key is missing; podbridge retries"),
    (
        "Pod, status",
        "JobLost",
        "the site reported twice that it does not know the job, or its batch system lost the job",
    ),
    ("Pod, status", "MessageTooLarge", "script, ConfigMaps and Secrets together exceed the maximum payload of NATS"),
    ("Virtual node, `Ready`", "SiteReady", "the site sends messages and accepts pods"),
    ("Virtual node, `Ready=False`", "SiteProblem", "the site accepts no pods now; the message has the reason"),
    (
        "Virtual node, `BuildConfigAccepted=False`",
        "BuildConfigUnusable",
        "the hub cannot use the announced BuildConfig",
    ),
    ("Site, refusal", "NotOwner", "the job belongs to another cluster"),
    ("Site, refusal", "WrongFolder", "this submitter has another directory than the pool; it has done nothing"),
    ("Site, refusal", "SubmittedElsewhere", "the batch system has a job of the pod that is not in this directory"),
    (
        "Virtual node, `Ready=False`",
        "SiteSilent",
        "no message from the site for `pools.silentAfter`; the message has the last announcement",
    ),
    ("Virtual node, `Ready=False`", "SiteLeft", "the submitter has announced its stop"),
    (
        "Node, Event",
        "PoolNameTaken",
        "a pool has the name of a node that is not podbridge's, so it gets no virtual node",
    ),
)

POOL_ANNOTATIONS = (
    (names.POOLS, "pod or namespace", f"the pools, in order: {pool_selection.ALLOWED}"),
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


def table(headers: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def permission(key: Key) -> str:
    """Return when an annotation needs a permission."""
    return "yes" if key.permission else "beyond the namespace's policy" if key.name in FIELDS else ""


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
        default: Any = field.get_default(call_default_factory=True)
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


def text() -> str:
    """Return the whole page."""
    ends = [
        ["Pod, `DisruptionTarget`, status and Event", state.reason, f"{state.text} (`{name}`)"]
        for name, state in states.BASE_STATES.items()
        if state.reason
    ]
    reasons = [[f"{where}", f"`{reason}`", meaning] for where, reason, meaning in (*REASONS, *map(tuple, ends))]
    own = [
        [f"`{names.JOB_ID_LABEL}`", "label on the pod", "its Slurm job"],
        [f"`{names.NODE_ANNOTATION}`", "annotation on the pod", "the Kubernetes node that Slurm allocated"],
        [f"`{names.SLURM_NODE_ANNOTATION}`", "annotation on the pod", "Slurm's name of that node"],
        [f"`{names.FINALIZER}`", "finalizer of the pod", "set until the job is released"],
        [f"`{names.MANAGED_TAINT}`", "taint of nodes", "value: the scheduler's name; effect NoExecute"],
        [f"`{names.SLURM_NODENAME_LABEL}`", "label on a node", "the name of the node in Slurm, if it differs"],
        [
            f"`{names.SLURM_REASON}`",
            "annotation on a node",
            "Slurm's state and reason, on a node that podbridge has cordoned",
        ],
        [f"`{names.REMOTE_JOB}`", "annotation on the pod", "`<pool>/<job>`: the job at the site"],
        [
            f"`{names.JOB_INTENT}`",
            "annotation on the pod",
            "the pool, if it cannot list its jobs; set before the pod is submitted",
        ],
        [
            f"`{names.POOL_FINALIZER}`",
            "finalizer of the pod",
            "set with this annotation, until the pool has confirmed that it has no job of the pod",
        ],
        [
            f"`{names.POOL_TAINT}`",
            "taint of a virtual node",
            "value: the pool; effect NoSchedule; Kueue tolerates it for a pod",
        ],
        [f"`{names.VIRTUAL_TAINT}`", "taint of a virtual node", "value `true`; effect NoSchedule"],
        [f"`{names.POOL_LABEL}`", "label of a virtual node", "its pool"],
        [
            f"`{names.SITE_FOLDER}`",
            "annotation of a virtual node",
            "id of the directory at the site that contains its jobs",
        ],
    ]
    parts = [
        "# Reference",
        "<!-- written by hack/reference.py from the code; a test compares -->",
        "## Annotations of pods and their owners",
        "A pod's own annotation overrides that of its Job, JobSet and other owners. For permissions see "
        "[admission](admission.md).",
        annotations(),
        "## Annotations for pools",
        "[Scripts](scripts.md) describes their effect, [sites](sites.md) what a site allows.",
        table(["annotation", "where", "meaning"], [[f"`{name}`", *rest] for name, *rest in POOL_ANNOTATIONS]),
        "## Names that podbridge writes or reads",
        table(["name", "where", "what"], own),
        "## Configuration",
        "The option `--config` names a YAML file. Durations are seconds. `podbridge config check FILE` prints the "
        "errors of a file; `podbridge config schema` prints a JSON schema.",
        table(["key", "default", "meaning"], configuration()),
        "## Reasons on pods and nodes",
        table(["where", "reason", "meaning"], reasons),
        "## Metrics",
        "The port is `serving.metricsPort`, the path is `/metrics`.",
        table(["metric", "type", "meaning"], metric_rows()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text() else "docs/reference.md is out of date: run hack/reference.py")
    TARGET.write_text(text())
