"""What the choice of a place depends on: the pools, the namespaces and the colocated Slurm, and where groups could go.

Pure. Where groups that select and request the same could go is computed once for all of them in a decision.
"""

from __future__ import annotations

import contextlib
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bridge import names
from bridge.errors import ScriptError
from bridge.script import flavor_limits, sizing
from bridge.script.settings import BuildSettings
from bridge.script.sizing import Request, Size
from bridge.workload import eligibility, links, pool_selection, remote_gangs, resources, services
from bridge.workload.eligibility import NodeView
from bridge.workload.resources import Resources
from bridge.workload.tolerations import Covers, remembered
from scheduler import member_places
from scheduler.group_states import GroupState, Pod, Wait
from scheduler.nodes.occupancy import Occupancy, PlannedOccupancy
from scheduler.pod_group import Group

Policy = Literal["order", "least-loaded", "weight", "soonest"]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool: its virtual node, and the reason why it takes no pods now (empty: it takes pods).

    ``races``: its site accepts places of pods that race. ``gangs``: its site runs the pods of a group as one job,
    ``heterogeneous``: also if they request different resources. ``wait``: seconds that a job probably waits there.
    ``reaches``: its pods may reach Services. ``sizing``: its flavors, if any has limits.
    """

    node: NodeView
    problem: str = ""
    races: bool = False
    gangs: bool = False
    wait: float = 0.0
    heterogeneous: bool = False
    reaches: bool = False
    sizing: BuildSettings | None = None


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
        reaches=annotations.get(names.REACH_ALLOWED) == "true",
        heterogeneous=annotations.get(names.HETEROGENEOUS_GANGS_ALLOWED) == "true",
        sizing=flavor_limits.parse(annotations.get(names.FLAVOR_LIMITS, "")),
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


class Kind(NamedTuple):
    """What a pod selects and requests.

    ``spec`` has the fields of :data:`bridge.workload.eligibility.SPEC_FIELDS`. ``reaches``: it reaches Services.
    ``request``: of a member of a group, what decides its size at a site. ``shape``: by which the hub counts the members
    that request the same (:func:`bridge.workload.remote_gangs.alike`). ``settings``: what else differs between the
    components of a heterogeneous job; ``mpi``: see :func:`bridge.workload.remote_gangs.mpi`.
    """

    selector: pool_selection.PoolSelector
    spec: Mapping[str, Any]
    requested: Resources
    reaches: bool = False
    request: Request | None = None
    shape: str = ""
    settings: tuple[object, ...] = ()
    mpi: str = ""


NO_REACH = "its pods reach no Services"
_OnNode = tuple[Mapping[str, Any], Resources, Covers]
"""What the members of one kind on one node of the colocated Slurm need: as of :class:`Kind`, for all of them."""


class Shape:
    """The pools for all groups of one decision whose members select and request the same.

    ``kinds`` has each kind of the ``size`` members once, ``counts`` how many have it, ``requested`` is the sum of their
    requests: the virtual node of a pool has the resources of its whole site. ``selector`` is that of the first member;
    ``remote`` and ``local`` hold for all. ``together`` members may share a node of the colocated Slurm.

    A pool that is full stays full during a decision, which only adds pods.
    """

    def __init__(
        self, view: PlaceView, kinds: Sequence[Kind], counts: Sequence[int], requested: Resources, together: int
    ) -> None:
        self.no_room: Wait | None = None
        """Why no pool takes any of these groups, once it is known: no decision makes room."""
        self.selector, self.requested, self.size = kinds[0].selector, requested, sum(counts)
        self._together = min(together, self.size)
        self.remote = all(kind.selector.remote for kind in kinds)
        self.local = all(kind.selector.local for kind in kinds)
        ordered = self.selector.ordered(view.pools)
        self.ordered = [name for name in ordered if self.local or name != names.LOCAL_POOL]
        self.is_uniform = all(kind.requested == kinds[0].requested for kind in kinds)
        self.has_equal_settings = all(kind.settings == kinds[0].settings for kind in kinds)
        self.has_one_mpi = len({kind.mpi for kind in kinds}) == 1
        self._view, self._kinds, self._counts = view, kinds, counts
        self._refusals: dict[str, str] = {}
        self._full: dict[str, str] = {}
        self._local: str | None = None
        self._fits_local: bool | None = None

    def refusal(self, name: str) -> str:
        """Return the reason why the virtual node of a pool is refused, whatever is on it; empty if it is not."""
        why = self._refusals.get(name)
        if why is None:
            pool = self._view.pools[name]
            why = self._refusals[name] = self._no_reach(name) or self._over_limit(pool) or self._refused(pool.node)
        return why

    def _over_limit(self, pool: PoolView) -> str:
        """Return the reason why a site's flavors do not cover the pods of a group together; empty if they do."""
        if pool.sizing is None:
            return ""
        counted, alike, sizes = [*zip(self._kinds, self._counts, strict=True)], Counter[str](), list[Size]()
        for kind, count in counted:
            alike[kind.shape] += count
        try:
            for kind, count in counted:
                if kind.request is not None:
                    sizes += [sizing.size_of(kind.request, pool.sizing, alike[kind.shape])] * count
            return flavor_limits.group_refusal(sizes, pool.sizing)
        except (ScriptError, ValueError) as error:
            return str(error)

    def _no_reach(self, name: str) -> str:
        return NO_REACH if any(kind.reaches for kind in self._kinds) and not self._view.pools[name].reaches else ""

    def is_selected(self, name: str) -> bool:
        """Whether every member selects the pool."""
        return all(name in kind.selector.ordered((name,)) for kind in self._kinds)

    def _refused(self, node: NodeView) -> str:
        """Return the reason why a node is refused for one of the members; empty if it is not."""
        for kind in self._kinds:
            if why := eligibility.refusal(kind.spec, self.requested, node):
                return why
        return ""

    def full(self, name: str, occupancy: PlannedOccupancy) -> str:
        """Return the reason why a pool has no room now; empty if it has room."""
        why = self._full.get(name) or too_full(occupancy, self.requested, self._view.pools[name].node)
        if why:
            self._full[name] = why
        return why

    def local_full(self, occupancy: PlannedOccupancy) -> str:
        """Return why too few nodes of the colocated Slurm have room now; empty if enough have. No decision binds there.

        The reason is that of the last node.
        """
        if self._local is None:
            self._local = self._lack_of_nodes(
                lambda kind, node: _refused_on(kind, node) or too_full(occupancy, kind[1], node)
            )
        return self._local

    def fits_local(self) -> bool:
        """Whether enough nodes of the colocated Slurm could run the pods, whatever is on them."""
        if self._fits_local is None:
            self._fits_local = not self._lack_of_nodes(_refused_on)
        return self._fits_local

    def _lack_of_nodes(self, refusal: Callable[[_OnNode, NodeView], str]) -> str:
        """Return the last reason if fewer nodes than the pods need may run any of them; empty if there are enough."""
        why, needed = "no node", math.ceil(self.size / self._together)
        kinds = [
            (
                kind.spec,
                resources.total([kind.requested] * self._together),
                remembered(kind.spec.get("tolerations") or ()),
            )
            for kind in self._kinds
        ]
        for node in self._view.nodes:
            refused = ""
            for kind in kinds:
                if not (refused := refusal(kind, node)):
                    break
            why, needed = refused or why, needed - (not refused)
            if not needed:
                return ""
        return why


