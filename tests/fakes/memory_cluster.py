"""An API server and a slurmctld in memory, and the hub on them, for machines that try many orders of events.

The loops, decisions and actions are the real ones. Nothing runs by itself: the test decides when a loop decides, which
queued action runs next, when a watch delivers, when a poll reads and when a process is killed. So one process can try
thousands of orders in seconds; what real servers answer is the matter of the contract and e2e tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.clock import FakeClock
from bridge.config import Config
from bridge.errors import (
    BridgeError,
    KubeConflictError,
    KubeNotFoundError,
    SlurmNotFoundError,
    SlurmRefusedError,
    SlurmUnavailableError,
    SlurmUnknownOutcomeError,
)
from bridge.kube.object_store import Change, Object, ObjectStore
from bridge.loop import Dependencies
from bridge.slurm import states
from bridge.slurm.models import ApiVersion, Job, JobLink, JobRequest, Node, ObservedJob, Snapshot, Submitted
from bridge.workload import pods
from controllers.loop import Controllers
from scheduler.loop import Scheduler

CLUSTER = "c1"
VERSION = ApiVersion("v0.0.45", external_jobs=True)


class Killed(BaseException):
    """The process was killed with SIGKILL between two writes; no handler of the product catches it."""


@dataclass
class Writes:
    """Counts the writes of the hub, and kills it after the next ``kill_after`` ones."""

    count: int = 0
    kill_after: int | None = None

    def done(self) -> None:
        self.count += 1
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after <= 0:
                self.kill_after = None
                raise Killed


class MemoryCache(ObjectStore):
    """A cache that gets its changes from :meth:`MemoryKube.deliver`."""

    synced = True

    def __init__(self, objects: list[Object], pick: Callable[[Object], bool] = lambda _: False) -> None:
        super().__init__(pick)
        self._subscribers: list[Callable[..., None]] = []
        self.replace(objects)

    def subscribe(self, fn: Callable[..., None]) -> None:
        for obj in self.items():
            fn("add", None, obj)
        self._subscribers.append(fn)

    def deliver(self, obj: Object, *, gone: bool) -> None:
        changes: list[Change] = self.remove(obj) if gone else self.put(obj)
        for change in changes:
            for fn in self._subscribers:
                fn(*change)


class MemoryKube:
    """Pods and nodes by path, with resource versions, finalizers and preconditions; deletions as the API server's."""

    def __init__(self, writes: Writes) -> None:
        self.objects: dict[str, Object] = {}
        self.changes: list[tuple[Object, bool]] = []
        self.copies_labels = True
        """Whether a Binding's labels go to the pod: API servers from 1.33 on."""
        self._writes, self._version = writes, 0

    def fenced(self, check: Callable[[], None]) -> MemoryKube:
        del check
        return self

    def put(self, path: str, obj: Object) -> Object:
        """Store an object without counting a write of the hub; remove it if it is deleted and nothing keeps it."""
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        meta = obj["metadata"]
        ended = not pods.is_bound(obj) or pods.is_finished(obj) if obj["kind"] == "Pod" else True
        gone = bool(meta.get("deletionTimestamp")) and not meta.get("finalizers") and ended
        if gone:
            self.objects.pop(path, None)
        else:
            self.objects[path] = obj
        self.changes.append((copy.deepcopy(obj), gone))
        return copy.deepcopy(obj)

    def pods(self) -> list[Object]:
        return [obj for path, obj in self.objects.items() if "/pods/" in path]

    def get(self, path: str, query: object = None) -> Object:
        del query
        if path in self.objects:
            return copy.deepcopy(self.objects[path])
        if path.endswith("/deviceclasses"):
            return {"items": []}
        if path.endswith("/pods"):
            return {"items": copy.deepcopy([o for p, o in self.objects.items() if p.startswith(path + "/")])}
        raise KubeNotFoundError(path)

    def _of(self, path: str) -> tuple[str, Object]:
        path = path.removesuffix("/status").removesuffix("/binding")
        if path not in self.objects:
            raise KubeNotFoundError(path)
        return path, copy.deepcopy(self.objects[path])

    def patch(self, path: str, patch: Object, kind: str = "merge") -> Object:
        del kind
        path, obj = self._of(path)
        wanted = patch.get("metadata", {})
        _check(obj, wanted)
        meta = obj["metadata"]
        dropped = wanted.get("$deleteFromPrimitiveList/finalizers", [])
        kept = [name for name in meta.get("finalizers", []) if name not in dropped]
        meta["finalizers"] = kept + [name for name in wanted.get("finalizers", []) if name not in kept]
        for part in ("labels", "annotations"):
            meta[part] = _merged(meta.get(part), wanted.get(part))
        obj["spec"] = {**obj["spec"], **(patch.get("spec") or {})}
        status = dict(patch.get("status") or {})
        conditions = {entry["type"]: entry for entry in obj["status"].get("conditions", [])}
        conditions |= {entry["type"]: entry for entry in status.pop("conditions", [])}
        obj["status"] = {**obj["status"], **status, "conditions": list(conditions.values())}
        answer = self.put(path, obj)
        self._writes.done()
        return answer

    def create(self, path: str, body: Object) -> Object:
        """Create a Binding; the API server refuses it for a pod that is deleted or bound."""
        path, obj = self._of(path)
        _check(obj, body["metadata"])
        if pods.is_deleted(obj) or pods.is_bound(obj):
            raise KubeConflictError(f"{path} is deleted or bound")
        obj["metadata"]["annotations"] = _merged(obj["metadata"].get("annotations"), body["metadata"]["annotations"])
        if self.copies_labels:
            obj["metadata"]["labels"] = _merged(obj["metadata"].get("labels"), body["metadata"].get("labels"))
        obj["spec"]["nodeName"] = body["target"]["name"]
        answer = self.put(path, obj)
        self._writes.done()
        return answer

    def delete(self, path: str, options: Object | None = None) -> None:
        path, obj = self._of(path)
        _check(obj, (options or {}).get("preconditions", {}))
        self.request_deletion(path)
        self._writes.done()

    def request_deletion(self, path: str) -> None:
        """Delete a pod as a user does: not a write of the hub."""
        path, obj = self._of(path)
        obj["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:01Z")
        self.put(path, obj)


