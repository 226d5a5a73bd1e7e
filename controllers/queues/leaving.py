"""Flavors that leave a ClusterQueue while workloads may use them. Pure.

Kueue ends no workload when its flavor leaves the ClusterQueue: the reservation counts until the workload ends
(``pkg/cache/scheduler/clusterqueue.go``, v0.15). But a ResourceFlavor that no ClusterQueue names is deleted at once.
Without it, Kueue cannot start a workload that has reserved quota (``pkg/podset/podset.go``): its job stays suspended,
and holds the quota. So a flavor first offers nothing. It leaves when Kueue has reported for this generation that
nothing uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from controllers.queues import manifests
from controllers.queues.manifests import Quota

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Leaving:
    """A flavor that stays in a ClusterQueue without an offer: the quota to write, and why it stays."""

    quota: Quota
    reason: str


def own(queue: Object, uid: str, present: Sequence[Quota], flavors: Collection[str]) -> list[Leaving]:
    """Return the flavors to keep in the ClusterQueue of the MasterQueue ``uid``.

    ``queue`` is the observed ClusterQueue, empty if there is none; ``present`` are the quotas of the flavors that do
    not leave, ``flavors`` the names of the ResourceFlavors that exist.
    """
    # each flavor of a resource group must have a quota of all its resources
    zero = dict.fromkeys(manifests.resources(present), Fraction(0)) if present else _covered(queue)
    return [
        Leaving((name, zero, None), _reason(queue, name, "workloads use it"))
        for name in _missing(queue, uid, present, flavors)
        if not manifests.is_unused(queue, name)
    ]


def borrowed(
    queue: Object, uid: str, present: Sequence[Quota], flavors: Collection[str], covered: Sequence[str]
) -> list[Leaving]:
    """Return the flavors to keep in a ClusterQueue that borrows, with a limit of 0; see :func:`own`.

    ``covered`` are the resources of the MasterQueue. Beyond the number of flavors that Kueue allows, none is kept.
    """
    resources = (*covered, *(manifests.resources(present) if present else ()))
    zero = dict.fromkeys(resources, Fraction(0)) or _covered(queue)
    used = f"workloads of ClusterQueue {queue['metadata']['name']} use it" if queue else ""
    kept = [
        Leaving((name, zero, zero), _reason(queue, name, used))
        for name in _missing(queue, uid, present, flavors)
        if manifests.can_borrow(queue, name) or not manifests.is_unused(queue, name)
    ]
    return kept[: max(0, manifests.MOST_FLAVORS - len(present))]


def _missing(queue: Object, uid: str, present: Sequence[Quota], flavors: Collection[str]) -> list[str]:
    """Return the flavors of an own ClusterQueue that are not present, and whose ResourceFlavor exists."""
    if not queue or not manifests.is_owned(queue, uid):
        return []
    names = {name for name, _, _ in present}
    return [name for name in manifests.flavor_names(queue) if name not in names and name in flavors]


def _reason(queue: Object, flavor: str, used: str) -> str:
    return used if manifests.is_used(queue, flavor) else "Kueue has not reported its workloads"


def _covered(queue: Object) -> dict[str, Fraction]:
    """Return the covered resources of a ClusterQueue, with no amount."""
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return {resource: Fraction(0) for group in groups for resource in group.get("coveredResources") or ()}
