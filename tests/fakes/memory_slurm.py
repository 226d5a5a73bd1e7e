"""Jobs of a slurmctld in memory, and a poller of them; see :mod:`tests.fakes.memory_hub`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.errors import SlurmNotFoundError, SlurmRefusedError, SlurmUnavailableError, SlurmUnknownOutcomeError
from bridge.http import fencing
from bridge.slurm import states
from bridge.slurm.allotments import Allotment
from bridge.slurm.cancelling import Cancellations
from bridge.slurm.components import Component, joined
from bridge.slurm.models import Job, JobLink, JobRequest, Node, ObservedJob, Snapshot, SubmissionResult
from bridge.slurm.versions import ApiVersion
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import Writes

CLUSTER, OTHER_CLUSTER = "c1", "c2"
VERSION = ApiVersion("v0.0.45", external_jobs=True, heterogeneous=True, external_components=True)
LIVE = ("PENDING", "RUNNING", "SUSPENDED")
HOLDS = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "COMPLETING"})
"""Flags of a pending job that does not start."""
_NEW = ObservedJob(Job(0, frozenset()))


@dataclass
class MemoryJob:
    """A job: its request, states and nodes; ``components`` are those of a heterogeneous job after the first."""

    job_id: int
    request: JobRequest
    state: str = "PENDING"
    flags: frozenset[str] = frozenset()
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    components: list[MemoryJob] = field(default_factory=list)
    moved_cpus: int = 0
    """CPUs that the first node has more, and the last one less, than the request for each node."""

    @property
    def all(self) -> list[MemoryJob]:
        """The components, or the job itself."""
        return [self, *self.components]

    @property
    def lives(self) -> bool:
        """Whether the job or any of its components is pending or runs."""
        return any(part.state in LIVE for part in self.all)

    def set(self, state: str, *flags: str) -> None:
        """Set the state and flags of all components that live; a pending job has no nodes."""
        for part in self.all:
            if part.state in LIVE:
                part.state, part.nodes = state, () if state == "PENDING" else part.nodes
                part.flags = frozenset(flags)

    @property
    def ours(self) -> bool:
        return self.request.link.cluster == CLUSTER

    def shown(self) -> Job:
        leader = self.job_id if self.components else 0
        return joined(Component(leader, number, part._shown()) for number, part in enumerate(self.all))[0]

    def _shown(self) -> Job:
        found = frozenset({self.state, *self.flags})
        excluded, given = ",".join(self.excluded), self.allotment() if self.nodes else None
        return Job(self.job_id, found, self.request.link, self.nodes, excluded=excluded, allotment=given)

    def allotment(self) -> Allotment:
        """Return what the job has on its nodes: what it requested, and what its owner has left of it."""
        asked, nodes = self.request, len(self.nodes)
        cpus = asked.cpus * max(1, asked.tasks_per_node)
        gres = tuple((name, int(count)) for name, _, count in (one.rpartition(":") for one in asked.gres))
        more = [self.moved_cpus, *[0] * (nodes - 2), -self.moved_cpus]
        shares = [Allotment(cpus + extra, asked.memory_mib, gres) for extra in more]
        each = tuple(zip(self.nodes, shares, strict=True)) if nodes > 1 else ()
        total = tuple((name, count * nodes) for name, count in gres)
        return Allotment(cpus * nodes, asked.memory_mib * nodes, total, each)


@dataclass
class MemorySlurm:
    """Jobs on whole nodes, each with room for one job. ``fault`` is what happens to the next submission.

    ``jobs`` has a heterogeneous job once, under the id of its first component.
    ``on_submit``, ``on_cancel`` and ``on_shrink`` are called right before the hub submits, cancels or shrinks a job.
    ``moved`` are the ids of jobs that have ended, or were requeued, by something else than the hub; ``cancelled`` those
    that the hub has ended.
    """

    writes: Writes
    node_names: tuple[str, ...]
    jobs: dict[int, MemoryJob] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)
    asleep: dict[str, str] = field(default_factory=dict)
    """The state of the nodes that power saving stops or starts, by name."""
    late: list[JobRequest] = field(default_factory=list)
    fault: str = ""
    version: ApiVersion = VERSION
    on_submit: Callable[[JobRequest], None] = lambda request: None
    on_cancel: Callable[[MemoryJob], None] = lambda job: None
    on_shrink: Callable[[MemoryJob, tuple[str, ...]], None] = lambda job, nodes: None
    moved: set[int] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    _last: int = 0

    def submit(self, request: JobRequest) -> SubmissionResult:
        _check_fence()
        self.on_submit(request)
        fault, self.fault = self.fault, ""
        if fault == "refused":
            raise SlurmRefusedError("no such partition")
        if fault == "unavailable":
            raise SlurmUnavailableError("no answer")
        if fault == "lost":
            raise SlurmUnknownOutcomeError("no answer")
        if fault == "late":
            self.late.append(request)
            self.writes.done()
            raise SlurmUnknownOutcomeError("no answer")
        job = self.add(request)
        self.writes.done()
        if fault == "unanswered":
            raise SlurmUnknownOutcomeError("no answer")
        return SubmissionResult(job.job_id)

    def add(self, request: JobRequest) -> MemoryJob:
        made = []
        for part in (request, *request.components):
            made.append(MemoryJob(self._next_id(), part, excluded=part.excluded_nodes))
        made[0].components = made[1:]
        self.jobs[made[0].job_id] = made[0]
        self.cancelled.discard(made[0].job_id)
        return made[0]

    def _next_id(self) -> int:
        """Return the next id that no job has: slurmctld assigns that of a job again only after it has lost the job."""
        self._last += 1
        while self.find(self._last) is not None:
            self._last += 1
        return self._last

    def find(self, job_id: int) -> MemoryJob | None:
        """Return a job, or a component by its own id."""
        found = self.jobs.get(job_id)
        parts = (part for job in self.jobs.values() for part in job.components if part.job_id == job_id)
        return found or next(parts, None)

    def job(self, job_id: int) -> Job:
        if job_id not in self.jobs:
            raise SlurmNotFoundError(str(job_id))
        return self.jobs[job_id].shown()

    def cancel(self, job_id: int) -> None:
        _check_fence()
        self.writes.answered(lambda: self._cancel(job_id), SlurmUnknownOutcomeError)

    def _cancel(self, job_id: int) -> None:
        job = self.find(job_id)
        if job is not None:
            if job.lives:
                self.on_cancel(job)
                self.cancelled.add(job.job_id)
            job.set("CANCELLED")
        self.writes.done()

    def set_excluded_nodes(self, job_id: int, nodes: tuple[str, ...]) -> None:
        _check_fence()
        self.writes.answered(lambda: self._set_excluded_nodes(job_id, nodes), SlurmUnknownOutcomeError)

    def _set_excluded_nodes(self, job_id: int, nodes: tuple[str, ...]) -> None:
        job = self.find(job_id)
        if job is None or job.state != "PENDING":
            raise SlurmRefusedError("not pending")
        if not {*nodes, *job.excluded} <= {*self.node_names}:
            raise SlurmRefusedError("Invalid node name specified", code=2018)
        job.excluded = nodes
        self.writes.done()

    def shrink(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Let a running job keep some of its nodes; slurmctld refuses others, and none."""
        _check_fence()
        self.writes.answered(lambda: self._shrink(job_id, nodes), SlurmUnknownOutcomeError)

    def _shrink(self, job_id: int, nodes: tuple[str, ...]) -> None:
        job = self.find(job_id)
        if job is None or job.state != "RUNNING" or not nodes or not {*nodes} <= {*job.nodes}:
            raise SlurmRefusedError("Invalid node name specified", code=2018)
        self.on_shrink(job, nodes)
        job.nodes = tuple(node for node in job.nodes if node in nodes)
        self.writes.done()

    def set_node(self, name: str, state: str, reason: str = "") -> None:
        _check_fence()
        self.writes.answered(lambda: self._set_node(name, state, reason), SlurmUnknownOutcomeError)

    def _set_node(self, name: str, state: str, reason: str = "") -> None:
        if state == "DRAIN":
            self.drained[name] = reason
        else:
            self.drained.pop(name, None)
        self.writes.done()

    def node(self, name: str) -> Node:
        reason, shown = self.drained.get(name), {"IDLE"}
        if reason is not None:
            shown |= {"DRAIN"}
        if name in self.asleep:
            used = any(name in part.nodes for part in self._running())
            shown = (shown - {"IDLE"}) | {"ALLOCATED" if used else "IDLE", "CLOUD", self.asleep[name]}
        return Node(name, frozenset(shown), reason or "")

    def _running(self) -> list[MemoryJob]:
        parts = (part for job in self.jobs.values() for part in job.all)
        return [part for part in parts if part.state in ("RUNNING", "SUSPENDED")]

    def start(self, job: MemoryJob) -> bool:
        """Start a pending job if enough nodes are free, each component on nodes of its own; return whether it runs."""
        taken = {node for part in self._running() for node in part.nodes} | self.drained.keys()
        given = []
        for part in job.all:
            free = [name for name in self.node_names if name not in taken and name not in part.excluded]
            if part.state != "PENDING" or not HOLDS.isdisjoint(part.flags) or len(free) < part.request.min_nodes:
                return False
            given.append(tuple(free[: part.request.max_nodes or part.request.min_nodes]))
            taken |= {*given[-1]}
        for part, nodes in zip(job.all, given, strict=True):
            part.state, part.nodes, part.flags = "RUNNING", nodes, frozenset()
        return True

    def live(self) -> list[MemoryJob]:
        """Return the jobs of this cluster that have not ended."""
        return [job for job in self.jobs.values() if job.lives and job.ours]

    def lose(self, job: MemoryJob, *, reuse: bool) -> None:
        """Forget a job, as a slurmctld that has lost its state; ``reuse``: another cluster gets its id at once.

        That cluster has a pod with the same UID: it is a restored copy of this one.
        """
        self.moved.add(job.job_id)
        del self.jobs[job.job_id]
        self._last = min(self._last, job.job_id - 1)
        if reuse:
            request = replace(job.request, link=replace(job.request.link, cluster=OTHER_CLUSTER))
            self.jobs[job.job_id] = MemoryJob(job.job_id, request, "RUNNING")