def _check(obj: Object, wanted: Object) -> None:
    meta = obj["metadata"]
    if any(name in wanted and wanted[name] != meta[name] for name in ("uid", "resourceVersion")):
        raise KubeConflictError(f"{meta['name']} has changed")


def _merged(old: Object | None, new: Object | None) -> Object:
    return {name: value for name, value in {**(old or {}), **(new or {})}.items() if value is not None}


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


class Queue:
    """Workers whose calls the test runs, in any order."""

    backlog = False

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[], None]] = {}

    def busy(self, key: str) -> bool:
        return key in self.calls

    def submit(self, key: str, call: Callable[[], None], urgency: int = 5, kind: str = "") -> bool:
        del urgency, kind
        return self.calls.setdefault(key, call) is call

    def run(self, index: int) -> None:
        key = sorted(self.calls)[index % len(self.calls)]
        try:
            self.calls[key]()
        except BridgeError:
            pass  # the workers log it; the next decision repeats the action
        finally:
            self.calls.pop(key)


@dataclass
class _Elector:
    """A held lease; ``inherited``: from a process that was killed."""

    inherited: bool
    held: bool = True

    def check(self) -> None:
        """Do nothing: the lease is held."""


class _Events:
    def event(self, *args: object, **more: object) -> None:
        """Drop the Event."""


class MemoryHub:
    """One process with scheduler and controllers; :meth:`restart` replaces it by a new one."""

    def __init__(self, node_names: tuple[str, ...]) -> None:
        self.clock, self.writes = FakeClock(), Writes()
        self.kube = MemoryKube(self.writes)
        self.slurm = MemorySlurm(self.writes, node_names)
        self.config = Config()
        for name in node_names:
            self.kube.put(f"/api/v1/nodes/{name}", self._node(name))
        self.restart(inherited=False)

    def _node(self, name: str) -> Object:
        taint = {"key": names.MANAGED_TAINT, "value": self.config.scheduler_name, "effect": "NoExecute"}
        return {
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "labels": {names.SLURM_NODENAME_LABEL: name}, "annotations": {}},
            "spec": {"taints": [taint]},
            "status": {"allocatable": {"cpu": "8", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def restart(self, *, inherited: bool = True) -> None:
        """Start a process that knows nothing; ``inherited``: the former one had the lease when it was killed."""
        self.writes.kill_after = None
        everything = [copy.deepcopy(obj) for obj in self.kube.objects.values()]
        self.kube.changes.clear()
        self.pods = MemoryCache([o for o in everything if o["kind"] == "Pod"], pods.is_open)
        self.nodes = MemoryCache([o for o in everything if o["kind"] == "Node"])
        self.poller = MemoryPoller(self.slurm, self.clock)
        parts: Any = (self.config, self.kube, self.slurm, self.poller, self.pods, self.nodes, _Events(), CLUSTER)
        dependencies = Dependencies(*parts, self.clock)
        elector: Any = _Elector(inherited)
        others: Any = MemoryCache([])
        self.scheduler = Scheduler(dependencies, elector, set(), others, [])
        self.controllers = Controllers(dependencies, elector)
        self.pods.subscribe(self.scheduler._gangs.changed)
        self.pods.subscribe(self.scheduler._occupancy.changed)
        self.nodes.subscribe(self.scheduler._node_changed)
        self.queues = (Queue(), Queue())
        for loop, queue in zip(self.loops, self.queues, strict=True):
            loop.workers = queue  # type: ignore[assignment]
            loop.leading_since = self.clock.monotonic()
            loop.on_started_leading()
        brakes: Any = self.controllers._brakes
        brakes._workers = self.queues[1]

    @property
    def loops(self) -> tuple[Scheduler, Controllers]:
        return self.scheduler, self.controllers

    def deliver(self) -> None:
        """Deliver the changes of the API server to the caches."""
        while self.kube.changes:
            obj, gone = self.kube.changes.pop(0)
            (self.pods if obj["kind"] == "Pod" else self.nodes).deliver(obj, gone=gone)

    def run(self, what: Callable[[], None]) -> None:
        """Run a part of the process; if it is killed there, start the next one."""
        try:
            what()
        except Killed:
            self.restart()

    def run_all(self) -> None:
        """Run all queued calls."""
        for number in (0, 1):
            while self.queues[number].calls:
                self.run(lambda number=number: self.queues[number].run(0))  # type: ignore[misc]
