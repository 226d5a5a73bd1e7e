"""The policies: which of the pools that have room a pod gets, and at which of them a pod that races is queued. Pure.

``docs/users/late-binding.md`` has the rules of a race.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from bridge import names
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from scheduler.nodes.occupancy import PlannedOccupancy
from scheduler.places.candidates import Candidate
from scheduler.places.place_view import PlaceView, Policy

NO_PLACE_LEFT = "no place left"


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