def _polled(shown: Job, before: ObservedJob | None) -> Job:
    """Return a job as a poll shows it: one that has lost nodes has the same state, so a poll does not read it."""
    if before is None or before.missing or (before.job.link, before.job.states) != (shown.link, shown.states):
        return shown
    return before.job if {*shown.nodes} < {*before.job.nodes} else shown


def _check_fence() -> None:
    """Do what :mod:`bridge.http.curl_client` does before it sends a request."""
    check = fencing.current()
    if check is not None:
        check()


class MemoryClient:
    """The client of one process, which knows the jobs that this process has cancelled."""

    def __init__(self, slurm: MemorySlurm, clock: FakeClock) -> None:
        self._slurm = slurm
        self.cancellations = Cancellations(clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def submit(self, request: JobRequest) -> SubmissionResult:
        submitted = self._slurm.submit(request)
        self.cancellations.forget(submitted.job_id)
        return submitted

    def cancel(self, job_id: int) -> None:
        with self.cancellations.sending(job_id):
            self._slurm.cancel(job_id)


@dataclass
class MemoryPoller:
    """Makes a snapshot of all jobs of the cluster at each :meth:`poll`; counts confirmations as the real one.

    ``hidden``: a known job that the next answer does not contain, as that of a proxy.
    """

    slurm: MemorySlurm
    clock: FakeClock
    snapshot: Snapshot = field(default_factory=Snapshot)
    hidden: int = 0
    _expected: dict[int, JobLink] = field(default_factory=dict)

    def wake(self, nodes: bool = False) -> None:
        """Do nothing: the test polls."""

    def hurry(self) -> None:
        """Do nothing: each poll reads all jobs."""

    def list_all(self, at: float | None = None) -> None:
        """Do nothing: each poll lists all jobs."""

    @property
    def expected(self) -> frozenset[int]:
        return frozenset(self._expected)

    def subscribe(self, fn: Callable[..., None]) -> None:
        """Do nothing: the test wakes the loops."""

    def expect(self, job_id: int, link: JobLink, *, sure: bool = True) -> None:
        del sure
        self._expected[job_id] = link

    def read(self, job_id: int) -> None:
        """Read one job alone."""
        job, known = self.slurm.jobs.get(job_id), self.snapshot.jobs.get(job_id)
        if job is None or known is None or known.missing or known.job.link != job.request.link:
            raise SlurmUnavailableError("another job")
        seen = {**self.snapshot.jobs, job_id: self._observed(job.shown(), known, missing=False)}
        self.snapshot = replace(self.snapshot, jobs=seen)

    def poll(self) -> None:
        before, found = self.snapshot.jobs, {}
        hidden, self.hidden = self.hidden if self._is_known(self.hidden) else 0, 0
        shown = [job for job in self.slurm.jobs.values() if job.ours and job.job_id != hidden]
        for job in shown:
            found[job.job_id] = self._observed(
                _polled(job.shown(), before.get(job.job_id)), before.get(job.job_id), missing=False
            )
        known = {job_id: entry.job for job_id, entry in before.items()}
        known |= {job_id: Job(job_id, frozenset(), link) for job_id, link in self._expected.items()}
        for job_id, was in known.items():
            # a new job that has the id of a lost one: nothing has been counted yet
            counted = None if job_id in self._expected and before.get(job_id, _NEW).missing else before.get(job_id)
            entry = self._observed(was, counted, missing=True)
            if job_id not in found and (entry.confirmations < 10 or job_id in self._expected):
                found[job_id] = entry
        self._expected.clear()
        by_uid: dict[str, tuple[int, ...]] = {}
        for job_id in sorted(found):
            for key in found[job_id].job.link.keys:
                by_uid[key] = (*by_uid.get(key, ()), job_id)
        nodes = {name: self.slurm.node(name) for name in self.slurm.node_names}
        now = self.clock.monotonic()
        self.snapshot = Snapshot(self.snapshot.sequence + 1, now, 0, found, by_uid, nodes)

    def _is_known(self, job_id: int) -> bool:
        """Whether the last answer had this job, and not an earlier one with the same id."""
        known, job = self.snapshot.jobs.get(job_id, _NEW), self.slurm.jobs.get(job_id)
        link = known.job.link
        return link is not None and job is not None and not known.missing and link.keys == job.request.link.keys

    def _observed(self, job: Job, before: ObservedJob | None, *, missing: bool) -> ObservedJob:
        if not missing and states.end_of(job.states) is None:
            live = before is not None and not before.missing and not before.confirmations
            return before if before is not None and live and before.job == job else ObservedJob(job)
        same = before is not None and before.missing == missing and before.job.states == job.states
        return ObservedJob(job, before.confirmations + 1 if same and before else 1, missing, self.clock.monotonic())
