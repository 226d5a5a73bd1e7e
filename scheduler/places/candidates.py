"""The places that a pod or group selects: which may have its job, which has room now, and which the policy chooses.

``podbridge explain`` shows them. ``docs/users/late-binding.md`` has the rules of a race. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from bridge import names
from bridge.script import consent
from bridge.workload import eligibility, links, places, remote_gangs
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.group_states import Pod
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.places.place_view import PlaceView, Policy, PoolView, Shape

STAYS = "a group that may go to Slurm stays there: not all its pods request a race"
STAYS_WITHOUT_RACE = (
    "a group that may go to Slurm stays there: late binding is not enabled, or the group has no other place"
)
NO_GANGS = "does not run groups of pods"
UNSELECTED = "not every pod of the group selects it"
DIFFERENT = "does not run groups whose pods request different resources"
DIFFERENT_SETTINGS = (
    "does not run groups whose pods differ in flavor, flags, deadline, limits of memory or members-per-node"
)
DIFFERENT_MPI = "the pods of a group name different ways of MPI"
NO_RACE = "the site allows no race"
NO_SLURM = "no Slurm is configured"
NO_PLACE_LEFT = "no place left"


class Candidate(NamedTuple):
    """A pool that the pods select, or the colocated Slurm (``local``).

    ``problem``: why they cannot have a job there. ``silent``: why the pool takes no job now. ``full``: why they would
    wait there. Each is empty without such a reason.
    """

    name: str
    problem: str = ""
    silent: str = ""
    full: str = ""

    @property
    def why(self) -> str:
        """Why the place does not take the pods now: a reason that stays comes first. Empty if it takes them."""
        if self.problem and not eligibility.may_pass(self.problem):
            return self.problem
        return self.silent or self.problem or self.full

    @property
    def may_open(self) -> bool:
        """Whether the place could run the pods, but is cordoned, not ready or has no room now."""
        return eligibility.may_pass(self.problem) if self.problem else bool(self.silent or self.full)


def of(view: PlaceView, shape: Shape, occupancy: PlannedOccupancy, *, race: bool = False) -> list[Candidate]:
    """Return the places that the pods select, in the order of preference; with ``race``, for the race of a pod.

    The consent of the namespace is not included: :func:`with_consent`.
    """
    return [
        _local(view, shape, occupancy) if name == names.LOCAL_POOL else of_pool(view, name, shape, occupancy, race=race)
        for name in shape.ordered
    ]


def _local(view: PlaceView, shape: Shape, occupancy: PlannedOccupancy) -> Candidate:
    full = shape.local_full(occupancy)
    problem = NO_SLURM if not view.colocated else "" if shape.fits_local() else full
    return Candidate(names.LOCAL_POOL, problem, full=full)


def of_pool(view: PlaceView, name: str, shape: Shape, occupancy: PlannedOccupancy, *, race: bool = False) -> Candidate:
    """Return one pool as a place."""
    pool = view.pools[name]
    problem = (_no_gang(pool, name, shape) if shape.size > 1 else "") or shape.refusal(name)
    if not problem and race and not pool.races:
        problem = NO_RACE
    return Candidate(name, problem, pool.problem, "" if problem else shape.full(name, occupancy))


def has_gangs(view: PlaceView, shape: Shape) -> bool:
    """Whether the pods of a group get one pool for all: one of the pools that they select runs groups."""
    return shape.remote and any(name != names.LOCAL_POOL and view.pools[name].gangs for name in shape.ordered)


def stays_in_slurm(view: PlaceView, shape: Shape, pod: Pod) -> bool:
    """Whether a pod is left to the colocated Slurm because it is of a group, whatever pools it selects."""
    return shape.local and view.colocated and links.group_of(pod) is not None


def stays_because(members: Iterable[Pod]) -> str:
    """Return why the waiting members of a group have no places beside the colocated Slurm."""
    return STAYS_WITHOUT_RACE if all(map(places.wants_race, members)) else STAYS


def _no_gang(pool: PoolView, name: str, shape: Shape) -> str:
    """Return the reason why a pool cannot run the pods as one job; empty if it can."""
    if not pool.gangs:
        return NO_GANGS
    if not shape.is_selected(name):
        return UNSELECTED
    if shape.size > remote_gangs.MOST_MEMBERS:
        return f"a group has at most {remote_gangs.MOST_MEMBERS} pods there"
    if not shape.has_one_mpi:
        return DIFFERENT_MPI
    if pool.heterogeneous or (shape.is_uniform and shape.has_equal_settings):
        return ""
    return DIFFERENT_SETTINGS if shape.is_uniform else DIFFERENT


def with_consent(
    view: PlaceView, members: Sequence[Pod], found: list[Candidate], concerns: Callable[[Candidate], bool]
) -> list[Candidate]:
    """Return the candidates; of the pools that ``concerns`` selects, those without the namespace's consent are refused.

    The namespace is read only for a pod with Secrets or tokens.
    """
    concerned = {each.name for each in found if each.name != names.LOCAL_POOL and concerns(each)}
    for pod in members if concerned else ():
        confidential = consent.confidential_everywhere(pod)
        if not confidential:
            continue
        namespace = pod["metadata"]["namespace"]
        found = [
            each._replace(problem=each.problem or _no_consent(view, namespace, confidential, each.name))
            if each.name in concerned
            else each
            for each in found
        ]
    return found


def _no_consent(view: PlaceView, namespace: str, confidential: str, pool: str) -> str:
    namespace_view = view.namespace(namespace)
    if namespace_view.problem:
        return namespace_view.problem
    return (
        "" if consent.lets_secrets_go(namespace_view.annotations, pool) else consent.exclusion(namespace, confidential)
    )


def choose(view: PlaceView, pools: list[str], requested: Resources, occupancy: PlannedOccupancy) -> str:
    """Return one of the pools that have room, by the policy. ``pools`` is in the order of preference."""
    if view.policy == "least-loaded":
        return min(pools, key=lambda name: _load(view, name, requested, occupancy))
    if view.policy == "weight":
        return min(pools, key=lambda name: _count(view, name, occupancy) / max(1, view.weights.get(name, 1)))
    if view.policy == "soonest":
        return min(pools, key=lambda name: _wait(view, name))
    return pools[0]


def _wait(view: PlaceView, name: str) -> float:
    """Return the seconds that a job probably waits at a place."""
    return view.local_wait() if name == names.LOCAL_POOL else view.pools[name].wait


def _members(view: PlaceView, name: str) -> list[NodeView]:
    return list(view.nodes) if name == names.LOCAL_POOL else [view.pools[name].node]


def _load(view: PlaceView, name: str, requested: Resources, occupancy: PlannedOccupancy) -> Decimal:
    """Return the largest used share, with the pod, of the resources that the pod requests."""
    members = _members(view, name)
    used = [occupancy.used(node.name) for node in members]
    shares = [Decimal(0)]
    for resource, value in requested.items():
        offered = sum(((node.offered or {}).get(resource, Decimal(0)) for node in members), Decimal(0))
        if offered > 0:
            shares.append((sum((u.get(resource, Decimal(0)) for u in used), Decimal(0)) + value) / offered)
    return max(shares)


def _count(view: PlaceView, name: str, occupancy: PlannedOccupancy) -> Decimal:
    return sum((occupancy.used(node.name).get("pods", Decimal(0)) for node in _members(view, name)), Decimal(0))


_WORDS: Mapping[Policy, str] = {
    "order": "first with room",
    "least-loaded": "least loaded",
    "weight": "by weight",
    "soonest": "shortest expected wait",
}


def explain(view: PlaceView, refused: Mapping[str, str], open_pools: list[str]) -> str:
    """Return why the policy has chosen its pool of these, and why it has not chosen the others."""
    words, described = _WORDS[view.policy], open_pools
    if view.policy == "soonest":
        described = [f"{name} ({_wait(view, name):.0f} s)" for name in open_pools]
    among = f" of {', '.join(described)}" if len(described) > 1 else ""
    return f"{words}{among}" + (f"; not {listed(refused)}" if refused else "")


def listed(refused: Mapping[str, str]) -> str:
    """Return pools with the reasons against them, at most five."""
    shown = [f"{name} ({why})" for name, why in list(refused.items())[:5]]
    more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
    return ", ".join(shown) + more


@dataclass(frozen=True, slots=True)
class Places:
    """The selected places in the order of preference, and the reasons why other pools have none."""

    selected: tuple[str, ...]
    refused: dict[str, str]


def select(candidates: Sequence[Candidate], kept: Sequence[str], limit: int) -> Places:
    """Select at most ``limit`` places. ``candidates`` are in the order of preference, ``kept`` are the present places.

    A present place stays while its pool can have it: it has waited in its queue. A present place at a pool that is not
    Ready stays only as long as no other pool needs its number. The colocated Slurm always keeps its place, because
    nothing withdraws its job while the pod waits.
    """

    def rank(candidate: Candidate) -> tuple[bool, bool, bool, bool]:
        new = candidate.name not in kept
        return new or candidate.name != names.LOCAL_POOL, bool(candidate.silent), new, bool(candidate.full)

    possible = [c for c in candidates if not c.problem and (not c.silent or c.name in kept)]
    chosen = {c.name for c in sorted(possible, key=rank)[:limit]}
    refused = {c.name: c.problem or c.silent or NO_PLACE_LEFT for c in candidates if c.name not in chosen}
    return Places(tuple(c.name for c in candidates if c.name in chosen), refused)
