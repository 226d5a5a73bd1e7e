"""The pending pods for which the next decision has no result, because nothing that it depends on has changed.

Without them, a reconciliation beside thousands of pending pods decides only for some. Groups of more than one pod are
always decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from bridge.core import isolation
from bridge.slurm import states
from bridge.slurm.models import ObservedJob
from bridge.workload import pods
from scheduler.conditions import MIN_INTERVAL, TELL_UNKNOWN_AFTER
from scheduler.decision import Decision
from scheduler.excluded_nodes import is_kept_up_to_date, with_excluded
from scheduler.group_actions import Pod
from scheduler.group_states import GroupState
from scheduler.rules import SchedulerView, is_current, is_live
from scheduler.volumes import pod_volumes


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a decision without a result depended on; the objects are compared by identity.

    ``placed`` is the number of the placements with which the excluded nodes of the job were up to date, and ``storage``
    the version of the storage objects, ``None`` for a pod without claims. ``placed`` is ``None`` if Slurm probably
    starts the job later: until it is in the head of the queue, the decision depends on neither.
    """

    pod: Pod
    observed: ObservedJob
    state: GroupState
    placed: int | None
    storage: int | None


class UnchangedPods:
    """The decisions without a result, by the UID of the pod. Used by the loop alone."""

    def __init__(self) -> None:
        self._decided: dict[str, _Decided] = {}
        self._version: object = None
        self._placements: object = None
        self._placed = 0

    def changed(self, view: SchedulerView, bare_pods: list[Pod]) -> list[Pod]:
        """Return the pods without those for which the decision has no result again. The view has no groups yet."""
        if view.version != self._version:
            self._decided, self._version = {}, view.version
        if view.placements is not self._placements:
            self._placements, self._placed = view.placements, self._placed + 1
        return list(self._changed(view, bare_pods)) if self._decided else bare_pods

    def _changed(self, view: SchedulerView, bare_pods: list[Pod]) -> Iterator[Pod]:
        decided_for, state_of, observed_job, job_ids_by_uid = (
            self._decided.get,
            view.states.get,
            view.snapshot.jobs.get,
            view.snapshot.by_uid,
        )
        storage, placed = view.placements.storage_version, self._placed
        for pod in bare_pods:
            uid = pods.uid(pod)
            before = decided_for(uid)
            if before is None:
                yield pod
            elif (
                before.pod is not pod
                or state_of(uid) is not before.state
                or len(job_ids_by_uid.get(uid, ())) != 1
                or observed_job(before.observed.job.job_id) is not before.observed
                or (before.placed is None and is_kept_up_to_date(view, before.observed.job.job_id))
                or before.placed not in (None, placed)
                or before.storage not in (None, storage)
            ):
                del self._decided[uid]
                yield pod

    def keep(self, view: SchedulerView, decision: Decision) -> None:
        """Keep the decisions without a result about pods of the view, if the time does not change them."""
        if not is_current(view):
            return
        acted_uids = {pods.uid(action.pod) for action in decision.actions}
        for group in view.groups:
            uid = group.key
            if group.ref is not None or uid in acted_uids or uid in decision.states:
                continue
            pod = group.pods[0]
            try:
                decided = self._decided_of(view, pod, uid)
            except Exception as error:
                isolation.report("scheduler", pods.key(pod), error)
                continue
            if decided is not None:
                self._decided[uid] = decided

    def _decided_of(self, view: SchedulerView, pod: Pod, uid: str) -> _Decided | None:
        """Return what the decision about a pod depended on; ``None`` if the next one may differ without a change."""
        state, job_ids = view.states.get(uid), view.snapshot.by_uid.get(uid, ())
        if state is None or not state.is_pending or state.waiting_since is None or len(job_ids) != 1:
            return None
        observed = view.snapshot.jobs[job_ids[0]]
        # an allocated job competes for room on its node: other pods change the decision about it
        if not is_live(observed, state.cancelled | view.cancelled) or states.is_allocated(observed.job.states):
            return None
        reported_at = state.condition.at if state.condition is not None else -MIN_INTERVAL
        # until then, the time alone may make a condition due
        if view.now - state.waiting_since < TELL_UNKNOWN_AFTER or view.now - reported_at < MIN_INTERVAL:
            return None
        if not is_kept_up_to_date(view, observed.job.job_id):
            return _Decided(pod, observed, state, None, None)
        # first: another thread may change the storage objects meanwhile
        storage = view.placements.storage_version if pod_volumes.claims(pod) else None
        nodes_to_exclude = view.placements.of(pod, view.config.partition).excluded
        if state.excluded is None or with_excluded(view, state, observed.job, nodes_to_exclude) is None:
            return None
        return _Decided(pod, observed, state, self._placed, storage)

    def forget_all_but(self, uids: Set[str]) -> None:
        """Delete the decisions about pods that no longer wait."""
        for uid in self._decided.keys() - uids:
            del self._decided[uid]
