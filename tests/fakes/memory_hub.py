"""An API server and a slurmctld in memory, and the hub on them, for machines that try many orders of events.

The loops, decisions and actions are the real ones. Nothing runs by itself: the test decides when a loop decides, which
queued action runs next, when a watch delivers, when a poll reads and when a process is killed. So one process can try
thousands of orders in seconds; what real servers answer is the matter of the contract and e2e tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bridge import names
from bridge.config.hub import Config
from bridge.control.control_loop import Dependencies, KubeDependencies
from bridge.core import isolation
from bridge.errors import BridgeError, LostLeadershipError
from bridge.kube.object_store import Object
from bridge.kube.resources import NODES, PODS
from bridge.workload import pods
from controllers.slurm_controllers_loop import Controllers
from scheduler import group_decide, pod_group
from scheduler.places.slurm_place import SlurmSources
from scheduler.rules import SchedulerView
from scheduler.scheduler_loop import Scheduler
from scheduler.unchanged_pods import UnchangedPods
from tests.fakes.clock import FakeClock
from tests.fakes.memory_kube import Killed, MemoryCache, MemoryKube, Writes
from tests.fakes.memory_slurm import CLUSTER, MemoryClient, MemoryPoller, MemorySlurm
from tests.fakes.recorders import RecordedEvents

CPUS = "8"
"""CPUs of a node."""


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
        except Exception as error:
            isolation.report("worker", key, error)
        finally:
            self.calls.pop(key)


@dataclass
class _Elector:
    """A lease; ``inherited``: from a process that was killed."""

    inherited: bool
    held: bool = True

    def check(self) -> None:
        if not self.held:
            raise LostLeadershipError("the lease has expired")


class _CheckedUnchangedPods(UnchangedPods):
    """Decides for the pods that are left out: the decision must have no result."""

    left_out = 0

    def changed(self, view: SchedulerView, bare_pods: list[Object]) -> list[Object]:
        changed = super().changed(view, bare_pods)
        kept = {id(pod) for pod in changed}
        left_out = [pod_group.of_one(pod) for pod in bare_pods if id(pod) not in kept]
        decision = group_decide.decide(replace(view, groups=left_out))
        assert not decision.actions, decision.actions
        assert not decision.states, decision.states
        self.left_out = len(left_out)
        return changed


_ALLOWED = (names.RACE_ALLOWED, names.GANGS_ALLOWED, names.HETEROGENEOUS_GANGS_ALLOWED)


def virtual_node(name: str) -> Object:
    """Return the virtual node of a pool with room for three pods, which accepts pods that race, and groups."""
    taints = [(names.VIRTUAL_TAINT, "true"), (names.POOL_TAINT, name)]
    return {
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {names.POOL_LABEL: name},
            "annotations": dict.fromkeys(_ALLOWED, "true"),
        },
        "spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in taints]},
        "status": {"allocatable": {"cpu": "16", "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


class MemoryHub:
    """One process with scheduler and controllers; :meth:`restart` replaces it by a new one.

    ``apart``: the controllers have a client and a poller of their own, as in a process of their own. They poll together
    with the scheduler; ``own_poller`` is for a test in which only one of them polls. ``pools``: names of virtual nodes;
    nothing acts for their sites.
    """

    def __init__(self, node_names: tuple[str, ...], *, apart: bool = False, pools: tuple[str, ...] = ()) -> None:
        self.clock, self.writes = FakeClock(), Writes()
        self.kube = MemoryKube(self.writes, self.clock)
        self.slurm = MemorySlurm(self.writes, node_names)
        self.apart = apart
        remote = {"nats": {"servers": ["nats://x"]}, "race": {"enabled": True}}
        self.config = Config.model_validate({"pools": remote} if pools else {})
        for name in node_names:
            self.kube.put(f"/api/v1/nodes/{name}", self._node(name))
        for name in pools:
            self.kube.put(f"/api/v1/nodes/{name}", virtual_node(name))
        self.restarts = 0
        self.blockers: dict[str, Object] = {}
        """Pods of another scheduler that take all CPUs of a node, by the name of the node."""
        self.restart(inherited=False)

    def _node(self, name: str) -> Object:
        taint = {"key": names.MANAGED_TAINT, "value": self.config.scheduler_name, "effect": "NoExecute"}
        return {
            "kind": "Node",
            "metadata": {"name": name, "uid": name, "labels": {names.SLURM_NODENAME_LABEL: name}, "annotations": {}},
            "spec": {"taints": [taint]},
            "status": {"allocatable": {"cpu": CPUS, "pods": "10"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }

    def restart(self, *, inherited: bool = True) -> None:
        """Start a process that knows nothing; ``inherited``: the former one had the lease when it was killed."""
        self.restarts += 1
        self.writes.kill_after = None
        everything = [copy.deepcopy(obj) for obj in self.kube.objects.values()]
        self.kube.changes.clear()
        self.pods = MemoryCache([o for o in everything if o["kind"] == "Pod"], pods.is_open)
        self.nodes = MemoryCache([o for o in everything if o["kind"] == "Node"])
        dependencies, self.poller = self._dependencies()
        theirs, self.own_poller = self._dependencies() if self.apart else (dependencies, self.poller)
        elector: Any = _Elector(inherited)
        self._elector: _Elector = elector
        self.others: Any = MemoryCache([*self.blockers.values()])
        shared = KubeDependencies(self.config, dependencies.kube, dependencies.nodes, dependencies.events, self.clock)
        sources = SlurmSources(dependencies, self.others, [], None)
        self.scheduler = Scheduler(shared, dependencies.pods, elector, sources)
        assert self.scheduler.slurm is not None
        self.unchanged = self.scheduler.slurm._unchanged = _CheckedUnchangedPods()
        self.controllers = Controllers(theirs, elector)
        self.pods.subscribe(self.scheduler.pools.changed)
        self.pods.subscribe(self.scheduler.groups.changed)
        self.pods.subscribe(self.scheduler.slurm._new.changed)
        self.pods.subscribe(self.scheduler.occupancy.changed)
        self.others.subscribe(self.scheduler.occupancy.changed)
        self.nodes.subscribe(self.scheduler._node_changed)
        self.queues = (Queue(), Queue())
        for loop, queue in zip(self.loops, self.queues, strict=True):
            loop.workers = queue  # type: ignore[assignment]
            loop.leading_since = self.clock.monotonic()
            loop.on_started_leading()
        self.scheduler.pools.workers = self.queues[0]  # type: ignore[assignment]
        brakes: Any = self.controllers._brakes
        brakes._workers = self.queues[1]

    def _dependencies(self) -> tuple[Dependencies, MemoryPoller]:
        """Return the dependencies of a process, and its poller."""
        client, poller = MemoryClient(self.slurm, self.clock), MemoryPoller(self.slurm, self.clock)
        shared: Any = (self.config, self.kube, self.nodes, RecordedEvents(), self.clock)
        slurm: Any = (client, poller, self.pods, CLUSTER)
        return Dependencies(*shared, *slurm), poller

    def poll(self) -> None:
        """Poll Slurm in each process."""
        self.poller.poll()
        if self.apart:
            self.own_poller.poll()

    def depose(self) -> tuple[Queue, Queue]:
        """Stop the process for longer than its lease lasts, and start the next one; return the queues of the first."""
        self._elector.held = False
        former = self.queues
        self.restart()
        return former

    @property
    def loops(self) -> tuple[Scheduler, Controllers]:
        return self.scheduler, self.controllers

    def block(self, node: str) -> None:
        """Start a pod of another scheduler on a node, or end it."""
        pod = self.blockers.pop(node, None)
        gone = pod is not None
        if pod is None:
            pod = {
                "kind": "Pod",
                "metadata": {"namespace": "other", "name": f"on-{node}", "uid": f"on-{node}"},
                "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": CPUS}}}]},
                "status": {"phase": "Running"},
            }
            self.blockers[node] = pod
        self.others.deliver(copy.deepcopy(pod), gone=gone)

    def create(self, pod: Object) -> str:
        """Store a pod that names this scheduler, and return its path."""
        pod["spec"].setdefault("schedulerName", self.config.scheduler_name)
        path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
        self.kube.put(path, pod)
        return path

    def cordon(self, node: str, cordoned: bool = True) -> None:
        path = NODES.path(name=node)
        found = self.kube.get(path)
        found["spec"]["unschedulable"] = cordoned
        self.kube.put(path, found)

    def decide(self, seconds: float = 1) -> None:
        """Let time pass, poll Slurm, deliver what has changed, and let the scheduler decide."""
        self.clock.advance(seconds)
        self.poll()
        self.deliver()
        self.scheduler.reconcile()

    def work(self, steps: int = 1, seconds: float = 1, *, controllers: bool = False) -> None:
        """Decide, and run all queued calls, so many times; the controllers take part if they are asked for."""
        for _ in range(steps):
            self.decide(seconds)
            if controllers:
                self.controllers.reconcile()
            self.run_all()

    def deliver(self) -> None:
        """Deliver the changes of the API server to the caches."""
        while self.kube.changes:
            obj, gone = self.kube.changes.pop(0)
            cache = {"Pod": self.pods, "Node": self.nodes}.get(obj["kind"])
            if cache is not None:
                cache.deliver(obj, gone=gone)

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
