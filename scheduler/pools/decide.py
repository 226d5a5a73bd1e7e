"""Which pool each waiting pod goes to: pure.

A pod may go to the pools whose taints it tolerates. Among those with room now the policy chooses: the order of the
annotation, the least loaded, or by weight. Where the colocated Slurm is allowed too, its nodes count as one more pool.
Pools to which the pod's namespace does not let its Secrets go are left out: there the pod could only wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from bridge import names
from bridge.script import consent
from bridge.workload import eligibility, pods, pool_selection
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.attempts import Attempt, Attempts
from scheduler.conditions import is_news
from scheduler.pools.usage import Usage, requests

Pod = Mapping[str, Any]
Policy = Literal["order", "least-loaded", "weight"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool: its virtual node, and why it takes nothing now (empty: it does)."""

    node: NodeView
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """The annotations of a namespace, and why they can't be read now (empty: they can)."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


NO_NAMESPACE = NamespaceView()


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the pod to the pool's virtual node."""

    pod: Pod
    pool: str
    why: str


@dataclass(frozen=True, slots=True)
class Local:
    """Leave the pod to the colocated Slurm."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Say on the pod why it waits."""

    pod: Pod
    reason: str
    message: str


Action = Bind | Local | Tell


@dataclass(frozen=True, slots=True)
class PoolSchedulerView:
    """All that a decision may depend on. ``pools`` by name, ``nodes`` are the colocated ones, ``now`` is monotonic.

    ``colocated`` says whether a Slurm is beside the kubelets; ``taken`` whether it holds a job for a pod (by UID):
    such a pod is its own. ``namespace`` returns a namespace by name; it is called only for pods with Secrets or tokens.
    """

    pods: Iterable[Pod]
    pools: Mapping[str, PoolView]
    nodes: tuple[NodeView, ...]
    usage: Usage
    attempts: Attempts
    policy: Policy
    weights: Mapping[str, int]
    now: float
    taken: Callable[[str], bool] = field(default=lambda _: False)
    namespace: Callable[[str], NamespaceView] = field(default=lambda _: NO_NAMESPACE)
    colocated: bool = True


def decide(view: PoolSchedulerView) -> list[Action]:
    """Decide for every pod that may go to a pool, most urgent first; at most one action a pod."""
    actions = (_one(view, pod) for pod in sorted(filter(_ours, view.pods), key=pods.urgency))
    return [action for action in actions if action is not None]


def _ours(pod: Pod) -> bool:
    return pods.is_open(pod) and not pods.is_deleted(pod) and not pods.is_gated(pod)


def _one(view: PoolSchedulerView, pod: Pod) -> Action | None:
    where = pool_selection.of(pod)
    uid = pods.uid(pod)
    attempt = view.attempts.of(uid)
    if attempt.bound or view.now < attempt.not_before:
        return None
    if not where.remote:
        return None if view.colocated else _tell(view, pod, attempt, pool_selection.NO_POOL)
    if where.local and (pods.job_id(pod) is not None or view.taken(uid)):
        return None
    asked = requests(pod)
    refused: dict[str, str] = {}
    open_pools: list[str] = []
    for name in where.ordered(view.pools):
        why = _no_local_room(view, pod, asked) if name == names.LOCAL_POOL else _no_room(view, pod, asked, name)
        if why:
            refused[name] = why
        else:
            open_pools.append(name)
    if open_pools:
        chosen = _choose(view, open_pools, asked)
        why = _explain(view.policy, refused, open_pools)
        if chosen == names.LOCAL_POOL:
            return Local(pod, why)
        view.usage.assume(uid, chosen, asked)
        return Bind(pod, chosen, why)
    if where.local and any(not eligibility.refusal(pod["spec"], asked, node) for node in view.nodes):
        return Local(pod, "no pool has room now; Slurm queues the pod")
    message = f"no pool takes the pod now: {_list(refused)}" if refused else _nothing(where)
    return _tell(view, pod, attempt, message)