class Shapes:
    """The shapes of the groups of one decision: most groups request the same as others."""

    def __init__(self, view: PlaceView) -> None:
        self._view = view
        self._has_limits = any(pool.sizing is not None for pool in view.pools.values())
        self._by_key: dict[tuple[int, tuple[tuple[pool_selection.PoolSelector, str], ...]], Shape] = {}

    def of(self, members: Sequence[Pod]) -> Shape:
        """Return the shape of a group with these members, at least one."""
        is_group = len(members) > 1
        each = [_kind(pod, is_group=is_group, is_sized=is_group and self._has_limits) for pod in members]
        together = member_places.together(members) if is_group else 1
        key = together, tuple([(kind.selector, _text(kind)) for kind in each])
        shape = self._by_key.get(key)
        if shape is None:
            kinds, counts = dict(zip(key[1], each, strict=True)), Counter(key[1])
            total = resources.total(kind.requested for kind in each)
            counted = [counts[text] for text in kinds]
            shape = self._by_key[key] = Shape(self._view, [*kinds.values()], counted, total, together)
        return shape


def _refused_on(kind: _OnNode, node: NodeView) -> str:
    spec, requests, covers = kind
    return eligibility.refusal(spec, requests, node, covers)


def _text(kind: Kind) -> str:
    """Return what a kind has beside its selector; those of equal kinds are equal."""
    requested = sorted(kind.requested.items())
    return repr((requested, kind.spec, kind.reaches, kind.request, kind.shape, kind.settings, kind.mpi))


def _kind(pod: Pod, *, is_group: bool, is_sized: bool) -> Kind:
    spec = {name: pod["spec"][name] for name in eligibility.SPEC_FIELDS if name in pod["spec"]}
    request, shape = None, ""
    if is_sized:
        shape = links.shape(pod)
        with contextlib.suppress(ScriptError):  # the pool that gets the pod refuses it with this error
            request = sizing.request_of(pod)
    settings, mpi = _settings(pod) if is_group else ((), "")
    requested, reaches = resources.node_requests(pod["spec"]), services.is_reaching(pod)
    return Kind(pool_selection.of(pod), spec, requested, reaches, request, shape, settings, mpi)


def _settings(pod: Pod) -> tuple[tuple[object, ...], str]:
    """Return settings and way of MPI of a member; see :class:`Kind`. A site gets the limit of memory as the request."""
    spec, annotations = pod["spec"], pod["metadata"].get("annotations") or {}
    holders = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()), spec)
    memory = [((each.get("resources") or {}).get("limits") or {}).get("memory") for each in holders]
    deadline = spec.get("activeDeadlineSeconds")
    time = None if deadline is None else (deadline, spec.get("terminationGracePeriodSeconds"))
    flags = annotations.get(names.FLAGS), annotations.get(names.FLAVOR)
    return (*memory, time, *flags, remote_gangs.per_node(pod)), remote_gangs.mpi(pod)


def too_full(occupancy: PlannedOccupancy, requested: Resources, node: NodeView) -> str:
    """Return the reason why a node has no room for a request now; empty if it has room."""
    lacking = occupancy.lacking(node.name, requested, node.offered or {})
    return f"no room for {next(iter(lacking))} now" if lacking else ""
