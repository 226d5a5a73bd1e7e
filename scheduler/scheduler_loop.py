"""The scheduler: builds a view of all waiting pods, decides, submits the actions to the workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from bridge.control.brake import Brake, GuardLimits, step
from bridge.control.control_loop import Dependencies, SlurmLoop
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.slurm import states
from bridge.slurm.models import Snapshot
from bridge.telemetry.metrics import SCHEDULER_PODS, label_of
from bridge.workload import eligibility, missing_jobs, node_ownership, pods, pool_selection
from bridge.workload.eligibility import NodeView
from scheduler import group_actions, group_decide, pod_group, rules
from scheduler.devices.device_names import DeviceNames
from scheduler.devices.taken_devices import TakenDevices
from scheduler.group_act import URGENCY, SlurmActor
from scheduler.group_index import GroupIndex
from scheduler.group_objects import GroupObjects
from scheduler.group_states import WAITING_FOR, Bound, GroupStates
from scheduler.new_pods import NewPods
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import Placements
from scheduler.pod_group import Group
from scheduler.queue_head import QueueHead
from scheduler.unchanged_pods import UnchangedPods
from scheduler.volumes.storage import Storage

Node = Mapping[str, Any]

COUNT_PERIOD = 5.0
"""Seconds between two counts of the waiting pods for the metric: to count 10,000 takes a quarter of a decision."""


class Scheduler(SlurmLoop):
    """The loop of the scheduler, and what it keeps between two decisions.

    A partial reconciliation decides for the groups whose job or pod has changed or whose action has ended, and
    for all that have an allocated job: room on a node goes to the most urgent of them.

    ``local`` holds the UIDs of the pods that the pool scheduler left to the colocated Slurm. ``others`` is the cache of
    the bound pods of other schedulers. ``storage`` are the caches of claims, volumes and storage classes, ``claims`` is
    that of ResourceClaims (:func:`scheduler.devices.taken_devices.prune`).
    """

    def __init__(
        self,
        dependencies: Dependencies,
        elector: Elector | None,
        local: set[str],
        others: Cache,
        storage: Sequence[Cache],
        claims: Cache | None,
    ) -> None:
        super().__init__("scheduler", dependencies, elector)
        self._local = local
        self._others = others
        self._storage_caches = storage
        self._storage = Storage(on_change=self.wake)
        self._max_grace = dependencies.config.max_grace_period
        self._occupancy = Occupancy(dependencies.config.scheduler_name, self._woken, self._max_grace)
        self._states = GroupStates()
        self._groups = GroupIndex(dependencies.clock)
        self._group_objects = GroupObjects(dependencies.kube, dependencies.clock)
        self._new = NewPods(dependencies.pods)
        self._unchanged = UnchangedPods()
        self._head = QueueHead()
        self._device_names = DeviceNames(dependencies.kube, dependencies.config, dependencies.clock)
        taken = TakenDevices(claims)
        self._actor = SlurmActor(
            dependencies, self._states, self._storage, self._device_names, self.check_leadership, taken
        )
        self._node_changes = 0
        self._placement_inputs: tuple[object, ...] = ()
        self._node_names: list[str] = []
        self._remembered: dict[str, NodeView] = {}
        self._inherited_at = self._inherited_until = self._count_from = 0.0
        self._snapshot = Snapshot()
        self._brake, self._braked = Brake(), 0
        limits = dependencies.config.brake
        self._limits = GuardLimits(limits.share, limits.least, limits.hold)

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers."""
        # before _pod_changed and wake: a decision that a change causes finds this change in the indexes
        self.dependencies.pods.subscribe(self._groups.changed)
        self.dependencies.pods.subscribe(self._new.changed)
        for cache in (self.dependencies.pods, self._others):
            cache.subscribe(self._occupancy.changed)
        for cache in self._storage_caches:
            cache.subscribe(self._storage.changed)
        self.dependencies.pods.subscribe(self._pod_changed)
        self.dependencies.poller.subscribe(self._woken)
        self.dependencies.poller.subscribe_hints(lambda link: self.touch(link.keys, at_once=True))
        super().start(supervisor)

    def subscribe(self) -> None:
        """Wake the loop on changes of pods, and of nodes if placements depend on them."""
        self.dependencies.pods.subscribe(self.wake)
        self.dependencies.nodes.subscribe(self._node_changed)

    def ready(self) -> bool:
        """Whether all caches are synced and slurmctld has answered."""
        return super().ready() and all(cache.synced for cache in (self._others, *self._storage_caches))

    def on_started_leading(self) -> None:
        """Request a poll and a list of all jobs, and note until when a former leader may have sent requests."""
        self._inherited_at = (self.leading_since or 0.0) if self.inherited else 0.0
        self._inherited_until = 0.0
        if self._inherited_at:  # an earlier list would not show the outcome of all of them
            self.dependencies.poller.list_all(self._inherited_at + rules.SETTLE)
        self._new.begin()
        super().on_started_leading()

    @property
    def unsettled(self) -> bool:
        """Whether a job that this process or a former leader has requested may still appear."""
        return bool(self._inherited_at) or self._states.unsettled

    def acted(self, key: str) -> None:
        """Decide for the pod or group of a call that has ended."""
        self.touch((key,))
        super().acted(key)

    def reconcile(self) -> None:
        """Decide for all waiting pods."""
        waiting, self._snapshot = self.dependencies.pods.picked(), self.dependencies.poller.snapshot
        in_groups = self._groups.keys()
        self._states.forget_all_but(waiting.keys() | in_groups)
        self._group_objects.forget_all_but(in_groups)
        self._unchanged.forget_all_but(waiting.keys())
        self._actor.placements.forget_all_but(waiting.keys())
        # not the present time: a cache that lags still shows a bound pod as waiting
        confirmed = self.dependencies.clock.monotonic() - self.dependencies.pods.age()
        self._states.forget_bindings(confirmed, self.workers.busy)
        updates = self._actor.update_pace.allowed(self.dependencies.clock.monotonic())
        colocated = {uid for uid, pod in waiting.items() if self._is_colocated(uid, pod, self._snapshot)}
        counts = self._decide_for(waiting, colocated, self._snapshot, updates, whole=True)
        self._actor.update_pace.sent(counts[label_of(group_actions.Exclude)])
        if (now := self.dependencies.clock.monotonic()) >= self._count_from:
            self._count_from = now + COUNT_PERIOD
            waits = self._count({uid: pod for uid, pod in waiting.items() if uid in colocated})
            for name in {*WAITING_FOR.values(), "gate", "release"}:
                SCHEDULER_PODS.labels(name).set(waits[name])

    def reconcile_some(self, keys: Set[str]) -> None:
        """Decide for the pods with these UIDs, for the groups with these keys, and for those with changed jobs."""
        before, self._snapshot = self._snapshot, self.dependencies.poller.snapshot
        # pods with allocated jobs compete for room on their nodes, so the decision is for all of them
        keys_to_decide = keys | changed_keys(before, self._snapshot) | self._states.allocated
        key_of = self._groups.uids
        waiting = self.dependencies.pods.picked() if keys_to_decide else {}
        pods_to_decide = {
            uid: pod for uid, pod in waiting.items() if uid in keys_to_decide or key_of.get(uid) in keys_to_decide
        }
        if pods_to_decide:
            # updates of pending jobs are left to whole reconciliations: those of the most urgent jobs come first
            colocated = {uid for uid, pod in pods_to_decide.items() if self._is_colocated(uid, pod, self._snapshot)}
            self._decide_for(pods_to_decide, colocated, self._snapshot, updates=0)

    def _count(self, waiting: Mapping[str, group_actions.Pod]) -> Counter[str]:
        """Return the number of pods by what they wait for."""
        counts: Counter[str] = Counter()
        for uid, pod in waiting.items():
            try:
                counts[self._waiting_for(uid, pod)] += 1
            except Exception as error:
                isolation.report("scheduler", pods.key(pod), error)
        return counts

    def _waiting_for(self, uid: str, pod: group_actions.Pod) -> str:
        """Return what a pod waits for: the value of the label ``waiting_for``."""
        if pods.is_deleted(pod):
            return "release"
        if pods.is_gated(pod):
            return "gate"
        return WAITING_FOR[type(self._states.of(self._groups.uids.get(uid, uid)).phase)]

    def _decide_for(
        self,
        waiting: Mapping[str, group_actions.Pod],
        colocated: Set[str],
        snapshot: Snapshot,
        updates: int,
        *,
        whole: bool = False,
    ) -> Counter[str]:
        """Decide for the groups of waiting pods; return the number of actions by kind.

        ``colocated`` are the UIDs of those that run on the colocated Slurm. ``whole``: also for groups that run on
        nodes that take no new pod.
        """
        if self._inherited_at:
            until = rules.settled_at(snapshot, self._inherited_at)
            if snapshot.error or snapshot.began < until:
                self.dependencies.poller.wake()
                self.dependencies.poller.list_all(until)
            else:  # later errors of slurmctld do not matter
                self._inherited_at, self._inherited_until = 0.0, until
        list_needed_at, unsettled = self._inherited_until, self._states.unsettled
        if unsettled:
            list_needed_at = max(list_needed_at, rules.settled_at(snapshot, self._states.lost_at))
        if snapshot.requested_at < list_needed_at:
            self.dependencies.poller.list_all(list_needed_at)
        self._device_names.request(self.workers)
        self._occupancy.correct(self.dependencies.pods.picked(), self._is_binding)
        time = self.dependencies.clock.time()
        placements = self._place(snapshot, time)
        view = rules.SchedulerView(
            groups=(),
            snapshot=snapshot,
            placements=placements,
            states=self._states.by_uid,
            version=self.dependencies.slurm.version,
            config=self.dependencies.config,
            now=self.dependencies.clock.monotonic(),
            time=time,
            occupancy=self._occupancy,
            leading_since=max(self.leading_since or 0.0, self._inherited_until),
            inherited_at=self._inherited_at,
            braked=self._is_braked(snapshot),
            updates=updates,
            new=self._new.uids,
            head=self._head.of(snapshot.jobs, self.dependencies.clock.monotonic()),
            cancelled=self.dependencies.slurm.cancellations.since(snapshot.began),
        )
        bare_pods = self._unchanged.changed(view, self._idle_bare_pods(waiting, colocated))
        shared = self._idle_groups(waiting, snapshot, placements.closed if whole else frozenset())
        view = replace(view, groups=[*pod_group.of_each(bare_pods), *shared])
        if unsettled or rules.waits_for_jobs(view):
            self.dependencies.poller.hurry()
        if rules.waits_for_poll(view):
            self.dependencies.poller.wake()
        decision = group_decide.decide(view)
        self._unchanged.keep(view, decision)
        # before the actions are dispatched: from then on, only the workers write the states of their pods
        self._states.merge(decision.states)
        for occupant in decision.planned:
            self._occupancy.assume(occupant)
        for node, taken in decision.refused:
            self._occupancy.refuse(node, taken)
        if decision.refused:
            self.wake()  # pending jobs exclude these nodes from now on
        counts: Counter[str] = Counter()
        for action in decision.actions:
            counts[label_of(type(action))] += 1
            try:
                self._dispatch(action)
            except Exception as error:
                isolation.report("scheduler", pods.key(action.pod), error)
        return counts

    def _idle_bare_pods(self, waiting: Mapping[str, group_actions.Pod], colocated: Set[str]) -> list[group_actions.Pod]:
        """Return the waiting pods with a job alone for which the workers have no call."""
        in_groups = self._groups.uids
        return [
            pod
            for uid, pod in waiting.items()
            # a call of the workers writes the state of its pod: one writer at a time (scheduler.group_states)
            if uid in colocated and uid not in in_groups and not self._is_binding(uid)
        ]

    def _idle_groups(
        self, waiting: Mapping[str, group_actions.Pod], snapshot: Snapshot, closed: Set[str]
    ) -> list[Group]:
        """Return the groups with a waiting pod, or with a job on a ``closed`` node, without a call of the workers."""
        if not (in_groups := self._groups.uids):
            return []
        keys = {key for uid in waiting if (key := in_groups.get(uid)) is not None}
        if closed:
            keys |= {
                key
                for key in self._groups.keys() - keys
                for job_id in snapshot.by_uid.get(key, ())
                if not closed.isdisjoint(snapshot.jobs[job_id].job.nodes)
            }
        idle = self._groups.groups(self.dependencies.pods, (key for key in keys if not self.workers.busy(key)))
        groups = [self._group_objects.applied(group) for group in idle]
        self._group_objects.request(groups, snapshot, self.workers)
        return [
            group
            for group in groups
            if not any(self._is_binding(pods.uid(pod)) for pod in group.open)
            and all(self._is_colocated(pods.uid(pod), pod, snapshot) for pod in group.open)
        ]

    def _is_colocated(self, uid: str, pod: group_actions.Pod, snapshot: Snapshot) -> bool:
        """Whether the pod runs on the colocated Slurm: it selects no pool, was left to Slurm, or has a job already."""
        try:
            if uid in snapshot.by_uid or uid in self._local or pods.job_id(pod) is not None:
                return True
            return not pool_selection.of(pod).remote
        except Exception as error:
            isolation.report("scheduler", pods.key(pod), error)
            return True  # the decision about it fails too, and tells the pod

    def _is_braked(self, snapshot: Snapshot) -> bool:
        """Whether so many jobs are missing that no job is submitted; computed once for each snapshot."""
        if snapshot.sequence != self._braked:
            self._braked = snapshot.sequence
            count, pods_without_job = (
                missing_jobs.jobs(self.dependencies.pods.items(), snapshot, self._max_grace)
                if missing_jobs.is_suspected(snapshot)
                else (0, {})
            )
            now = self.dependencies.clock.monotonic()
            self._brake = step(
                self._brake, count, pods_without_job.keys(), now, self._limits, reported=pods_without_job.keys()
            )
        return self._brake.engaged

    def _pod_changed(self, _: str, old: group_actions.Pod | None, new: group_actions.Pod | None) -> None:
        pod = new if new is not None else old
        if pod is not None and pods.is_open(pod):
            self.touch((pods.uid(pod),))

    def _woken(self, *_: object) -> None:
        """Decide for the pods with changed jobs or with an allocated job; for all others, soon."""
        self.touch(())
        self.wake()

    def _node_changed(self, _: str, old: Node | None, new: Node | None) -> None:
        """Count a change of what placements depend on, and wake the loop: not when a kubelet reports the same again.

        A list may skip a state that this process has written, and that decisions have seen.
        """
        if self.dependencies.nodes.listing or eligibility.has_changed(old, new):
            self._node_changes += 1
            self.wake()

    def _dispatch(self, action: group_actions.Action) -> None:
        # the actions that write the state of the job are one at a time for all members of the group
        key = action.group.key if isinstance(action, group_actions.JobAction) else pods.uid(action.pod)
        kind = type(action)
        self.workers.submit(key, lambda: self._actor.act(action), URGENCY[kind], kind=label_of(kind))

    def _is_binding(self, uid: str) -> bool:
        """Whether a bind of the pod, or of its group, is in progress or done."""
        busy, key = self.workers.busy, self._groups.uids.get(uid)
        return busy(uid) or (key is not None and busy(key)) or isinstance(self._states.of(uid).phase, Bound)

    def _place(self, snapshot: Snapshot, time: float) -> Placements:
        """Return the placements on the current nodes, computed again only after a change of the nodes."""
        lasting = self._occupancy.lasting(time - self.dependencies.config.busy_node_timeout)
        # only Slurm's nodes: a pod of another scheduler anywhere else must not cause new placements
        taken = {name: lasting[name] for name in self._node_names if name in lasting}
        # not all states of the nodes: the others change with each job, and would cause new placements each time
        asleep = frozenset(name for name, node in snapshot.nodes.items() if states.is_asleep(node.states))
        partitions = tuple(sorted(snapshot.partitions.items()))
        extended = (
            frozenset(self._device_names.class_by_resource)
            if self.dependencies.slurm.version.allocations
            else frozenset()
        )
        # Slurm allocates drained nodes to no job, so pending jobs need not exclude them
        drained = frozenset(name for name, node in snapshot.nodes.items() if "DRAIN" in node.states)
        inputs = (self._node_changes, taken, frozenset(snapshot.nodes), asleep, drained, partitions, extended)
        if inputs != self._placement_inputs:
            config = self.dependencies.config
            real_nodes = (node for node in self.dependencies.nodes.items() if not pool_selection.is_virtual(node))
            selected = (node for node in real_nodes if node_ownership.is_selected(config, node))
            nodes = [eligibility.with_devices(node, extended) for node in eligibility.views(selected, lasting)]
            self._node_names = [node.name for node in nodes if node.slurm_name in snapshot.nodes]
            nodes_by_name = self._remembered | {node.slurm_name: node for node in nodes if not node.rivals}
            self._remembered = {name: node for name, node in nodes_by_name.items() if name in snapshot.nodes}
            self._actor.placements = Placements(
                nodes, snapshot.nodes, snapshot.partitions, self._remembered, self._storage
            )
            self._placement_inputs = inputs
        return self._actor.placements


def changed_keys(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the UIDs of the pods and the keys of the groups of which a job has changed between two snapshots."""
    changed_jobs = [observed for job_id, observed in after.jobs.items() if before.jobs.get(job_id) is not observed]
    changed_jobs += [before.jobs[job_id] for job_id in before.jobs.keys() - after.jobs.keys()]
    return {key for observed in changed_jobs if observed.job.link is not None for key in observed.job.link.keys}
