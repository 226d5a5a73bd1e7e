"""The choice of a place for each waiting pod that may go to a pool. Pure.

A pod may go to the pools whose taints it tolerates. The policy selects among those that have room now: by the order in
the annotation, by load, or by weight. If the pod may go to the colocated Slurm too, the nodes of this Slurm count as
one more pool. A pool to which the pod's namespace does not send its Secrets is skipped. A pod that races is not bound:
it gets places at several pools (:mod:`scheduler.places.race_places`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from decimal import Decimal
from operator import itemgetter
from typing import Any, Literal

from bridge import names
from bridge.core import isolation
from bridge.script import consent
from bridge.workload import eligibility, links, places, pods, pool_selection
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.group_actions import BindToPool, SetCondition, SetPlaces
from scheduler.group_states import NEW, GroupState, Pod
from scheduler.places import race_places
from scheduler.places.pool_usage import PlannedUsage, Usage, requests

Policy = Literal["order", "least-loaded", "weight", "soonest"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool: its virtual node, and the reason why it takes no pods now (empty: it takes pods).

    ``races``: its site accepts places of pods that race. ``wait``: seconds that a job probably waits there.
    """

    node: NodeView
    problem: str = ""
    races: bool = False
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """The annotations of a namespace, and the reason why they cannot be read now (empty: they were read)."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Local:
    """Leave the pod to the colocated Slurm."""

    pod: Pod
    why: str


Action = BindToPool | SetPlaces | SetCondition
_Result = Action | Local | None


@dataclass(frozen=True, slots=True)
class PlaceView:
    """All data that a decision depends on.

    ``pools`` are by name, ``nodes`` are those of the colocated Slurm, ``now`` is in monotonic seconds. ``states`` are
    the states of pods by UID; a pod without one is :data:`~scheduler.group_states.NEW`. ``colocated``: a Slurm is
    configured beside the kubelets. ``has_job`` returns whether this Slurm has a job for a UID; such a pod stays there.
    ``namespace`` returns a namespace by name; it is called only for pods with Secrets or tokens. ``most_places``
    is the limit for a pod that races; 0: no pod races. ``at_slurm`` are the UIDs of the pods that were left to Slurm.
    ``local_wait``: seconds that a job probably waits in Slurm.
    """

    pods: Iterable[Pod]
    pools: Mapping[str, PoolView]
    nodes: tuple[NodeView, ...]
    usage: Usage
    states: Mapping[str, GroupState]
    policy: Policy
    weights: Mapping[str, int]
    now: float
    has_job: Callable[[str], bool] = field(default=lambda _: False)
    namespace: Callable[[str], NamespaceView] = field(default=lambda _: NamespaceView())
    colocated: bool = True
    most_places: int = 0
    at_slurm: Set[str] = frozenset()
    local_wait: float = 0.0


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
    usage, shapes = PlannedUsage(view.usage), _Shapes(view)
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


class _Shape:
    """The pools for all pods of one decision that select and request the same.

    A pool that is full stays full during a decision, which only adds pods, unless the decision moves a pod
    (:meth:`forget_full`).
    """

    def __init__(
        self,
        view: PlaceView,
        spec: Mapping[str, Any],
        requested: Resources,
        selector: pool_selection.PoolSelector,
    ) -> None:
        self.ordered = selector.ordered(view.pools)
        self._view, self._spec, self._requested = view, spec, requested
        self._refusals: dict[str, str] = {}
        self._full: dict[str, str] = {}
        self._local: str | None = None
        self._fits_local: bool | None = None

    def refusal(self, name: str) -> str:
        """Return the reason why the virtual node of a pool is refused, whatever is on it; empty if it is not."""
        why = self._refusals.get(name)
        if why is None:
            node = self._view.pools[name].node
            why = self._refusals[name] = eligibility.refusal(self._spec, self._requested, node)
        return why

    def full(self, name: str, usage: PlannedUsage) -> str:
        """Return the reason why a pool has no room now; empty if it has room."""
        why = self._full.get(name) or _too_full(usage, self._requested, self._view.pools[name].node)
        if why:
            self._full[name] = why
        return why

    def waits_for(self, name: str, usage: PlannedUsage) -> bool:
        """Whether the pool could run the pods, but is cordoned, not ready or has no room now."""
        if why := self.refusal(name):
            return eligibility.may_pass(why)
        return bool(self._view.pools[name].problem or self.full(name, usage))

    def local_full(self, usage: PlannedUsage) -> str:
        """Return the reason why no node of the colocated Slurm has room now; empty if one has. No decision binds there.

        The reason is that of the last node.
        """
        if self._local is None:
            self._local = "no node"
            for node in self._view.nodes:
                refused = eligibility.refusal(self._spec, self._requested, node)
                self._local = refused or _too_full(usage, self._requested, node)
                if not self._local:
                    break
        return self._local

    def fits_local(self) -> bool:
        """Whether a node of the colocated Slurm could run the pods, whatever is on it."""
        if self._fits_local is None:
            nodes = self._view.nodes
            self._fits_local = any(not eligibility.refusal(self._spec, self._requested, node) for node in nodes)
        return self._fits_local

    def forget_full(self) -> None:
        """Compute again where there is room."""
        self._full, self._local = {}, None


class _Shapes:
    """The shapes of the pods of one decision: most pods request the same as others."""

    def __init__(self, view: PlaceView) -> None:
        self._view = view
        self._by_key: dict[tuple[pool_selection.PoolSelector, str], _Shape] = {}

    def of(self, pod: Pod, requested: Resources, selector: pool_selection.PoolSelector) -> _Shape:
        """Return the shape of a pod."""
        spec = {name: pod["spec"][name] for name in eligibility.SPEC_FIELDS if name in pod["spec"]}
        key = selector, repr((sorted(requested.items()), spec))
        shape = self._by_key.get(key)
        if shape is None:
            shape = self._by_key[key] = _Shape(self._view, spec, requested, selector)
        return shape

    def forget_full(self) -> None:
        """Compute again where there is room."""
        for shape in self._by_key.values():
            shape.forget_full()


def _is_waiting(pod: Pod) -> bool:
    return pods.is_open(pod) and not pods.is_deleted(pod) and not pods.is_gated(pod)


def _decide_pod(view: PlaceView, pod: Pod, usage: PlannedUsage, shapes: _Shapes) -> _Result:
    selector = pool_selection.of(pod)
    uid = pods.uid(pod)
    state = view.states.get(uid, NEW)
    if state.bound_at is not None:
        return None
    if not selector.remote:
        return None if view.colocated else _set_condition(view, pod, state, pool_selection.NO_POOL)
    if selector.local and view.colocated and links.group_of(pod) is not None:
        return Local(pod, "pools do not start the pods of a group together") if uid not in view.at_slurm else None
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
    refused, open_pools = _candidates(view, pod, shape, usage)
    if open_pools:
        pool = _choose(view, open_pools, requested, usage)
        reason = _explain(view, refused, open_pools)
        if pool == names.LOCAL_POOL:
            return Local(pod, reason)
        # the pod was counted on another pool, which has room again
        if usage.plan(uid, pool, requested):
            shapes.forget_full()
        return BindToPool(pod, pool, reason)
    if selector.local and shape.fits_local():
        return Local(pod, "no pool has room now; Slurm queues the pod")
    message = f"no pool takes the pod now: {_list(refused)}" if refused else _nothing(selector)
    waits = any(name != names.LOCAL_POOL and shape.waits_for(name, usage) for name in refused)
    return _set_condition(view, pod, state, message, "NoRoomNow" if waits else "Unschedulable")


def _places(view: PlaceView, pod: Pod, shape: _Shape, usage: PlannedUsage) -> race_places.Places:
    """Select the places of a pod that races. The colocated Slurm keeps its place: the pod may have a job there."""
    kept = places.recorded(pod)
    if pods.job_id(pod) is not None or view.has_job(pods.uid(pod)):
        kept = *kept, names.LOCAL_POOL  # it had a job there before it raced
    confidential = consent.confidential_everywhere(pod)
    candidates: list[race_places.Candidate] = []
    for name in shape.ordered:
        if name == names.LOCAL_POOL:
            full = shape.local_full(usage)
            fits = view.colocated and shape.fits_local()
            problem = "" if name in kept or fits else full or "no Slurm is configured"
            candidates.append(race_places.Candidate(name, problem, full=full))
            continue
        pool = view.pools[name]
        problem = shape.refusal(name) or ("" if pool.races else race_places.NOT_ALLOWED)
        if confidential and not problem and not pool.problem:
            problem = _no_consent(view, pod["metadata"]["namespace"], confidential, name)
        candidates.append(race_places.Candidate(name, problem, pool.problem, shape.full(name, usage)))
    return race_places.select(candidates, kept, view.most_places)


def _race(
    view: PlaceView, pod: Pod, state: GroupState, kept: tuple[str, ...], selection: race_places.Places
) -> _Result:
    text = f"queued at {', '.join(selection.selected) or 'no pool'}" + (
        f"; not {_list(selection.refused)}" if selection.refused else ""
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


def _candidates(view: PlaceView, pod: Pod, shape: _Shape, usage: PlannedUsage) -> tuple[dict[str, str], list[str]]:
    """Return the pools that do not take the pod now, each with the reason, and those that do, in order of preference.

    The namespace comes last: for a pod without room anywhere, its annotations are not read.
    """
    reasons = {
        name: shape.local_full(usage)
        if name == names.LOCAL_POOL
        else view.pools[name].problem or shape.refusal(name) or shape.full(name, usage)
        for name in shape.ordered
    }
    remote = [name for name, why in reasons.items() if not why and name != names.LOCAL_POOL]
    confidential = consent.confidential_everywhere(pod) if remote else ""
    if confidential:
        for name in remote:
            reasons[name] = _no_consent(view, pod["metadata"]["namespace"], confidential, name)
    refused = {name: why for name, why in reasons.items() if why}
    return refused, [name for name, why in reasons.items() if not why]


def _no_consent(view: PlaceView, namespace: str, confidential: str, pool: str) -> str:
    namespace_view = view.namespace(namespace)
    if namespace_view.problem:
        return namespace_view.problem
    return (
        "" if consent.lets_secrets_go(namespace_view.annotations, pool) else consent.exclusion(namespace, confidential)
    )


def _too_full(usage: PlannedUsage, requested: Resources, node: NodeView) -> str:
    used = usage.of(node.name)
    for name in sorted(requested):
        if used.get(name, Decimal(0)) + requested[name] > (node.offered or {}).get(name, Decimal(0)):
            return f"no room for {name} now"
    return ""


def _choose(view: PlaceView, pools: list[str], requested: Resources, usage: PlannedUsage) -> str:
    """Return one of the pools that have room, by the policy. ``pools`` is in the order of preference."""
    if view.policy == "least-loaded":
        return min(pools, key=lambda name: _load(view, name, requested, usage))
    if view.policy == "weight":
        return min(pools, key=lambda name: _count(view, name, usage) / max(1, view.weights.get(name, 1)))
    if view.policy == "soonest":
        return min(pools, key=lambda name: _wait(view, name))
    return pools[0]


def _wait(view: PlaceView, name: str) -> float:
    """Return the seconds that a job probably waits at a place."""
    return view.local_wait if name == names.LOCAL_POOL else view.pools[name].wait


def _members(view: PlaceView, name: str) -> list[NodeView]:
    return list(view.nodes) if name == names.LOCAL_POOL else [view.pools[name].node]


def _load(view: PlaceView, name: str, requested: Resources, usage: PlannedUsage) -> Decimal:
    """Return the largest used share, with the pod, of the resources that the pod requests."""
    members = _members(view, name)
    used = [usage.of(node.name) for node in members]
    shares = [Decimal(0)]
    for resource, value in requested.items():
        offered = sum(((node.offered or {}).get(resource, Decimal(0)) for node in members), Decimal(0))
        if offered > 0:
            shares.append((sum((u.get(resource, Decimal(0)) for u in used), Decimal(0)) + value) / offered)
    return max(shares)


def _count(view: PlaceView, name: str, usage: PlannedUsage) -> Decimal:
    return sum((usage.of(node.name).get("pods", Decimal(0)) for node in _members(view, name)), Decimal(0))


_WORDS: Mapping[Policy, str] = {
    "order": "first with room",
    "least-loaded": "least loaded",
    "weight": "by weight",
    "soonest": "shortest expected wait",
}


def _explain(view: PlaceView, refused: Mapping[str, str], open_pools: list[str]) -> str:
    words, described = _WORDS[view.policy], open_pools
    if view.policy == "soonest":
        described = [f"{name} ({_wait(view, name):.0f} s)" for name in open_pools]
    among = f" of {', '.join(described)}" if len(described) > 1 else ""
    return f"{words}{among}" + (f"; not {_list(refused)}" if refused else "")


def _list(refused: Mapping[str, str]) -> str:
    listed = [f"{name} ({why})" for name, why in list(refused.items())[:5]]
    more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
    return ", ".join(listed) + more


def _nothing(selector: pool_selection.PoolSelector) -> str:
    pools = [name for name in selector.named if name not in (names.LOCAL_POOL, names.ANY_POOL)]
    return f"none of the pools {', '.join(pools)} has a node" if pools else "there is no pool"
