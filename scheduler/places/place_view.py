"""What the choice of a place depends on: the pools, the namespaces, and the colocated Slurm. Plain data."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from bridge import names
from bridge.workload import eligibility
from bridge.workload.eligibility import NodeView
from scheduler.group_states import GroupState
from scheduler.nodes.occupancy import Occupancy
from scheduler.pod_group import Group

Policy = Literal["order", "least-loaded", "weight", "soonest"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool: its virtual node, and the reason why it takes no pods now (empty: it takes pods).

    ``races``: its site accepts places of pods that race, ``gang_races``: also of groups. ``gangs``: its site runs the
    pods of a group as one job, ``heterogeneous``: also if they request different resources. ``wait``: seconds that a
    job probably waits there. ``reaches``: its pods may reach Services.
    """

    node: NodeView
    problem: str = ""
    races: bool = False
    gangs: bool = False
    wait: float = 0.0
    gang_races: bool = False
    heterogeneous: bool = False
    reaches: bool = False


def pool_view(node: Mapping[str, Any], view: NodeView) -> PoolView:
    """Return the pool of a raw virtual node; ``view`` is the view of the node."""
    ready = eligibility.readiness(node)
    problem = "" if ready.get("status") == "True" else f"not ready: {ready.get('reason') or 'unknown'}"
    annotations = node["metadata"].get("annotations") or {}
    text = annotations.get(names.EXPECTED_WAIT, "")
    return PoolView(
        view,
        problem,
        races=annotations.get(names.RACE_ALLOWED) == "true",
        gangs=annotations.get(names.GANGS_ALLOWED) == "true",
        wait=float(text) if text.isascii() and text.isdigit() else 0.0,
        gang_races=annotations.get(names.GANG_RACE_ALLOWED) == "true",
        reaches=annotations.get(names.REACH_ALLOWED) == "true",
        heterogeneous=annotations.get(names.HETEROGENEOUS_GANGS_ALLOWED) == "true",
    )


def has_changed(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> bool:
    """Whether the pool of a raw virtual node has changed; ``None`` if there is no such node before or afterwards."""
    if old is None or new is None:
        return True
    return pool_view(old, eligibility.view(old)) != pool_view(new, eligibility.view(new))


@dataclass(frozen=True, slots=True)
class NamespaceView:
    """The annotations of a namespace, and the reason why they cannot be read now (empty: they were read)."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PlaceView:
    """All data that a decision depends on.

    ``pools`` are by name, ``nodes`` are those of the colocated Slurm, ``now`` is in monotonic seconds. ``states`` are
    the states of pods by UID; a pod without one is :data:`~scheduler.group_states.NEW`. ``colocated``: a Slurm is
    configured beside the kubelets. ``has_job`` returns whether this Slurm has a job for a UID; such a pod stays there.
    ``namespace`` returns a namespace by name; it is called only for pods with Secrets or tokens. ``most_places``
    is the limit for a pod that races; 0: no pod races. ``at_slurm`` are the UIDs of the pods that were left to Slurm.
    ``local_wait`` returns the seconds that a job probably waits in Slurm, ``new_gang`` a new name for the job of a
    group at a pool.
    """

    groups: Iterable[Group]
    pools: Mapping[str, PoolView]
    nodes: tuple[NodeView, ...]
    occupancy: Occupancy
    states: Mapping[str, GroupState]
    policy: Policy
    weights: Mapping[str, int]
    now: float
    has_job: Callable[[str], bool] = field(default=lambda _: False)
    namespace: Callable[[str], NamespaceView] = field(default=lambda _: NamespaceView())
    colocated: bool = True
    most_places: int = 0
    at_slurm: Set[str] = frozenset()
    local_wait: Callable[[], float] = field(default=lambda: 0.0)
    new_gang: Callable[[], str] = field(default=lambda: str(uuid.uuid4()))
