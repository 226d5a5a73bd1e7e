"""The record of one job at the site: the request, the last answer of the batch system, what the script wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bridge.core.job_lifecycle import NEVER, Lifecycle, State
from bridge.protocol.model.identifiers import Namespace, PodName
from bridge.protocol.model.requests import PlaceInJob
from bridge.site.batch.batch_interface import BatchJob, Finite


@dataclass(frozen=True, slots=True)
class Part:
    """``size`` pods of a group with consecutive ranks that request the same, each: a component of its job."""

    size: int
    per_node: int
    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    flavor: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gang:
    """The group whose one job a job is: the cluster of its ``size`` pods, of which ``per_node`` may share a machine.

    ``parts``: of a heterogeneous job, which replace ``per_node`` and the resources of its record; empty: the pods
    request the same, or the group was never complete.
    """

    owner: str
    size: int
    per_node: int
    mpi: str = "none"
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """The index of a pod in an array that was submitted, or was about to be."""

    array: str
    index: int


@dataclass(frozen=True, slots=True)
class Meta:
    """The request without its script. ``attempted_at``: time of the last submission.

    ``owner``: the cluster that submitted it; empty in directories of adopted jobs.
    ``adopted``: another program submitted the job (:mod:`bridge.site.interlink_slurm.adoption`), so podbridge never
    submits it, and no script of podbridge hears a request to end. ``grant_wait``: seconds for which the script waits
    for a grant; ``None``: it needs none. ``replaced``: ids of the batch jobs of earlier submissions that ended unused.
    ``place``: of a pod that runs in the job of its group. ``gang``: set if this is the job of a group: it has no owner,
    and the resources are those of each pod. ``run``: earlier jobs of the group that ended unused, of its job and of its
    pods. ``attempts``: submissions to the batch system; 0: the group is incomplete.
    ``array``: equal pods with the same value may be one array; empty: none. ``task``: the index in the last array.
    """

    namespace: Namespace
    name: PodName
    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    time_limit: Finite | None
    flags: tuple[str, ...]
    flavor: str
    grace: Finite
    submitted_at: Finite
    attempted_at: Finite
    attempts: int = 1
    owner: str = ""
    adopted: bool = False
    grant_wait: Finite | None = None
    replaced: tuple[str, ...] = ()
    place: PlaceInJob | None = None
    gang: Gang | None = None
    run: int = 0
    array: str = ""
    task: Task | None = None


SHAPE = ("namespace", "cpus", "memory", "gpus", "gpu_resource", "flavor", "flags")
"""What decides the options of a batch job beside its time limit: equal for all pods of a group, and of an array."""


def part_of(meta: Meta, size: int, per_node: int) -> Part:
    """Return a component of ``size`` pods that request the same as this one."""
    return Part(size, per_node, meta.cpus, meta.memory, meta.gpus, meta.gpu_resource, meta.flavor, meta.flags)


def parts_of(meta: Meta) -> tuple[Part, ...]:
    """Return the components of a job; one if it is that of a single pod, or of pods that request the same."""
    if meta.gang is None:
        return (part_of(meta, 1, 1),)
    return meta.gang.parts or (part_of(meta, meta.gang.size, meta.gang.per_node),)


def shape(meta: Meta) -> tuple[object, ...]:
    """Return the values that are equal for all pods of an array."""
    return (*(getattr(meta, name) for name in SHAPE), meta.time_limit)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """``cancel.json``: the cancellation request, with a grace period of ``grace`` seconds.

    ``at`` is for people: a time of the machine that received the request. The grace period starts when the leader first
    reads this file, by the leader's own clock. ``withdrawn``: the pod may be submitted again.
    """

    at: Finite
    grace: Finite
    forget: bool = False
    withdrawn: bool = False

    def merged(self, later: Cancellation) -> Cancellation:
        """Return the request that fulfils both."""
        # not by their times: the first may have been taken with another machine's clock
        sooner = min(self, later, key=lambda cancel: cancel.grace)
        forget, withdrawn = self.forget or later.forget, self.withdrawn and later.withdrawn
        return replace(sooner, forget=forget, withdrawn=withdrawn)


@dataclass(frozen=True, slots=True)
class BatchObservation:
    """``batch.json``: what the batch system reports, and since when.

    ``run``: that of the record from which it was written, see :class:`Meta`; ``None``: written under the job's lock.
    """

    at: Finite
    job: BatchJob
    run: int | None = None


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The content of a job's directory. ``pod`` and ``containers`` are the script's own records, not validated yet."""

    uid: str
    meta: Meta
    job_id: str = ""
    started: bool = False
    started_job: str = ""
    pod: dict[str, Any] | None = None
    containers: tuple[tuple[str, dict[str, Any]], ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    """Termination messages of containers by name; ``<name>.previous`` is that of the run before."""
    batch: BatchJob | None = None
    batch_at: float = 0.0
    """When the batch system first reported this phase."""
    cancel: Cancellation | None = None
    grant: str = ""
    """The ticket of the script that may begin, as the hub has sent it."""
    launcher: JobRecord | None = None
    """Of a pod that needs a grant in the job of its group: the record of that job, whose script waits."""
    found_at: float = 0.0
    """Start of this process: it can only have received reasons for an end since then."""

    @property
    def waiter(self) -> JobRecord:
        """The record of the script that waits for the grant: the pod's own, or that of its group's job."""
        return self.launcher or self

    @property
    def final(self) -> bool:
        """Whether the script recorded its end."""
        return self.pod is not None and self.pod.get("phase") in ("Succeeded", "Failed")

    @property
    def awaits_array(self) -> bool:
        """Whether the leader has yet to submit it in an array."""
        if not self.meta.array or self.meta.task is not None or self.cancel is not None:
            return False
        return not (self.job_id or self.started or self.end_confirmed)

    @property
    def end_confirmed(self) -> bool:
        """Whether the batch system has reported the end of the job."""
        return self.batch is not None and self.batch.phase == "ended"

    def lifecycle(self, settle: float, requested_at: float = NEVER) -> Lifecycle:
        """Return what is known of the batch job from its directory and the last look for it, at ``requested_at``.

        A job whose directory has no id was not found; but a pod that waits for its group has a status. ``settle``:
        seconds after a submission in which the job may still appear.
        """
        if self.awaits_array:
            return Lifecycle(State.WANTED)
        if self.end_confirmed:
            return Lifecycle(State.ENDED)
        if self.started or self.job_id or (self.meta.place is not None and self.batch is not None):
            return Lifecycle(State.STARTED if self.started else State.KNOWN)
        until = self.meta.attempted_at + settle if self.meta.attempts else NEVER
        return Lifecycle(State.UNKNOWN, until=until).denied(requested_at)
