"""Writes docs/reference.md from the code: annotations, configuration, metrics, reasons. ``--check`` only compares."""

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
        "Slurm lost three jobs of the pod within ten minutes, or their comments; it is submitted more slowly",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmPending",
        "the job waits in Slurm; the message has Slurm's reason and estimate",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmNodeStarting",
        "Slurm starts the job's node, or its kubelet is not ready yet; bound when it is, given back after 15 minutes",
    ),
    (
        "Pod, `PodScheduled=False`",
        "SlurmRefused",
        "Slurm said no; the message has its words; asked again with back-off",
    ),
    ("Pod, `PodScheduled=False`", "SlurmUnavailable", "Slurm does not answer; goes on by itself"),
    ("Pod, `PodScheduled=False`", "SlurmUnknownOutcome", "a request got no answer: its job is looked for first"),
    (
        "Pod, `PodScheduled=False`",
        "SlurmJobsMissing",
        "many jobs vanished from Slurm at once: none is asked for yet",
    ),
    ("Pod, `PodScheduled=False`", "SlurmAuth", "Slurm does not take podbridge's token"),
    (
        "Pod, `PodScheduled=False`",
        "Unschedulable",
        "no node fits, or the pod can't be translated; the message says why",
    ),
    ("Pod, `PodScheduled=False`", "InvalidAnnotation", "an annotation that got past admission can't be used"),
    ("Pod, `PodScheduled=False`", "NodeRefused", "Slurm gave a node that Kubernetes refuses: given back, asked again"),
    (
        "Pod, `PodScheduled=False`",
        "NodeBusy",
        "Slurm gave a node whose pods have not ended yet: the message names them; bound when there is room, given back "
        "after `busyNodeTimeout`",
    ),
    ("Pod, Event", "Scheduled", "bound to the node that Slurm gave"),
    ("Pod, Event", "SlurmWarning", "Slurm took the job and warned"),
    ("Pod, `DisruptionTarget`, status and Event", "JobGone", "Slurm knows the job no more"),
    ("Pod, `DisruptionTarget`, status and Event", "Requeued", "Slurm took the node away and queued the job again"),
    (
        "Pod, `bridge.vk.io/JobMissing` and Event",
        "JobsMissing",
        "its job is missing, as those of many others: the brake on mass ending holds the pod",
    ),
    ("Pod, `bridge.vk.io/JobMissing=False`", "JobFound", "its job is there again"),
    ("Node, Event", "SlurmNodeDrained", "cordoned because Slurm keeps the node out"),
    ("Node, Event", "SlurmNameConflict", "other nodes claim the same Slurm node: none is used until only one does"),
    ("Node, Event", "SlurmNameSettled", "no other node claims the same Slurm node any more"),
    ("Node, Event", "SlurmNodeResumed", "uncordoned because Slurm gives the node again"),
    ("Node, Event", "SlurmNodeDraining", "drained in Slurm because it is cordoned"),
    ("Node, Event", "SlurmNodeUndrained", "resumed in Slurm because it is uncordoned"),
    ("Pod, Event", "BridgeSubmitted", "the site has the pod, as this job"),
    ("Pod, Event", "BridgeQueued", "why the job waits at the site"),
    ("Pod, Event", "BridgeStarted", "its first container runs at the site"),
    ("Pod, Event", "BridgeWaiting", "a reference is missing, or the site does not answer; goes on by itself"),
    ("Pod, Event", "BridgeRejected", "the pod can't run at the site; it failed, its status has the reason"),
    ("Pod, Event", "BridgeCancelled", "the job at the site is being ended"),
    ("Pod, Event", "BridgeFailed", "the pod failed at the site, for this reason"),
    ("Pod, Event", "BridgeJobLost", "the site knows the job no more; the pod failed"),
    ("Pod, status", "NotPossibleAtSite", "no script can be made of the pod there; the message names field and value"),
    ("Pod, status", "WaitingForReference", "a ConfigMap, Secret or key is missing; goes on by itself"),
    ("Pod, status", "JobLost", "the site said twice that it does not know the job, or its batch system lost the job"),
    ("Pod, status", "MessageTooLarge", "script, ConfigMaps and Secrets are together larger than NATS takes"),
    ("Virtual node, `Ready`", "SiteReady", "the site is heard, and takes pods"),
    ("Virtual node, `Ready=False`", "SiteProblem", "the site can take nothing now; the message says why"),
    ("Virtual node, `BuildConfigAccepted=False`", "BuildConfigUnusable", "the hub can't use the announced BuildConfig"),
    ("Site, refusal", "NotOwner", "the job belongs to another cluster"),
    ("Site, refusal", "WrongFolder", "this submitter has another folder than the pool: nothing was done"),
    ("Site, refusal", "SubmittedElsewhere", "the batch system has a job of the pod that is not in this folder"),
    (
        "Virtual node, `Ready=False`",
        "SiteSilent",
        "no message of the site for `silentAfter` seconds; the message has the last announcement",
    ),
    ("Virtual node, `Ready=False`", "SiteLeft", "the submitter has stopped"),
    ("Node, Event", "PoolNameTaken", "a pool has the name of a node that is not podbridge's: it gets none"),
)

