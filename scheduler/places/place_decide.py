"""The choice of a place for each waiting pod that may go to a pool. Pure.

A pod may go to the pools whose taints it tolerates. The policy selects among those that have room now: by the order in
the annotation, by load, or by weight. If the pod may go to the colocated Slurm too, the nodes of this Slurm count as
one more pool. A pool to which the pod's namespace does not send its Secrets is skipped. A pod that races is not bound:
it gets places at several pools (:mod:`scheduler.places.race_places`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

from bridge import names
from bridge.core import isolation
from bridge.workload import links, places, pods, pool_selection
from bridge.workload.resources import Resources
from scheduler.group_actions import BindToPool, SetCondition, SetPlaces
from scheduler.group_states import NEW, GroupState, Pod
from scheduler.places import candidates, place_policy, race_places
from scheduler.places.place_view import PlaceView
from scheduler.places.pool_shapes import Shape, Shapes
from scheduler.places.pool_usage import PlannedUsage, requests


@dataclass(frozen=True, slots=True)
class Local:
    """Leave the pod to the colocated Slurm."""

    pod: Pod
    why: str


Action = BindToPool | SetPlaces | SetCondition
_Result = Action | Local | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a decision.

    ``planned`` are the pods that the actions bind: they count on their nodes from now on
    (:meth:`~scheduler.places.pool_usage.Usage.assume`). ``local`` are the pods that are left to the colocated Slurm.
    """

    actions: list[Action]
    planned: list[tuple[str, str, Resources]]
    local: list[Local]


def decide(view: PlaceView) -> Decision:
    """Decide for every pod that may go to a pool, in the order of their priority; at most one action for each pod."""
    usage, shapes = PlannedUsage(view.usage), Shapes(view)
    waiting: list[tuple[tuple[int, str, str], Pod]] = []
    results: list[_Result] = []
    for pod in view.pods:
        try:
            if _is_waiting(pod):
                waiting.append((pods.urgency(pod), pod))
        except Exception as error:
            results.append(_report_failure(view, pod, error))
    for _, pod in sorted(waiting, key=itemgetter(0)):
        try:
            results.append(_decide_pod(view, pod, usage, shapes))
        except Exception as error:
            results.append(_report_failure(view, pod, error))
    actions = [result for result in results if isinstance(result, Action)]
    return Decision(actions, usage.planned, [result for result in results if isinstance(result, Local)])


def _report_failure(view: PlaceView, pod: Pod, error: Exception) -> SetCondition | None:
    """Return the condition that reports an unexpected error to the pod."""
    unexpected = isolation.report("scheduler", pods.key(pod), error)
    return _set_condition(view, pod, view.states.get(pods.uid(pod), NEW), str(unexpected), unexpected.reason)


def _is_waiting(pod: Pod) -> bool:
    return pods.is_open(pod) and not pods.is_deleted(pod) and not pods.is_gated(pod)


def _decide_pod(view: PlaceView, pod: Pod, usage: PlannedUsage, shapes: Shapes) -> _Result:
    selector = pool_selection.of(pod)
    uid = pods.uid(pod)
    state = view.states.get(uid, NEW)
    if state.bound_at is not None:
        return None
    if not selector.remote:
        return None if view.colocated else _set_condition(view, pod, state, pool_selection.NO_POOL)
    if selector.local and view.colocated and links.group_of(pod) is not None:
        return Local(pod, "a group that may go to Slurm stays there") if uid not in view.at_slurm else None
    requested = requests(pod)
    shape = shapes.of(pod, requested, selector)
    if view.most_places and places.wants_race(pod):
        kept, selection = places.recorded(pod), _places(view, pod, shape, usage)
        if kept or len(selection.selected) > 1:
            return _race(view, pod, state, kept, selection)
        # a pod that may have a job at Slurm stays there, if it has no other place
        if uid in view.at_slurm:
            return None
    # Slurm may start this job at any moment; on a pool, the pod would get a second one
    if selector.local and (pods.job_id(pod) is not None or view.has_job(uid)):
        return None
    found = candidates.with_consent(view, pod, candidates.of(view, pod, shape, usage), lambda each: not each.why)
    refused = {each.name: each.why for each in found if each.why}
    open_pools = [each.name for each in found if not each.why]
    if open_pools:
        pool = place_policy.choose(view, open_pools, requested, usage)
        reason = place_policy.explain(view, refused, open_pools)
        if pool == names.LOCAL_POOL:
            return Local(pod, reason)
        # the pod was counted on another pool, which has room again
        if usage.plan(uid, pool, requested):
            shapes.forget_full()
        return BindToPool(pod, pool, reason)
    if any(each.name == names.LOCAL_POOL and not each.problem for each in found):
        return Local(pod, "no pool has room now; Slurm queues the pod")
    waits = any(each.name != names.LOCAL_POOL and each.may_open for each in found)
    none = f"no pool takes the pod{' now' if waits else ''}"
    message = f"{none}: {place_policy.listed(refused)}" if refused else _nothing(selector)
    return _set_condition(view, pod, state, message, "NoRoomNow" if waits else "Unschedulable")


def _places(view: PlaceView, pod: Pod, shape: Shape, usage: PlannedUsage) -> race_places.Places:
    """Select the places of a pod that races. The colocated Slurm keeps its place: the pod may have a job there."""
    kept = places.recorded(pod)
    if pods.job_id(pod) is not None or view.has_job(pods.uid(pod)):
        kept = *kept, names.LOCAL_POOL  # it had a job there before it raced
    found = candidates.with_consent(
        view, pod, candidates.of(view, pod, shape, usage, race=True), lambda each: not each.problem and not each.silent
    )
    stays = names.LOCAL_POOL in kept
    found = [replace(each, problem="") if stays and each.name == names.LOCAL_POOL else each for each in found]
    return race_places.select(found, kept, view.most_places)


def _race(
    view: PlaceView, pod: Pod, state: GroupState, kept: tuple[str, ...], selection: race_places.Places
) -> _Result:
    text = f"queued at {', '.join(selection.selected) or 'no pool'}" + (
        f"; not {place_policy.listed(selection.refused)}" if selection.refused else ""
    )
    if selection.selected != kept:
        return SetPlaces(pod, selection.selected, text)
    if names.LOCAL_POOL in kept:  # the decision about the job there writes the condition
        return Local(pod, text) if pods.uid(pod) not in view.at_slurm else None
    return _set_condition(view, pod, state, text, "Racing")


def _set_condition(
    view: PlaceView, pod: Pod, state: GroupState, message: str, reason: str = "Unschedulable"
) -> SetCondition | None:
    return SetCondition(pod, reason, message) if state.reports(pod, reason, message, view.now) else None


def _nothing(selector: pool_selection.PoolSelector) -> str:
    pools = [name for name in selector.named if name not in (names.LOCAL_POOL, names.ANY_POOL)]
    return f"none of the pools {', '.join(pools)} has a node" if pools else "there is no pool"
