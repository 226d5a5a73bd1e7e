"""An object that makes pods (Job, JobSet, LeaderWorkerSet and others) as users see it: its progress and why. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.apps.view import pod_counts, pod_view
from bridge.apps.view.pod_view import FAILED, RUNNING, STARTING, SUCCEEDED, WAITING, PodView
from bridge.apps.view.records import WorkloadRecord
from bridge.core.grouping import grouped
from bridge.kube.resources import Resource
from bridge.workload.kinds import job_kinds, pod_group_kinds
from bridge.workload.kinds.kind import number
from bridge.workload.pods import Pod

Manifest = Mapping[str, Any]
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", True)
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", True)
REFUSED = "FailedCreate"
"""Reason of the Events of controllers whose pods the API server does not accept."""


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind of owners. ``label`` of its pods has its name; ``size`` returns how many pods it makes, if it is known."""

    word: str
    resources: tuple[Resource, ...]
    label: str
    size: Callable[[Manifest], int | None]
    title: str
    controller: str = ""
    """The kind of the objects that create its pods, which have its name or begin with it; empty: itself."""


def _minimum(manifest: Manifest) -> int | None:
    return number((manifest.get("spec") or {}).get("minMember"))


def _job_size(manifest: Manifest) -> int | None:
    spec = manifest.get("spec") or {}
    return int(spec.get("completions") or spec.get("parallelism", 1))


def _lws_size(manifest: Manifest) -> int | None:
    spec = manifest.get("spec") or {}
    return int(spec.get("replicas", 1)) * int((spec.get("leaderWorkerTemplate") or {}).get("size", 1))


def _ray_size(manifest: Manifest) -> int | None:
    workers = (manifest.get("status") or {}).get("desiredWorkerReplicas")
    return workers + 1 if isinstance(workers, int) else None  # the head is no worker


KINDS: tuple[OwnerKind, ...] = (
    OwnerKind("job", job_kinds.JOB.resources, "batch.kubernetes.io/job-name", _job_size, "Job", "Job"),
    OwnerKind(
        "jobset",
        job_kinds.JOBSET.resources,
        job_kinds.JOBSET_NAME,
        lambda each: job_kinds.pods_of_jobset(each) or None,
        "JobSet",
        "Job",
    ),
    OwnerKind(
        "leaderworkerset", job_kinds.LWS.resources, job_kinds.LWS_NAME, _lws_size, "LeaderWorkerSet", "StatefulSet"
    ),
    OwnerKind("podgroup", pod_group_kinds.POD_GROUP.resources, pod_group_kinds.POD_GROUP_NAME, _minimum, "PodGroup"),
    # the JobSet of a TrainJob has its name
    OwnerKind("trainjob", (TRAIN_JOBS,), job_kinds.JOBSET_NAME, lambda _: None, "TrainJob", "Job"),
    OwnerKind("raycluster", (RAY_CLUSTERS,), pod_view.RAY_CLUSTER, _ray_size, "RayCluster"),
)


LISTED = KINDS[:3]
"""The kinds that :func:`records` lists: those that users create, without those that only add to others."""


@dataclass(frozen=True, slots=True)
class OwnerView:
    """The progress of an owner. ``size``: how many pods it makes; ``None``: not known.

    ``refusals`` are the messages of pods that were never created; ``ends`` those of pods that podbridge has ended, with
    their number.
    """

    size: int | None
    counts: Mapping[str, int]
    reasons: Sequence[pod_counts.Reason]
    failed: Sequence[PodView]
    refusals: Sequence[str]
    ends: Sequence[str]
    suspended: bool = False
    """Whether its controller makes no pods because of ``spec.suspend``, which Kueue sets."""

    @property
    def failures(self) -> list[str]:
        """The failed pods with their reasons."""
        return [f"{view.name}: {': '.join(filter(None, (view.reason, view.message)))}" for view in self.failed]

    @property
    def summary(self) -> str:
        """The progress in a line: ``3 of 8 pods done, 2 running, 3 waiting``."""
        counts = self.counts
        of = f" of {self.size}" if self.size is not None else ""
        parts = [f"{counts[SUCCEEDED]}{of} pods done"]
        parts += [f"{counts[state]} {state}" for state in (RUNNING, STARTING, WAITING, FAILED) if counts[state]]
        if self.refusals and not sum(counts.values()):
            return f"0{of} pods exist: their creation is refused"
        return ", ".join([*parts, *(["suspended"] if self.suspended else [])])

    @property
    def oldest_waiting(self) -> PodView | None:
        """The pod that waits longest."""
        return min(
            (reason.oldest for reason in self.reasons), key=lambda view: (view.times.created, view.name), default=None
        )