POOL_ANNOTATIONS = (
    (names.POOLS, "pod or namespace", f"which pools, in order: {pool_selection.ALLOWED}"),
    (names.FLAGS, "pod", "words for the submit command, where `limits.allow_user_flags` is true at the site"),
    (names.FLAVOR, "pod", "one of the site's flavors"),
    (names.PRE_EXEC, "pod", "a script that runs before the containers, where `limits.allow_pre_exec` is true"),
    (names.MPI_FLAGS, "pod", "words for mpiexec before the command, where `limits.allow_runtime_options` is true"),
    (names.SINGULARITY_MOUNTS, "pod", "`--bind` words for apptainer or singularity, where the same is true"),
    (names.SINGULARITY_OPTIONS, "pod", "more of its options, likewise"),
    (names.ENROOT_MOUNTS, "pod", "mounts for enroot, likewise"),
    (names.ENROOT_OPTIONS, "pod", "more of its options, likewise"),
    (names.FUSE_PREFIX + "<volume>", "pod", "a script that mounts the volume, where `limits.allow_fuse` is true"),
    (names.CVMFS_PREFIX + "<volume>", "pod", "the volume is the site's CernVM-FS, where `volumes.cvmfs_path` is set"),
    (names.IMAGE_ROOT, "pod", "put before image names that are no path and no URL"),
    (names.JOB_WORKDIR, "pod", "where emptyDir volumes live, below one of `volumes.host_paths`"),
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
    """Return the rows of all annotations that a user may set."""
    rows = [[f"`{key.name}`", key.meaning, key.allowed, f"`{key.example}`", permission(key)] for key in KEYS.values()]
    return table(["annotation", "meaning", "allowed", "example", "needs a permission"], rows)


def configuration(model: type[BaseModel] = Config, prefix: str = "") -> list[list[str]]:
    """Return the rows of all keys of the configuration."""
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
    """Return the rows of all metrics."""
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
        [f"`{names.NODE_ANNOTATION}`", "annotation on the pod", "the node that Slurm gave"],
        [f"`{names.SLURM_NODE_ANNOTATION}`", "annotation on the pod", "Slurm's name of that node"],
        [f"`{names.FINALIZER}`", "finalizer of the pod", "held until the job is released"],
        [f"`{names.MANAGED_TAINT}`", "taint of nodes", "value: the scheduler's name; effect NoExecute"],
        [f"`{names.SLURM_NODENAME_LABEL}`", "label on a node", "set it where Slurm's name of the node differs"],
        [f"`{names.SLURM_REASON}`", "annotation on a node", "the Slurm state that a cordon of podbridge's mirrors"],
        [f"`{names.REMOTE_JOB}`", "annotation on the pod", "`<pool>/<job>`: the job at the site"],
        [
            f"`{names.POOL_TAINT}`",
            "taint of a virtual node",
            "value: the pool; effect NoSchedule; Kueue tolerates it for a pod",
        ],
        [f"`{names.VIRTUAL_TAINT}`", "taint of a virtual node", "value `true`; effect NoSchedule"],
        [f"`{names.POOL_LABEL}`", "label of a virtual node", "the pool that it stands for"],
        [f"`{names.SITE_FOLDER}`", "annotation of a virtual node", "id of the folder at the site that its jobs are in"],
    ]
    parts = [
        "# Reference",
        "<!-- written by hack/reference.py from the code; a test compares -->",
        "## Annotations of pods and their owners",
        "A pod's own annotation wins over its Job's (JobSet's, ...). Permissions: see [admission](admission.md).",
        annotations(),
        "## Annotations for pools",
        "How each is honoured: [scripts](scripts.md); what a site allows: [sites](sites.md).",
        table(["annotation", "where", "meaning"], [[f"`{name}`", *rest] for name, *rest in POOL_ANNOTATIONS]),
        "## Names that podbridge writes or reads",
        table(["name", "where", "what"], own),
        "## Configuration",
        "A YAML file, given with `--config`. Durations are seconds. `podbridge config check FILE` reads one and says "
        "what is wrong; `podbridge config schema` prints a JSON schema.",
        table(["key", "default", "meaning"], configuration()),
        "## Reasons on pods and nodes",
        table(["where", "reason", "meaning"], reasons),
        "## Metrics",
        "On `serving.metricsPort`, at `/metrics`.",
        table(["metric", "type", "meaning"], metric_rows()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text() else "docs/reference.md is out of date: run hack/reference.py")
    TARGET.write_text(text())
