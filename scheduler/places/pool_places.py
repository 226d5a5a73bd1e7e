"""The pools as places: what the choice of a place needs, kept between two decisions, and the choice itself."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Set
from typing import Any

from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core import isolation
from bridge.core.workers import Workers
from bridge.errors import KubeError
from bridge.kube import namespaces
from bridge.kube.namespaces import Namespaces
from bridge.logs import kv
from bridge.telemetry.metrics import SCHEDULER_ACTIONS, counted, label_of
from bridge.workload import eligibility, node_ownership, places, pods, pool_selection
from bridge.workload.eligibility import NodeView
from scheduler import pod_group
from scheduler.decision import carry_out
from scheduler.group_actions import Action
from scheduler.group_states import GroupStates
from scheduler.nodes.occupancy import Occupancy
from scheduler.places import place_decide
from scheduler.places.place_view import NamespaceView, PlaceView, pool_view
from scheduler.places.slurm_place import SlurmPlace
from scheduler.pod_group import Group
from scheduler.pod_writer import PodWriter
from scheduler.waiting_groups import WaitingGroups

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
Node = Mapping[str, Any]
NAMESPACE_REMEMBERED = 10.0
"""Seconds for which the annotations of a namespace are cached."""


class PoolPlaces:
    """The pools; used by the thread of ``loop`` alone, except for :meth:`changed`.

    ``slurm`` is ``None`` if no Slurm is colocated.
    """

    def __init__(
        self,
        loop: Loop,
        shared: KubeDependencies,
        slurm: SlurmPlace | None,
        states: GroupStates,
        groups: WaitingGroups,
        writer: PodWriter,
        occupancy: Occupancy,
    ) -> None:
        self._loop, self._config, self._nodes = loop, shared.config, shared.nodes
        self._states, self._groups, self._writer, self._slurm = states, groups, writer, slurm
        self._occupancy = occupancy
        # not those of the loop: calls to a slurmrestd that does not answer may hold all of them
        self.workers = Workers("pools-worker", shared.config.workers, done=loop.acted, clock=shared.clock)
        self._lock = threading.Lock()
        self._candidates: set[str] = set()  # the UIDs of the pods that may go to a pool; most pods never do
        self._views: dict[str, tuple[Node, NodeView]] = {}
        self._namespaces = Namespaces(namespaces.read_from(shared.kube), shared.clock, NAMESPACE_REMEMBERED)

    def changed(self, _: str, old: Pod | None, new: Pod | None) -> None:
        """Apply a change of the cache of pods. For any thread."""
        with self._lock:
            if new is not None and pods.is_open(new) and (self._slurm is None or pool_selection.of(new).remote):
                self._candidates.add(pods.uid(new))
            elif (pod := new if new is not None else old) is not None:
                self._candidates.discard(pods.uid(pod))

    def reconcile(self, waiting: Mapping[str, Pod], at_slurm: Set[str]) -> set[str]:
        """Choose places for those of the waiting pods that may go to a pool; without a colocated Slurm, for all.

        ``at_slurm`` are the UIDs of the pods that were left to the colocated Slurm. Return those that go there now.
        """
        settings = self._config.pools
        races = settings.enabled and settings.race.enabled
        with self._lock:
            uids = self._candidates & waiting.keys()
        in_groups = self._groups.uids
        bare_pods = [
            waiting[uid]
            for uid in uids
            if uid not in in_groups
            and (uid not in at_slurm or (races and places.wants_race(waiting[uid])))
            and not self._groups.has_call(uid)
        ]
        keys = {
            key
            for uid in uids
            if (key := in_groups.get(uid)) is not None
            # the member may have to follow the first pod to a pool, or lose its places
            and (uid not in at_slurm or places.wants_race(waiting[uid]) or places.recorded(waiting[uid]))
        }
        groups = [*pod_group.of_each(bare_pods), *self._groups.idle(keys, lambda _: False, self.workers)]
        if not groups:
            return set()
        decision = place_decide.decide(self._view(groups, at_slurm, races))
        carry_out(decision, self._occupancy, self.workers, self._act)
        for local in decision.local:
            log.info("pod goes to the colocated Slurm", extra=kv(pod=pods.key(local.pod), why=local.why))
        return {pods.uid(local.pod) for local in decision.local}

    def _view(self, groups: list[Group], at_slurm: Set[str], races: bool) -> PlaceView:
        nodes, settings = self._nodes_with_views(), self._config.pools
        pools = {view.name: pool_view(node, view) for node, view in nodes if pool_selection.is_virtual(node)}
        return PlaceView(
            groups=groups,
            pools=pools if settings.enabled else {},  # virtual nodes of another installation
            nodes=tuple(eligibility.with_rivals([view for node, view in nodes if self._is_colocated(node)])),
            occupancy=self._occupancy,
            states=self._states.by_uid,
            policy=settings.policy,
            weights=settings.weights,
            now=self._loop.clock.monotonic(),
            has_job=self._slurm.has_job if self._slurm is not None else lambda _: False,
            colocated=self._slurm is not None,
            namespace=namespace_views(self._namespaces),
            most_places=settings.race.places if races else 0,
            at_slurm=at_slurm,
            # for thousands of jobs: only if a pod may go there, and once
            local_wait=functools.cache(self._slurm.expected_wait) if self._slurm is not None else lambda: 0.0,
        )

    def _nodes_with_views(self) -> list[tuple[Node, NodeView]]:
        """Return all nodes, each with its view, which is computed once for each state of the node."""
        cached, self._views = self._views, {}
        for node in self._nodes.items():
            entry = cached.get(node["metadata"]["name"])
            if entry is None or entry[0] is not node:  # the cache replaces objects and never changes them
                try:
                    entry = node, eligibility.view(node)
                except Exception as error:
                    isolation.report("scheduler", str(node["metadata"]["name"]), error)
                    continue
            self._views[entry[1].name] = entry
        return list(self._views.values())

    def _is_colocated(self, node: Node) -> bool:
        """Whether the node is one of the colocated Slurm: by its taint, or any free one if ``nodes.taint`` is off."""
        if self._slurm is None or pool_selection.is_virtual(node):
            return False
        if not node_ownership.is_selected(self._config, node):
            return False
        holder = node_ownership.holder(node)
        return holder == self._config.scheduler_name or (not holder and not self._config.nodes.taint)

    def _act(self, action: Action) -> None:
        """Carry out one action; called by the workers. Raises :class:`~bridge.errors.BridgeError`."""
        with counted(SCHEDULER_ACTIONS, label_of(type(action))):
            self._writer.act(action)


def namespace_views(cache: Namespaces) -> Callable[[str], NamespaceView]:
    """Return a function that reads namespaces for one decision.

    It reads each namespace once at most, and none after an error that is worth a retry.
    """
    unavailable = ""

    @functools.cache
    def view(name: str) -> NamespaceView:
        nonlocal unavailable
        if unavailable:
            return NamespaceView(problem=unavailable)
        try:
            return NamespaceView(cache.get(name).annotations)
        except KubeError as error:
            problem = f"the annotations of the pod's namespace can't be read: {error}"
            if error.retryable:
                unavailable = problem
            return NamespaceView(problem=problem)

    return view
