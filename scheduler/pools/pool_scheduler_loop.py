"""The pool scheduler: builds a view of the waiting pods and of the pools, decides, submits the actions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from bridge import names
from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.control.control_loop import Loop
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.errors import KubeError
from bridge.kube import namespaces
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.lease import Elector
from bridge.kube.namespaces import Namespaces
from bridge.workload import eligibility, node_ownership, places, pods, pool_selection
from bridge.workload.eligibility import NodeView
from scheduler.group_actions import SetCondition
from scheduler.group_states import GroupStates
from scheduler.pod_writer import PodWriter
from scheduler.pools import pool_decide
from scheduler.pools.pool_act import PoolActor
from scheduler.pools.usage import Usage

Node = Mapping[str, Any]

NAMESPACE_REMEMBERED = 10.0
"""Seconds for which the annotations of a namespace are cached."""
URGENCY: dict[type[pool_decide.Action], int] = {
    pool_decide.Local: 1,
    pool_decide.Bind: 2,
    pool_decide.Race: 3,
    SetCondition: 9,
}


class PoolScheduler(Loop):
    """The loop of the pool scheduler, and what it keeps between two decisions.

    ``local`` is shared with the scheduler of the colocated Slurm: the UIDs of the pods that go there. ``taken`` returns
    whether this Slurm has a job for a UID; ``None`` if no Slurm is colocated.
    """

    def __init__(
        self,
        config: Config,
        kube: KubeClient,
        caches: tuple[Cache, Cache],
        events: EventRecorder,
        elector: Elector | None,
        clock: Clock,
        local: set[str],
        taken: Callable[[str], bool] | None,
    ) -> None:
        super().__init__("pool-scheduler", caches, elector, config.workers, clock)
        self._pods, self._nodes = caches
        self._config = config
        self._states = GroupStates()
        self._usage = Usage()
        self._local = local
        self._taken = taken
        self._candidates: set[str] = set()  # the UIDs of the pods that may go to a pool; most pods never do
        self._views: dict[str, tuple[Node, NodeView]] = {}
        self._namespaces = Namespaces(namespaces.read_from(kube), clock, NAMESPACE_REMEMBERED)
        writer = PodWriter(kube.fenced(self.check_leadership), self._pods, events, clock, self._states)
        self._actor = PoolActor(writer, self._usage, local)

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers."""
        # before the loop's own subscription: a decision that a change causes counts the pod
        self._pods.subscribe(self._usage.changed)
        super().start(supervisor)

    def subscribe(self) -> None:
        """Wake the loop on changes of pods and virtual nodes, and of other nodes if a pod may fit better afterwards."""
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    def _pod_changed(self, _: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        if new is not None and pods.is_open(new) and (self._taken is None or pool_selection.of(new).remote):
            self._candidates.add(pods.uid(new))
        elif (pod := new if new is not None else old) is not None:
            self._candidates.discard(pods.uid(pod))
        self.wake()

    def _node_changed(self, _: str, old: Node | None, new: Node | None) -> None:
        if (new is not None and pool_selection.is_virtual(new)) or eligibility.has_changed(old, new):
            self.wake()

    def reconcile(self) -> None:
        """Decide for all waiting pods that may go to a pool; without a colocated Slurm, for all waiting pods."""
        waiting = self._pods.picked()
        self._states.forget_all_but(waiting.keys())
        self._local.intersection_update(waiting.keys())  # in place: the other scheduler reads the same set
        self._states.forget_bindings(self.clock.monotonic() - self._pods.age(), self.workers.busy)
        settings = self._config.pools
        races = settings.enabled and settings.race.enabled
        candidates = [
            pod
            for uid in tuple(self._candidates)  # a copy: the thread of the cache changes the set
            if (pod := waiting.get(uid)) is not None
            and (uid not in self._local or (races and places.wants_race(pod)))
            and not self.workers.busy(uid)
        ]
        if not candidates:
            return
        nodes = self._nodes_with_views()
        view = pool_decide.PoolSchedulerView(
            pods=candidates,
            pools={view.name: _pool(node, view) for node, view in nodes if pool_selection.is_virtual(node)}
            if settings.enabled
            else {},  # virtual nodes of another installation
            nodes=tuple(eligibility.with_rivals([view for node, view in nodes if self._colocated(node)])),
            usage=self._usage,
            states=self._states.by_uid,
            policy=settings.policy,
            weights=settings.weights,
            now=self.clock.monotonic(),
            taken=self._taken or (lambda _: False),
            colocated=self._taken is not None,
            namespace=namespace_views(self._namespaces),
            most_places=settings.race.places if races else 0,
            left=frozenset(self._local),
        )
        decision = pool_decide.decide(view)
        for uid, node, requested in decision.planned:
            self._usage.assume(uid, node, requested)
        for action in decision.actions:
            call, kind = (lambda a=action: self._actor.act(a)), type(action)
            self.workers.submit(pods.uid(action.pod), call, URGENCY[kind], kind=kind.__name__.lower())

    def _nodes_with_views(self) -> list[tuple[Node, NodeView]]:
        """Return all nodes, each with its view, which is computed once for each state of the node."""
        cached, self._views = self._views, {}
        for node in self._nodes.items():
            entry = cached.get(node["metadata"]["name"])
            if entry is None or entry[0] is not node:  # the cache replaces objects and never changes them
                try:
                    entry = node, eligibility.view(node)
                except Exception as error:
                    isolation.report("pool-scheduler", str(node["metadata"]["name"]), error)
                    continue
            self._views[entry[1].name] = entry
        return list(self._views.values())

    def _colocated(self, node: Node) -> bool:
        """Whether the node is one of the colocated Slurm: by its taint, or any free one if ``nodes.taint`` is off."""
        if self._taken is None or pool_selection.is_virtual(node) or not node_ownership.is_selected(self._config, node):
            return False
        holder = node_ownership.holder(node)
        return holder == self._config.scheduler_name or (not holder and not self._config.nodes.taint)


def _pool(node: Node, view: NodeView) -> pool_decide.PoolView:
    ready = eligibility.readiness(node)
    problem = "" if ready.get("status") == "True" else f"not ready: {ready.get('reason') or 'unknown'}"
    allowed = (node["metadata"].get("annotations") or {}).get(names.RACE_ALLOWED) == "true"
    return pool_decide.PoolView(view, problem, allowed)


def namespace_views(cache: Namespaces) -> Callable[[str], pool_decide.NamespaceView]:
    """Return a function that reads namespaces for one decision.

    It reads each namespace once at most, and none after an error that is worth a retry.
    """
    unavailable = ""

    @functools.cache
    def view(name: str) -> pool_decide.NamespaceView:
        nonlocal unavailable
        if unavailable:
            return pool_decide.NamespaceView(problem=unavailable)
        try:
            return pool_decide.NamespaceView(cache.get(name).annotations)
        except KubeError as error:
            problem = f"the annotations of the pod's namespace can't be read: {error}"
            if error.retryable:
                unavailable = problem
            return pool_decide.NamespaceView(problem=problem)

    return view
