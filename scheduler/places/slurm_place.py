"""The colocated Slurm as a place: what its decisions need, kept between two of them, and the decisions themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from bridge.control.brake import Brake, GuardLimits, step
from bridge.control.control_loop import Dependencies, Loop
from bridge.kube.cache import Cache
from bridge.slurm.models import Snapshot
from bridge.telemetry.metrics import SCHEDULER_PODS, label_of
from bridge.workload import links, pods, queue_wait
from scheduler import conditions, group_actions, group_decide, pod_group, rules
from scheduler.decision import carry_out
from scheduler.devices.device_names import DeviceNames
from scheduler.devices.taken_devices import TakenDevices
from scheduler.excluded_nodes import QueueHead
from scheduler.former_requests import FormerRequests, NewPods
from scheduler.group_act import SlurmActor
from scheduler.group_states import GroupStates
from scheduler.nodes.occupancy import Occupancy
from scheduler.nodes.placement import CurrentPlacements
from scheduler.pod_group import Group
from scheduler.pod_writer import PodWriter
from scheduler.unchanged_pods import UnchangedPods
from scheduler.volumes.storage import Storage
from scheduler.waiting_groups import WaitingGroups

Pod = Mapping[str, Any]
IsHere = Callable[[str, Pod], bool]
"""Whether the pod with this UID runs on the colocated Slurm."""
COUNT_PERIOD = 5.0
"""Seconds between two counts of the waiting pods for the metric: to count 10,000 takes a quarter of a decision."""


@dataclass(frozen=True, slots=True)
class SlurmSources:
    """What decisions about the colocated Slurm read.

    ``others`` is the cache of the bound pods of other schedulers. ``storage`` are the caches of claims, volumes and
    storage classes, ``claims`` is that of ResourceClaims (:func:`scheduler.devices.taken_devices.prune`).
    """

    dependencies: Dependencies
    others: Cache
    storage: Sequence[Cache]
    claims: Cache | None


class SlurmPlace:
    """The colocated Slurm; used by the thread of ``loop`` alone, except for the subscribers of caches.

    A partial decision is about the groups whose job or pod has changed or whose action has ended, and about all that
    have an allocated job: room on a node goes to the most urgent of them.
    """

    def __init__(
        self,
        loop: Loop,
        sources: SlurmSources,
        states: GroupStates,
        groups: WaitingGroups,
        writer: PodWriter,
        occupancy: Occupancy,
    ) -> None:
        dependencies = self.dependencies = sources.dependencies
        self._loop, self._sources, self._states, self._groups = loop, sources, states, groups
        self._occupancy = occupancy
        self._max_grace = dependencies.config.max_grace_period
        self._storage = Storage(on_change=loop.wake)
        self._new = NewPods(dependencies.pods)
        self.former = FormerRequests(loop, dependencies.poller, states, self._new)
        self._unchanged = UnchangedPods()
        self._head = QueueHead()
        self._device_names = DeviceNames(dependencies.kube, dependencies.config, dependencies.clock)
        self._placements = CurrentPlacements(dependencies, self._storage, self._occupancy, self._device_names)
        self._actor = SlurmActor(
            dependencies,
            states,
            writer,
            self._storage,
            self._device_names,
            self._placements,
            loop.check_leadership,
            TakenDevices(sources.claims),
        )
        self._count_from = 0.0
        self._snapshot = Snapshot()
        self._brake, self._braked = Brake(), 0
        limits = dependencies.config.brake
        self._limits = GuardLimits(limits.share, limits.least, limits.hold)

    def start(self) -> None:
        """Subscribe to the caches and to the poller; the loop does so later, so its decisions find changes here."""
        caches = self._sources
        self.dependencies.pods.subscribe(self._new.changed)
        caches.others.subscribe(self._occupancy.changed)
        for cache in caches.storage:
            cache.subscribe(self._storage.changed)
        self.dependencies.poller.subscribe(self._loop.look_again)
        self.dependencies.poller.subscribe_hints(lambda link: self._loop.touch(link.keys, at_once=True))

    def ready(self) -> bool:
        """Whether all caches are synced and slurmctld has answered."""
        caches = (self._sources.others, *self._sources.storage)
        return self.dependencies.poller.snapshot.sequence > 0 and all(cache.synced for cache in caches)

    def node_changed(self) -> None:
        """Compute the placements again."""
        self._placements.node_changed()

    def has_job(self, uid: str) -> bool:
        """Whether Slurm has, or had, a job of the pod."""
        return uid in self.dependencies.poller.snapshot.by_uid

    def expected_wait(self) -> float:
        """Return the seconds that a job probably waits, from the jobs of podbridge."""
        jobs = (observed.job for observed in self.dependencies.poller.snapshot.jobs.values() if not observed.missing)
        return queue_wait.of_slurm(jobs, self.dependencies.clock.time())

    def changed(self) -> Set[str]:
        """Return the keys of the groups of which a job has changed since the last decision, or is allocated."""
        before, self._snapshot = self._snapshot, self.dependencies.poller.snapshot
        # pods with allocated jobs compete for room on their nodes, so the decision is for all of them
        return changed_keys(before, self._snapshot) | self._states.allocated

    def reconcile(self, waiting: Mapping[str, Pod], is_here: IsHere) -> None:
        """Decide for all waiting pods that are here."""
        self._snapshot = self.dependencies.poller.snapshot
        self._unchanged.forget_all_but(waiting.keys())
        self._placements.current.forget_all_but(waiting.keys())
        updates = self._actor.update_pace.allowed(self.dependencies.clock.monotonic())
        here = {uid: pod for uid, pod in waiting.items() if is_here(uid, pod)}
        counts = self._decide(here, waiting, is_here, updates, whole=True)
        self._actor.update_pace.sent(counts[label_of(group_actions.Exclude)])
        if (now := self.dependencies.clock.monotonic()) >= self._count_from:
            self._count_from = now + COUNT_PERIOD
            waits = conditions.counts(here, lambda uid: self._states.of(self._groups.uids.get(uid, uid)))
            for name in conditions.WAITS:
                SCHEDULER_PODS.labels(name).set(waits[name])

    def reconcile_some(self, waiting: Mapping[str, Pod], keys: Set[str], is_here: IsHere) -> None:
        """Decide for the pods with these UIDs and for the groups with these keys."""
        key_of = self._groups.uids
        selected = {uid: pod for uid, pod in waiting.items() if uid in keys or key_of.get(uid) in keys}
        if selected:
            # updates of pending jobs are left to whole reconciliations: those of the most urgent jobs come first
            here = {uid: pod for uid, pod in selected.items() if is_here(uid, pod)}
            self._decide(here, selected, is_here, updates=0)

    def _decide(
        self,
        here: Mapping[str, Pod],
        waiting: Mapping[str, Pod],
        is_here: IsHere,
        updates: int,
        *,
        whole: bool = False,
    ) -> Counter[str]:
        """Decide for the groups of waiting pods, and submit the actions; return their number by kind.

        ``whole``: also for groups that run on nodes that take no new pod.
        """
        snapshot = self._snapshot
        unsettled = self.former.settle(snapshot)
        self._device_names.request(self._loop.workers)
        view = self._view(snapshot, updates)
        bare_pods = self._unchanged.changed(view, self._idle_bare_pods(here))
        closed = view.placements.closed if whole else frozenset[str]()
        shared = self._idle_groups(waiting, is_here, closed)
        view = replace(view, groups=[*pod_group.of_each(bare_pods), *shared])
        if unsettled or rules.waits_for_jobs(view):
            self.dependencies.poller.hurry()
        if rules.waits_for_poll(view):
            self.dependencies.poller.wake()
        decision = group_decide.decide(view)
        self._unchanged.keep(view, decision)
        # before the actions are dispatched: from then on, only the workers write the states of their pods
        self._states.merge(decision.states)
        if decision.refused:
            self._loop.wake()  # pending jobs exclude these nodes from now on
        return carry_out(decision, self._occupancy, self._loop.workers, self._actor.act)

    def _view(self, snapshot: Snapshot, updates: int) -> rules.SchedulerView:
        """Return the view of a decision without groups."""
        clock, slurm = self.dependencies.clock, self.dependencies.slurm
        time = clock.time()
        return rules.SchedulerView(
            groups=(),
            snapshot=snapshot,
            placements=self._placements.of(snapshot, time),
            states=self._states.by_uid,
            version=slurm.version,
            config=self.dependencies.config,
            now=clock.monotonic(),
            time=time,
            occupancy=self._occupancy,
            leading_since=self.former.settled_since,
            inherited_at=self.former.inherited_at,
            braked=self._is_braked(snapshot),
            updates=updates,
            new=self._new.uids,
            head=self._head.of(snapshot.jobs, clock.monotonic()),
            cancelled=slurm.cancellations.since(snapshot.began),
        )

    def _idle_bare_pods(self, here: Mapping[str, Pod]) -> list[Pod]:
        """Return the waiting pods with a job alone for which the workers have no call."""
        in_groups = self._groups.uids
        # a call of the workers writes the state of its pod: one writer at a time (scheduler.group_states)
        return [pod for uid, pod in here.items() if uid not in in_groups and not self._groups.is_binding(uid)]

    def _idle_groups(self, waiting: Mapping[str, Pod], is_here: IsHere, closed: Set[str]) -> list[Group]:
        """Return the groups with a waiting pod, or with a job on a ``closed`` node, without a call of the workers."""
        if not (in_groups := self._groups.uids):
            return []
        keys, jobs = {key for uid in waiting if (key := in_groups.get(uid)) is not None}, self._snapshot.jobs
        if closed:
            keys |= {
                key
                for key in self._groups.keys() - keys
                for job_id in self._snapshot.by_uid.get(key, ())
                if not closed.isdisjoint(jobs[job_id].job.nodes)
            }
        groups = self._groups.idle(keys, self.has_job, self._loop.workers)
        return [group for group in groups if all(is_here(pods.uid(pod), pod) for pod in group.open)]

    def _is_braked(self, snapshot: Snapshot) -> bool:
        """Whether so many jobs are missing that no job is submitted; computed once for each snapshot."""
        if snapshot.sequence != self._braked:
            self._braked = snapshot.sequence
            count, pods_without_job = (
                links.missing_jobs(self.dependencies.pods.items(), snapshot, self._max_grace)
                if links.is_any_missing(snapshot)
                else (0, {})
            )
            now = self.dependencies.clock.monotonic()
            self._brake = step(
                self._brake, count, pods_without_job.keys(), now, self._limits, reported=pods_without_job.keys()
            )
        return self._brake.engaged


def changed_keys(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the UIDs of the pods and the keys of the groups of which a job has changed between two snapshots."""
    changed_jobs = [observed for job_id, observed in after.jobs.items() if before.jobs.get(job_id) is not observed]
    changed_jobs += [before.jobs[job_id] for job_id in before.jobs.keys() - after.jobs.keys()]
    return {key for observed in changed_jobs if observed.job.link is not None for key in observed.job.link.keys}
