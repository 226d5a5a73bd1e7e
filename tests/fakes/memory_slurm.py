"""Jobs of a slurmctld in memory, and a poller of them; see :mod:`tests.fakes.memory_hub`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.clock import FakeClock
from bridge.errors import SlurmNotFoundError, SlurmRefusedError, SlurmUnavailableError, SlurmUnknownOutcomeError
from bridge.slurm import states
from bridge.slurm.models import ApiVersion, Job, JobLink, JobRequest, Node, ObservedJob, Snapshot, Submitted
from tests.fakes.memory_kube import Writes

VERSION = ApiVersion("v0.0.45", external_jobs=True)


@dataclass
class MemoryJob:
    """A job: its request, state and nodes."""

    job_id: int
    request: JobRequest
    state: str = "PENDING"
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def lives(self) -> bool:
        return self.state in ("PENDING", "RUNNING")

    def shown(self) -> Job:
        request = self.request
        return Job(self.job_id, frozenset({self.state}), request.link, self.nodes, excluded=",".join(self.excluded))


@dataclass
class MemorySlurm:
    """Jobs on whole nodes, each with room for one job. ``fault`` is what happens to the next submission."""

    writes: Writes
    node_names: tuple[str, ...]
    jobs: dict[int, MemoryJob] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)
    late: list[JobRequest] = field(default_factory=list)
    fault: str = ""
    version: ApiVersion = VERSION
    _last: int = 0

    def submit(self, request: JobRequest) -> Submitted:
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
        return Submitted(job.job_id)

    def add(self, request: JobRequest) -> MemoryJob:
        self._last += 1
        job = self.jobs[self._last] = MemoryJob(self._last, request, excluded=request.excluded_nodes)
        return job

    def job(self, job_id: int) -> Job:
        if job_id not in self.jobs:
            raise SlurmNotFoundError(str(job_id))
        return self.jobs[job_id].shown()

    def cancel(self, job_id: int) -> None:
        if job_id in self.jobs and self.jobs[job_id].lives:
            self.jobs[job_id].state = "CANCELLED"
        self.writes.done()

    def set_excluded_nodes(self, job_id: int, nodes: tuple[str, ...]) -> None:
        if job_id not in self.jobs or self.jobs[job_id].state != "PENDING":
            raise SlurmRefusedError("not pending")
        self.jobs[job_id].excluded = nodes
        self.writes.done()

    def set_node(self, name: str, state: str, reason: str = "") -> None:
        if state == "DRAIN":
            self.drained[name] = reason
        else:
            self.drained.pop(name, None)
        self.writes.done()

    def node(self, name: str) -> Node:
        reason = self.drained.get(name)
        return Node(name, frozenset({"IDLE"} if reason is None else {"IDLE", "DRAIN"}), reason or "")

    def start(self, job: MemoryJob) -> bool:
        """Start a pending job if enough nodes are free; return whether it runs."""
        taken = {node for other in self.jobs.values() if other.state == "RUNNING" for node in other.nodes}
        free = [n for n in self.node_names if n not in taken and n not in self.drained and n not in job.excluded]
        if job.state != "PENDING" or len(free) < job.request.min_nodes:
            return False
        job.state, job.nodes = "RUNNING", tuple(free[: job.request.max_nodes or job.request.min_nodes])
        return True

    def live(self, key: str = "") -> list[MemoryJob]:
        return [job for job in self.jobs.values() if job.lives and (not key or key in job.request.link.keys)]


@dataclass
class MemoryPoller:
    """Makes a snapshot of all jobs at each :meth:`poll`; counts confirmations as the real one."""

    slurm: MemorySlurm
    clock: FakeClock
    snapshot: Snapshot = field(default_factory=Snapshot)
    _expected: dict[int, JobLink] = field(default_factory=dict)

    def wake(self, nodes: bool = False) -> None:
        """Do nothing: the test polls."""

    def list_all(self) -> None:
        """Do nothing: each poll lists all jobs."""

    def subscribe(self, fn: Callable[..., None]) -> None:
        """Do nothing: the test wakes the loops."""

    def expect(self, job_id: int, link: JobLink, *, sure: bool = True) -> None:
        del sure
        self._expected[job_id] = link

    def poll(self) -> None:
        before, found = self.snapshot.jobs, {}
        for job in self.slurm.jobs.values():
            found[job.job_id] = self._observed(job.shown(), before.get(job.job_id), missing=False)
        known = {job_id: entry.job for job_id, entry in before.items()}
        known |= {job_id: Job(job_id, frozenset(), link) for job_id, link in self._expected.items()}
        for job_id, was in known.items():
            entry = self._observed(was, before.get(job_id), missing=True)
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

    def _observed(self, job: Job, before: ObservedJob | None, *, missing: bool) -> ObservedJob:
        if not missing and states.end_of(job.states) is None:
            return ObservedJob(job)
        same = before is not None and before.missing == missing and before.job.states == job.states
        return ObservedJob(job, before.confirmations + 1 if same and before else 1, missing, self.clock.monotonic())
