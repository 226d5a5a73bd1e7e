"""The places of a pod that races: the pools at which it is queued at once, and the one that may run it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.workload import links, pods, pool_selection, remote_gangs
from bridge.workload.remote_gangs import Place
from bridge.workload.tolerations import tolerates

Pod = Mapping[str, Any]

OFFERED, REFUSED = "BridgePlace", "BridgePlaceRefused"
"""Reasons of the Events of a place that got a job, and of one that a site refused."""
_OFFERED = re.compile(r"pool (\S+) has a job of the pod: (\S+)")
_REFUSED = re.compile(r"pool ([^\s:]+): (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Offer:
    """What the Events of a pod say about its place at a pool: the job there, or why the site refused it."""

    job: str = ""
    refusal: str = ""


def wants_race(pod: Pod) -> bool:
    """Whether the pod requests to be queued at several pools at once; a group races if all its members request it."""
    return _annotation(pod, names.PLACEMENT).strip() == names.RACE


def recorded(pod: Pod) -> tuple[str, ...]:
    """Return the places in the annotation that the scheduler writes, in its order; empty if it is invalid."""
    text = _annotation(pod, names.PLACES)
    try:
        return pool_selection.parse(text) if text else ()
    except ValueError:
        return ()


def open_pools(pod: Pod) -> tuple[str, ...]:
    """Return the remote pools at which a pod without a node may have a job now.

    A user can write the annotation too, so a place counts only if the pod selects the pool and tolerates its taint:
    admission checks both against the namespace. A member of a group also needs its place in the job of the group.
    """
    if not wants_race(pod) or not may_return(pod):
        return ()
    if links.group_of(pod) is not None and remote_gangs.place_of(pod) is None:
        return ()
    selector, tolerations = pool_selection.of(pod), pod["spec"].get("tolerations") or ()
    pools = [place for place in recorded(pod) if place not in (names.LOCAL_POOL, names.ANY_POOL)]
    return tuple(
        place
        for place in pools
        if place in selector.ordered(pools)
        and tolerates(tolerations, {"key": names.POOL_TAINT, "value": place, "effect": "NoSchedule"})
    )


def keeps_job(pod: Pod, pool: str) -> bool:
    """Whether a job of the pod at a pool may be of use: the pod is bound to the pool, or has a place there."""
    node = pod["spec"].get("nodeName")
    return bool(node == pool) if node else pool in open_pools(pod)


def may_return(pod: Pod) -> bool:
    """Whether a pod may get a place or a node later: it has no node and no end."""
    return not (pods.is_bound(pod) or pods.is_deleted(pod) or pods.is_finished(pod))


def places_patch(pod: Pod, places: Iterable[str], in_job: Place | None = None) -> dict[str, Any]:
    """Return the strategic patch that records the places of a pod; the UID is a precondition.

    ``in_job``: of a member of a group, its place in the group's job.
    """
    annotations: dict[str, str | None] = {names.PLACES: ",".join(places) or None}
    if in_job is not None:
        annotations |= in_job.annotations(pod)
    return {"metadata": {"uid": pods.uid(pod), "annotations": annotations}}


def grant(pool: str, ticket: str) -> str:
    """Return the value of the annotation for the grant."""
    return f"{pool}/{ticket}"


def granted(pod: Pod) -> str:
    """Return the grant of a bound pod that has raced; empty: it has not."""
    return _annotation(pod, names.GRANT)


def is_granted(pod: Pod, pool: str, ticket: str) -> bool:
    """Whether the pod is bound to the pool, and the same write has named this ticket."""
    return pod["spec"].get("nodeName") == pool and granted(pod) == grant(pool, ticket)


def grant_binding(pod: Pod, pool: str, ticket: str) -> dict[str, Any]:
    """Return the Binding that is the grant. UID and resource version of the pod are its preconditions.

    The API server binds a pod once, so it accepts one grant at most, whoever sends it.
    """
    body = pods.binding(pod, pool, {names.GRANT: grant(pool, ticket)})
    body["metadata"]["resourceVersion"] = pod["metadata"].get("resourceVersion", "")
    return body


def offered_note(pool: str, job: str) -> str:
    """Return the note of the Event of a place that got a job."""
    return f"pool {pool} has a job of the pod: {job}"


def refused_note(pool: str, why: str) -> str:
    """Return the note of the Event of a place that a site refused."""
    return f"pool {pool}: {why}"


def offers(events: Iterable[Mapping[str, Any]]) -> dict[str, Offer]:
    """Return what the last of a pod's Events says about each pool; ``events`` are the oldest first."""
    found: dict[str, Offer] = {}
    for event in events:
        reason, note = event.get("reason"), str(event.get("note") or "")
        if reason == OFFERED and (match := _OFFERED.fullmatch(note)):
            found[match[1]] = Offer(job=match[2])
        elif reason == REFUSED and (match := _REFUSED.fullmatch(note)):
            found[match[1]] = Offer(refusal=match[2])
    return found


def _annotation(pod: Pod, key: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(key) or "")
