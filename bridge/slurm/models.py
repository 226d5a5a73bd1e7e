"""Requests to Slurm and data from Slurm, the same for every API version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from bridge.errors import SlurmError
from bridge.slurm import hostlist
from bridge.slurm.allotments import Allotment


@dataclass(frozen=True, slots=True)
class PodRef:
    """One pod of a job, as in the comment of the job."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The pods that share one job: all members of one object of ``kind``, or of its part ``index``.

    ``name`` is the name of the object, and ``uid`` its UID; for a bare pod (kind ``pod``) those of the pod. ``uid`` is
    empty for Kueue's plain pod groups, which have no object. ``index`` is a replicated job or a replica of a
    LeaderWorkerSet, empty for the whole object.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    index: str = ""

    @property
    def key(self) -> str:
        """The identity of the group within the cluster; differs from every UID of a pod."""
        return "/".join((self.kind, self.uid or f"{self.namespace}/{self.name}", self.index))


@dataclass(frozen=True, slots=True)
class JobLink:
    """The pod or the group of a job, stored in its ``admin_comment`` (in ``comment`` if the API cannot set that).

    ``cluster`` is the UID of the Kubernetes namespace kube-system. Several clusters may share one Slurm, and none may
    cancel the jobs of another. A job of a ``group`` has no ``pods``: Slurm limits a comment to 1,024 characters.
    ``size`` is the number of members for which the job was submitted, ``shape`` a digest of what each of them requests
    (:func:`bridge.workload.links.shape`); it is not part of the identity, and empty while the comment is unread. The
    comment of a component of a heterogeneous job has the ``shape`` of its own members, the number of the component
    (``part``), of all components (``parts``) and of its ``members``; ``together`` of them may share a node.
    ``completed`` is the number of members that had succeeded before the submission: the job starts without them; it is
    not part of the identity. ``traceparent`` is the W3C trace context of the first pod if traces are sent, for the
    tools of the site: podbridge writes it, but does not read it.
    """

    cluster: str
    pods: tuple[PodRef, ...]
    group: GroupRef | None = None
    size: int = 1
    shape: str = field(default="", compare=False)
    part: int = field(default=0, compare=False)
    parts: int = field(default=1, compare=False)
    completed: int = field(default=0, compare=False)
    traceparent: str = field(default="", compare=False)
    members: int = field(default=0, compare=False)
    together: int = field(default=1, compare=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys by which pods find the job: the key of the group, else the UIDs of the pods."""
        return (self.group.key,) if self.group is not None else tuple([pod.uid for pod in self.pods])

    @property
    def namespace(self) -> str:
        """The namespace of the group, or of the first pod: all pods of a job are in one namespace."""
        return self.group.namespace if self.group is not None else self.pods[0].namespace

    @property
    def names(self) -> list[str]:
        """``namespace/name`` of each pod, or ``kind namespace/name``, with the index, of the group."""
        if self.group is None:
            return [f"{pod.namespace}/{pod.name}" for pod in self.pods]
        part = f"[{self.group.index}]" if self.group.index else ""
        return [f"{self.group.kind} {self.group.namespace}/{self.group.name}{part}"]


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request for one placeholder job.

    ``cpus`` is the number of CPUs of a task, ``tasks_per_node`` the largest number of tasks on a node (0: no limit),
    ``memory_mib`` the MiB of a node, ``time_limit`` in minutes; Slurm's default applies to values of 0 or empty.
    ``gres`` holds expressions like ``gpu:2`` or ``gpu:a100:1``. ``external``: a job without any process. ``components``
    are the further components of a heterogeneous job, of which the request itself is the first.
    """

    name: str
    link: JobLink
    external: bool
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraints: str = ""
    licenses: str = ""
    reservation: str = ""
    wckey: str = ""
    mcs_label: str = ""
    user_id: str = ""
    group_id: str = ""
    priority: int | None = None
    cpus: int = 0
    memory_mib: int = 0
    gres: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int | None = None
    tasks: int = 1
    tasks_per_node: int = 0
    time_limit: int = 0
    exclusive: bool = False
    excluded_nodes: tuple[str, ...] = ()
    components: tuple[JobRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class JobPart:
    """A component of a heterogeneous job, with its own id.

    ``shape``, ``members`` and ``together`` are those of its comment; ``excluded`` is a hostlist.
    """

    job_id: int
    states: frozenset[str]
    nodes: tuple[str, ...] = ()
    shape: str = ""
    excluded: str = ""
    members: int = 0
    together: int = 1
    allotment: Allotment | None = field(default=None, compare=False)
    batch_host: str = field(default="", compare=False)

    @property
    def excluded_nodes(self) -> tuple[str, ...]:
        """The sorted names of the excluded nodes."""
        return _names(self.excluded)


@dataclass(frozen=True, slots=True)
class Job:
    """A job in Slurm. ``states`` as in :mod:`bridge.slurm.states`; times in seconds since the epoch, 0 if unset.

    A heterogeneous job has ``parts``, its components. Its ``states`` are those of all of them
    (:func:`bridge.slurm.components.combined`), its ``nodes`` those of the parts one after the other; the other fields
    are those of the first component.
    """

    job_id: int
    states: frozenset[str]
    link: JobLink | None = None
    nodes: tuple[str, ...] = ()
    reason: str = ""
    description: str = ""
    name: str = ""
    partition: str = ""
    user_name: str = ""
    submit_time: float = 0
    start_time: float = 0
    time_limit: int = 0
    restarts: int = 0
    exit_code: int = 0
    excluded: str = ""
    """The excluded nodes as a hostlist; jobs with the same hostlist share one text."""
    priority: int = field(default=0, compare=False)
    """0: held, or not read. It changes with the age of the job and is no reason for a new decision."""
    is_array_task: bool = field(default=False, compare=False)
    """Whether the id was assigned later than the submission: a task of an array gets it when it starts or changes."""
    parts: tuple[JobPart, ...] = ()
    allotment: Allotment | None = field(default=None, compare=False)
    """What Slurm has given to the job, as read when its nodes were read; ``None`` before, and for one with ``parts``.
    The two answers that show it may differ in form, and that is no reason for a new decision."""
    batch_host: str = field(default="", compare=False)
    """The node on which the script of a batch job runs, as read with the details of a job that runs."""
    request: Allotment | None = field(default=None, compare=False)
    """What the job asks for on all nodes together, as Slurm counts it: with Slurm's own default of memory."""
    end_time: float = field(default=0, compare=False)
    """When its time limit ends a job that runs; a year after its start without a time limit."""

    @property
    def excluded_nodes(self) -> tuple[str, ...]:
        """The sorted names of the excluded nodes; jobs with the same hostlist share one tuple."""
        return _names(self.excluded)

    def allotment_on(self, nodes: tuple[str, ...]) -> Allotment | None:
        """Return the allotment by node of the job, or of its component with these nodes; ``None`` if not known."""
        allotments = (part.allotment for part in self.parts or (self,) if part.nodes == nodes)
        return next((allotment for allotment in allotments if allotment is not None and allotment.nodes), None)

    def with_allotments(self, allotment_by_id: Mapping[int, Allotment]) -> Job:
        """Return the job with its allotments; the keys are its own id or the ids of its components."""
        if allotment_by_id.keys().isdisjoint((self.job_id, *(part.job_id for part in self.parts))):
            return self
        if not self.parts:
            return replace(self, allotment=allotment_by_id[self.job_id])
        parts = (replace(part, allotment=allotment_by_id.get(part.job_id, part.allotment)) for part in self.parts)
        return replace(self, parts=tuple(parts))

    def component_on(self, node: str) -> int:
        """Return the id of the component that has the node, or of the job; two components share no node."""
        return next((part.job_id for part in self.parts if node in part.nodes), self.job_id)


@lru_cache(maxsize=64)  # about the number of different pod specs
def _names(text: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(hostlist.expand(text)))
    except SlurmError:
        return ()


@dataclass(frozen=True, slots=True)
class Node:
    """A node in Slurm. ``memory_mib`` is RealMemory; ``reason`` is that of the administrator or of Slurm.

    ``usable_cpus`` are the CPUs without those of CoreSpecCount, 0 if the API version does not show them (22.05);
    ``reserved_mib`` is MemSpecLimit. ``held_cpus``, ``held_mib`` and ``held_gres`` are what the jobs of all users have;
    they change with each job and are no reason for a new decision.
    """

    name: str
    states: frozenset[str]
    reason: str = ""
    cpus: int = 0
    memory_mib: int = 0
    gres: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    usable_cpus: int = 0
    reserved_mib: int = 0
    held_cpus: int = field(default=0, compare=False)
    held_mib: int = field(default=0, compare=False)
    held_gres: str = field(default="", compare=False)


HIGHEST_ID = 0x03FFFFFF
"""Largest job id outside of a federation (MAX_JOB_ID in slurm.h)."""
CONFIRMATIONS = 2
"""Number of answers in a row that must report the same end of a job before podbridge acts on it."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job in the snapshot.

    ``confirmations`` counts the separate authoritative answers in a row in which slurmctld reported the same end of the
    job (a terminal state, or "no such job"); 0 while the job is pending or allocated. podbridge terminates no pod
    before the end is confirmed (:attr:`is_confirmed`). ``missing``: slurmctld reports that it knows no such job;
    ``job`` is then the job as last read. ``since`` is the monotonic time of the first of these answers.
    """

    job: Job
    confirmations: int = 0
    missing: bool = False
    since: float = 0

    @property
    def is_confirmed(self) -> bool:
        """Whether slurmctld has reported the end of the job often enough."""
        return self.confirmations >= CONFIRMATIONS


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition in Slurm. ``max_minutes`` is its largest time limit (0: no limit).

    ``default_memory``: whether it has DefMemPerCPU or DefMemPerNode itself; those of slurm.conf are in no answer.
    """

    name: str
    nodes: tuple[str, ...] = ()
    default: bool = False
    max_minutes: int = 0
    default_memory: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One consistent, read-only view of Slurm, shared by the whole process.

    ``sequence`` increases with each authoritative answer; 0 means that slurmctld has not answered yet. ``began`` is the
    monotonic time of the request for the last answer: the answer contains every earlier change. ``settled_since`` is
    the monotonic time since which slurmctld has answered every poll. ``jobs`` holds only podbridge's jobs of this
    cluster, by id; ``by_uid`` holds the ids of the jobs of a pod UID or of the key of a group, lowest first.
    """

    sequence: int = 0
    began: float = 0
    settled_since: float = 0
    jobs: Mapping[int, ObservedJob] = field(default_factory=dict)
    by_uid: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    error: str = ""
    absent: frozenset[int] = frozenset()
    """Ids in ``jobs`` that are missing from the last list of all jobs."""
    unread: Set[int] = frozenset()
    """Ids that slurmctld has listed, of jobs whose details have not been read yet."""
    list_age: float = 0
    """Seconds from the request for the last list of all jobs of which every new job has been read until ``began``;
    infinite if there was none."""

    partial_age: float = math.inf
    """Seconds from the request for the last list of all jobs until ``began``, also if not every new job of that list
    has been read; infinite if there was none."""
    partial_since: float = math.inf
    """Time of slurmctld (seconds since the epoch): every job of that list that was submitted later has been read."""

    @property
    def listed_at(self) -> float:
        """The monotonic time up to which the snapshot contains every submitted job, also one with an unknown id."""
        return self.began - self.list_age if self.list_age < math.inf else -math.inf

    @property
    def requested_at(self) -> float:
        """The monotonic time of the request for the last list of all jobs, read or not."""
        age = min(self.partial_age, self.list_age)
        return self.began - age if age < math.inf else -math.inf

    def listed_for(self, since: float) -> float:
        """Return, as :attr:`listed_at`, the time for jobs that were submitted after ``since`` on slurmctld's clock."""
        return max(self.listed_at, self.requested_at) if since > self.partial_since else self.listed_at


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """A submitted job; ``warning`` is the message that slurmctld returned with the id."""

    job_id: int
    warning: str = ""


JsonObject = dict[str, Any]