def of(kind: OwnerKind, manifest: Manifest, views: Sequence[PodView], events: Iterable[Manifest]) -> OwnerView:
    """Return the view of an owner from its pods and from the Events about it and its own controllers."""
    refusals: dict[str, None] = {}
    ends: dict[str, int] = {}
    for event in events:
        note = str(event.get("note") or "")
        if event.get("reason") == REFUSED:
            refusals.setdefault(_refusal(note))
        elif event.get("action") == names.ENDING:
            count = (event.get("series") or {}).get("count") or 1
            ends[note] = ends.get(note, 0) + int(count)
    counts, status = pod_counts.counts(views), manifest.get("status") or {}
    for state, name in ((SUCCEEDED, "succeeded"), (FAILED, "failed")):  # a Job counts pods that no longer exist, too
        if isinstance(status.get(name), int):
            counts[state] = max(counts[state], status[name])
    return OwnerView(
        size=kind.size(manifest),
        counts=counts,
        reasons=pod_counts.reasons(views),
        failed=[view for view in views if view.state == FAILED],
        refusals=list(refusals),
        ends=[f"{note}{f' ({count} times)' if count > 1 else ''}" for note, count in ends.items()],
        suspended=(manifest.get("spec") or {}).get("suspend") is True,
    )


def records(kind: OwnerKind, manifests: Iterable[Manifest], pods: Iterable[Pod]) -> list[WorkloadRecord]:
    """Return a record for each owner without a controller of its own: its progress and why most of its pods wait."""
    named = ((pod, (pod["metadata"].get("labels") or {}).get(kind.label)) for pod in pods)
    by_owner = grouped(((pod["metadata"]["namespace"], name), pod_view.of(pod)) for pod, name in named if name)
    result: list[WorkloadRecord] = []
    for manifest in manifests:
        metadata = manifest["metadata"]
        if any(reference.get("controller") for reference in metadata.get("ownerReferences") or ()):
            continue
        view = of(kind, manifest, by_owner.get((metadata["namespace"], metadata["name"]), ()), ())
        result.append(
            {
                "namespace": metadata["namespace"],
                "kind": kind.title,
                "name": metadata["name"],
                "pods": view.size,
                "done": view.counts[SUCCEEDED],
                "running": view.counts[RUNNING] + view.counts[STARTING],
                "waiting": view.counts[WAITING],
                "failed": view.counts[FAILED],
                "reason": view.reasons[0].name if view.reasons else "",
                "created": metadata.get("creationTimestamp", ""),
            }
        )
    return result


def concerns(kind: OwnerKind, name: str, event: Manifest) -> bool:
    """Whether an Event is about the owner of this name, or about an object that creates its pods."""
    about = event.get("involvedObject") or {}
    controller = kind.controller or kind.title
    if about.get("kind") == kind.title:
        return bool(about.get("name") == name)
    return about.get("kind") == controller and str(about.get("name")).startswith(f"{name}-")


def _refusal(note: str) -> str:
    """Return the reason of a refusal without the words of the API server and of the controller around it."""
    _, found, reason = note.partition("denied the request: ")
    return reason if found else note