def _tell(view: PoolSchedulerView, pod: Pod, attempt: Attempt, message: str) -> Tell | None:
    return Tell(pod, "Unschedulable", message) if is_news(pod, attempt, "Unschedulable", message, view.now) else None


def _no_room(view: PoolSchedulerView, pod: Pod, asked: Resources, name: str) -> str:
    pool = view.pools[name]
    if pool.problem:
        return pool.problem
    refusal = eligibility.refusal(pod["spec"], asked, pool.node) or _too_full(view, asked, pool.node)
    return refusal or _no_consent(view, pod, name)


def _no_consent(view: PoolSchedulerView, pod: Pod, name: str) -> str:
    """Look at the namespace last: a pod that has no room costs no question to the API server."""
    what = consent.confidential_everywhere(pod)
    if not what:
        return ""
    namespace = pod["metadata"]["namespace"]
    known = view.namespace(namespace)
    if known.problem:
        return known.problem
    return "" if consent.lets_secrets_go(known.annotations, name) else consent.exclusion(namespace, what)


def _no_local_room(view: PoolSchedulerView, pod: Pod, asked: Resources) -> str:
    why = "no node"
    for node in view.nodes:
        why = eligibility.refusal(pod["spec"], asked, node) or _too_full(view, asked, node)
        if not why:
            return ""
    return why


def _too_full(view: PoolSchedulerView, asked: Resources, node: NodeView) -> str:
    used = view.usage.of(node.name)
    for name in sorted(asked):
        if used.get(name, Decimal(0)) + asked[name] > (node.offered or {}).get(name, Decimal(0)):
            return f"no room for {name} now"
    return ""


def _choose(view: PoolSchedulerView, names_: list[str], asked: Resources) -> str:
    """Choose among pools that have room, given in the order of preference: of equals, the first."""
    if view.policy == "least-loaded":
        return min(names_, key=lambda name: _load(view, name, asked))
    if view.policy == "weight":
        return min(names_, key=lambda name: _count(view, name) / max(1, view.weights.get(name, 1)))
    return names_[0]


def _members(view: PoolSchedulerView, name: str) -> list[NodeView]:
    return list(view.nodes) if name == names.LOCAL_POOL else [view.pools[name].node]


def _load(view: PoolSchedulerView, name: str, asked: Resources) -> Decimal:
    """Give the fullest share, after the pod, of the resources that it asks for."""
    members = _members(view, name)
    used = [view.usage.of(node.name) for node in members]
    shares = [Decimal(0)]
    for resource, value in asked.items():
        offered = sum(((node.offered or {}).get(resource, Decimal(0)) for node in members), Decimal(0))
        if offered > 0:
            shares.append((sum((u.get(resource, Decimal(0)) for u in used), Decimal(0)) + value) / offered)
    return max(shares)


def _count(view: PoolSchedulerView, name: str) -> Decimal:
    return sum((view.usage.of(node.name).get("pods", Decimal(0)) for node in _members(view, name)), Decimal(0))


def _explain(policy: Policy, refused: Mapping[str, str], open_pools: list[str]) -> str:
    words = {"order": "first with room", "least-loaded": "least loaded", "weight": "by weight"}[policy]
    among = f" of {', '.join(open_pools)}" if len(open_pools) > 1 else ""
    return f"{words}{among}" + (f"; not {_list(refused)}" if refused else "")


def _list(refused: Mapping[str, str]) -> str:
    shown = [f"{name} ({why})" for name, why in list(refused.items())[:5]]
    more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
    return ", ".join(shown) + more


def _nothing(where: pool_selection.PoolSelector) -> str:
    pools = [name for name in where.named if name not in (names.LOCAL_POOL, names.ANY_POOL)]
    return f"none of the pools {', '.join(pools)} has a node" if pools else "there is no pool"
