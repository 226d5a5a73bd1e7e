"""The places that a pod selects: which may have its job, and which has room now. Pure.

The scheduler chooses among them, and ``podbridge explain`` shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bridge import names
from bridge.script import consent
from bridge.workload import eligibility, links
from scheduler.group_states import Pod
from scheduler.places.place_view import PlaceView
from scheduler.places.pool_shapes import Shape
from scheduler.places.pool_usage import PlannedUsage

NO_GANGS = "does not run groups of pods"
NO_RACE = "the site allows no race"
NO_SLURM = "no Slurm is configured"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pool that the pod selects, or the colocated Slurm (``local``).

    ``problem``: why the pod cannot have a place there. ``silent``: why the pool takes no job now. ``full``: why the pod
    would wait there. Each is empty without such a reason.
    """

    name: str
    problem: str = ""
    silent: str = ""
    full: str = ""

    @property
    def why(self) -> str:
        """Why the place does not take the pod now: a reason that stays comes first. Empty if it takes the pod."""
        stays = self.problem if not eligibility.may_pass(self.problem) else ""
        return stays or self.silent or self.problem or self.full

    @property
    def may_open(self) -> bool:
        """Whether the place could run the pod, but is cordoned, not ready or has no room now."""
        return eligibility.may_pass(self.problem) if self.problem else bool(self.silent or self.full)


def of(view: PlaceView, pod: Pod, shape: Shape, usage: PlannedUsage, *, race: bool = False) -> list[Candidate]:
    """Return the places that the pod selects, in the order of preference; with ``race``, for its race.

    The consent of the namespace is not included: :func:`with_consent`.
    """
    in_group = links.group_of(pod) is not None
    return [
        _local(view, shape, usage) if name == names.LOCAL_POOL else _pool(view, name, shape, usage, in_group, race)
        for name in shape.ordered
    ]


def _local(view: PlaceView, shape: Shape, usage: PlannedUsage) -> Candidate:
    full = shape.local_full(usage)
    problem = NO_SLURM if not view.colocated else "" if shape.fits_local() else full
    return Candidate(names.LOCAL_POOL, problem, full=full)


def _pool(view: PlaceView, name: str, shape: Shape, usage: PlannedUsage, in_group: bool, race: bool) -> Candidate:
    pool, problem = view.pools[name], shape.refusal(name)
    if not problem and in_group and not pool.gangs:
        problem = NO_GANGS
    if not problem and race and not pool.races:
        problem = NO_RACE
    return Candidate(name, problem, pool.problem, "" if problem else shape.full(name, usage))


def with_consent(
    view: PlaceView, pod: Pod, found: list[Candidate], concerns: Callable[[Candidate], bool]
) -> list[Candidate]:
    """Return the candidates; of the pools that ``concerns`` selects, those without the namespace's consent are refused.

    The namespace is read only for a pod with Secrets or tokens.
    """
    concerned = {each.name for each in found if each.name != names.LOCAL_POOL and concerns(each)}
    confidential = consent.confidential_everywhere(pod) if concerned else ""
    if not confidential:
        return found
    namespace = pod["metadata"]["namespace"]
    return [
        replace(each, problem=_no_consent(view, namespace, confidential, each.name)) if each.name in concerned else each
        for each in found
    ]


def _no_consent(view: PlaceView, namespace: str, confidential: str, pool: str) -> str:
    namespace_view = view.namespace(namespace)
    if namespace_view.problem:
        return namespace_view.problem
    return (
        "" if consent.lets_secrets_go(namespace_view.annotations, pool) else consent.exclusion(namespace, confidential)
    )
