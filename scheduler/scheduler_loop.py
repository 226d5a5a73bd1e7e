"""The loop of the scheduler: it chooses the places of waiting pods, and each place decides about the pods it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.workload import eligibility, pods, pool_selection
from scheduler.group_states import GroupStates
from scheduler.nodes.occupancy import Occupancy
from scheduler.places import place_view
from scheduler.places.pool_places import PoolPlaces
from scheduler.places.slurm_place import SlurmPlace, SlurmSources
from scheduler.pod_writer import PodWriter
from scheduler.waiting_groups import WaitingGroups

Pod = Mapping[str, Any]
Node = Mapping[str, Any]


class Scheduler(Loop):
    """The loop of the scheduler, with one state for each waiting group.

    ``slurm`` is ``None`` without a colocated Slurm: then the only places are pools. A Slurm that does not answer, or a
    defect in the decisions of one place, does not stop the others.
    """

    def __init__(
        self, shared: KubeDependencies, pods_cache: Cache, elector: Elector | None, slurm: SlurmSources | None
    ) -> None:
        super().__init__("scheduler", (pods_cache, shared.nodes), elector, shared.config.workers, shared.clock)
        self._pods, self._nodes = pods_cache, shared.nodes
        self.states = GroupStates()
        self.groups = WaitingGroups(pods_cache, shared.kube, shared.clock, self.states, self.has_call)
        self._at_slurm: set[str] = set()
        kube = shared.kube.fenced(self.check_leadership)
        writer = PodWriter(kube, pods_cache, shared.events, shared.clock, self.states)
        self.occupancy = Occupancy(shared.config.scheduler_name, self.look_again, shared.config.max_grace_period)
        kept = self.states, self.groups, writer, self.occupancy
        self.slurm = SlurmPlace(self, slurm, *kept) if slurm is not None else None
        self.pools = PoolPlaces(self, shared, self.slurm, *kept)

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers."""
        # before the loop's own subscription: a decision that a change causes finds this change in the indexes
        for index in (self.groups, self.pools, self.occupancy):
            self._pods.subscribe(index.changed)
        if self.slurm is not None:
            self.slurm.start()
        self.pools.workers.start(supervisor)
        super().start(supervisor)

    def subscribe(self) -> None:
        """Wake the loop on changes of pods, and of nodes if a pod may fit better afterwards."""
        self._pods.subscribe(self._pod_changed)
        self._nodes.subscribe(self._node_changed)

    def on_started_leading(self) -> None:
        """Let the place in Slurm request what is known of the jobs of former leaders."""
        if self.slurm is not None:
            self.slurm.former.begin()

    @property
    def unsettled(self) -> bool:
        """Whether a job that this process or a former leader has requested may still appear."""
        return self.slurm is not None and self.slurm.former.unsettled

    @property
    def busy(self) -> bool:
        """Whether calls wait for a worker."""
        return super().busy or self.pools.workers.backlog

    def has_call(self, key: str) -> bool:
        """Whether a call for the key of a group or for a UID is queued or running: it alone writes the state."""
        return self.workers.busy(key) or self.pools.workers.busy(key)

    def acted(self, key: str) -> None:
        """Decide for the pod or group of a call that has ended."""
        self.touch((key,))
        super().acted(key)

    def reconcile(self) -> None:
        """Decide for all waiting pods."""
        waiting, slurm = self._pods.picked(), self._answering_slurm()
        self.states.forget_all_but(waiting.keys() | self.groups.keys())
        self.groups.forget_all_but_present()
        self._at_slurm &= waiting.keys()
        # not the present time: a cache that lags still shows a bound pod as waiting
        self.states.forget_bindings(self.clock.monotonic() - self._pods.age(), self.has_call)
        self.occupancy.correct(waiting, self.groups.is_binding)
        each = [lambda: self._choose(waiting)]
        if slurm is not None:
            each.append(lambda: slurm.reconcile(waiting, self._is_at_slurm))
        _run_all(each)

    def reconcile_some(self, keys: Set[str]) -> None:
        """Decide for the pods with these UIDs, for the groups with these keys, and for those with changed jobs."""
        slurm = self._answering_slurm()
        keys = keys | slurm.changed() if slurm is not None else keys
        waiting = self._pods.picked() if keys else {}
        self.occupancy.correct(waiting, self.groups.is_binding)
        uids = keys | self.groups.members(keys)
        each = [lambda: self._choose({uid: pod for uid in uids if (pod := waiting.get(uid)) is not None})]
        if slurm is not None:
            each.append(lambda: slurm.reconcile_some(waiting, keys, self._is_at_slurm))
        _run_all(each)

    def _answering_slurm(self) -> SlurmPlace | None:
        return self.slurm if self.slurm is not None and self.slurm.ready() else None

    def _choose(self, waiting: Mapping[str, Pod]) -> None:
        """Choose places for the pods that may go to a pool; remember which of them go to the colocated Slurm."""
        self._at_slurm |= self.pools.reconcile(waiting, self._at_slurm)

    def _is_at_slurm(self, uid: str, pod: Pod) -> bool:
        """Whether the pod runs on the colocated Slurm: it selects no pool, was left to Slurm, or has a job already."""
        try:
            if uid in self._at_slurm or pods.job_id(pod) is not None or (self.slurm and self.slurm.has_job(uid)):
                return True
            return not pool_selection.of(pod).remote
        except Exception as error:
            isolation.report("scheduler", pods.key(pod), error)
            return True  # the decision about it fails too, and tells the pod

    def _pod_changed(self, _: str, old: Pod | None, new: Pod | None) -> None:
        pod = new if new is not None else old
        if pod is not None and pods.is_open(pod):
            self.touch((pods.uid(pod),))
        self.wake()

    def _node_changed(self, _: str, old: Node | None, new: Node | None) -> None:
        """Wake the loop if a decision depends on the change: not when a kubelet reports the same again.

        A list may skip a state that this process has written, and that decisions have seen.
        """
        node = new if new is not None else old
        if node is not None and pool_selection.is_virtual(node):
            if place_view.has_changed(old, new):
                self.wake()
        elif self._nodes.listing or eligibility.has_changed(old, new):
            if self.slurm is not None:
                self.slurm.node_changed()
            self.wake()


def _run_all(calls: list[Callable[[], None]]) -> None:
    """Call all, and then raise the error of the last one that has failed; earlier ones are reported."""
    failed: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            if failed is not None:
                isolation.report("loop", "scheduler", failed)
            failed = error
    if failed is not None:
        raise failed
