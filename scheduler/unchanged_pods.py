"""The pending pods for which the next decision has no result, because nothing that it depends on has changed.

Without them, a reconciliation beside thousands of pending pods decides only for some. Gangs are always decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from bridge.slurm import states
from bridge.slurm.models import Job, ObservedJob
from bridge.workload import pods
from scheduler import volumes
from scheduler.actions import Pod
from scheduler.conditions import MIN_INTERVAL
from scheduler.decide import Decision
from scheduler.pod_states import Pending, PodState
from scheduler.rules import TELL_UNKNOWN_AFTER, SchedulerView, is_current, lives, with_excluded


@dataclass(frozen=True, slots=True)
class _Decided:
    """What a decision without a result depended on; the objects are compared by identity.

    ``storage`` is the version of the storage objects, ``None`` for a pod without claims. ``outdated``: the excluded
    nodes of the job are changed as soon as Slurm probably starts it next.
    """

    pod: Pod
    entry: ObservedJob
    state: PodState
    storage: int | None
    outdated: bool


class UnchangedPods:
    """The decisions without a result, by the UID of the pod. Used by the loop alone."""

    def __init__(self) -> None:
        self._decided: dict[str, _Decided] = {}
        self._basis: tuple[object, ...] = ()
        self._is_new = True

    def without(self, view: SchedulerView) -> SchedulerView:
        """Return the view without the pods for which the decision has no result again."""
        basis = (view.placements, view.version)
        self._is_new = basis != self._basis
        if self._is_new:
            self._decided, self._basis = {}, basis
        return replace(view, pods=list(self._changed(view))) if self._decided else view

    def _changed(self, view: SchedulerView) -> Iterator[Pod]:
        decided, known, jobs, by_uid = self._decided.get, view.states.get, view.snapshot.jobs.get, view.snapshot.by_uid
        head, version = view.head, view.placements.storage_version
        for pod in view.pods:
            uid = pods.uid(pod)
            before = decided(uid)
            if (
                before is None
                or before.pod is not pod
                or known(uid) is not before.state
                or len(by_uid.get(uid, ())) != 1
                or jobs(before.entry.job.job_id) is not before.entry
                or before.storage not in (None, version)
                or (before.outdated and (head is None or before.entry.job.job_id in head))
            ):
                yield pod

    def keep(self, view: SchedulerView, decision: Decision) -> None:
        """Keep the decisions without a result about pods of the view, if the time does not change them.

        None is kept at the first decision with new placements: while nodes change all the time, it would cost more.
        """
        if self._is_new or not is_current(view):
            return
        acted = {pods.uid(action.pod) for action in decision.actions}
        for pod in view.pods:
            uid = pods.uid(pod)
            if uid not in acted and uid not in decision.states and (found := _decided(view, pod, uid)) is not None:
                self._decided[uid] = found

    def forget_all_but(self, uids: Set[str]) -> None:
        """Delete the decisions about pods that no longer wait."""
        for uid in self._decided.keys() - uids:
            del self._decided[uid]


def _decided(view: SchedulerView, pod: Pod, uid: str) -> _Decided | None:
    """Return what the decision about a pod depended on; ``None`` if the next one may differ without a change of it."""
    state, job_ids = view.states.get(uid), view.snapshot.by_uid.get(uid, ())
    if state is None or not isinstance(state.phase, Pending) or state.waiting_since is None or len(job_ids) != 1:
        return None
    entry = view.snapshot.jobs[job_ids[0]]
    if not lives(entry, state.cancelled) or states.is_allocated(entry.job.states):
        return None
    told_at = state.condition.at if state.condition is not None else -MIN_INTERVAL
    if view.now - state.waiting_since < TELL_UNKNOWN_AFTER or view.now - told_at < MIN_INTERVAL:
        return None
    # first: another thread may change the storage objects meanwhile
    storage = view.placements.storage_version if volumes.claims(pod) else None
    outdated = view.version.exclude_nodes and _is_outdated(view, pod, state, entry.job)
    if outdated and (view.head is None or entry.job.job_id in view.head):
        return None
    return _Decided(pod, entry, state, storage, outdated)


def _is_outdated(view: SchedulerView, pod: Pod, state: PodState, job: Job) -> bool:
    """Whether the excluded nodes of a job differ from the wanted ones, or are not known yet."""
    if state.excluded is None:
        return True  # read when Slurm probably starts the job next: the comparison is slow for many different lists
    return with_excluded(view, state, job, view.placements.of(pod, view.config.partition).excluded) is None
