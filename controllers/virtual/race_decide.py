"""The decision for one place of a pod that races: its job at one pool, while the pod has no node. Pure.

``docs/developers/late-binding.md`` describes the protocol. A place is offered, its script asks when it has started, and
the first Binding that the API server accepts is the grant. This module is not what makes the race safe: the API
server accepts only one Binding for a pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.core.retries import Backoff
from bridge.protocol.model.jobs import GRANTED, JobStatus
from bridge.workload import places, pods, remote_gangs
from controllers.virtual.pod_state import Entry, Pod, PodAction

OFFER_AGAIN = Backoff(first=10.0, limit=300.0)
"""Before an unused place is offered again: it held nodes of the site for nothing."""
GRANT_AGAIN = 2.0
"""Seconds after which a grant is repeated if the job still asks."""


class Offer(PodAction):
    """Submit the pod's job to the site, with a script that waits for its grant."""


@dataclass(frozen=True, slots=True)
class Claim(PodAction):
    """Bind the pod to the pool, with the grant for this ticket."""

    ticket: str


@dataclass(frozen=True, slots=True)
class Grant(PodAction):
    """Tell the site that the script with this ticket may begin: the pod is bound to the pool with its grant."""

    ticket: str


class Withdraw(PodAction):
    """End the job without a grant; the site keeps its record, which the next submission replaces."""


Action = Offer | Claim | Grant | Withdraw


def decide(pod: Pod, job: JobStatus, entry: Entry, now: float) -> Offer | Claim | float | None:
    """Return the action for the job of a pod without a node; a number: decide again after these seconds."""
    if job.phase == "ended":
        if not job.unused:
            return None  # the site does not replace it
        # without jitter: the decision is repeated, and must find the same time
        remaining = entry.offered_at + OFFER_AGAIN.delay(entry.offers, rand=lambda: 0.0) - now if entry.offers else 0.0
        return remaining if remaining > 0 else Offer(pod)
    place = remote_gangs.place_of(pod)
    if place is not None and place.rank:
        return None  # the Binding of the pod with rank 0 is the grant; the scheduler binds the others after it
    # after an accepted Binding, the cache may show the pod without a node for a moment
    return Claim(pod, job.asks) if job.asks and job.asks != entry.claimed else None


def grant(pod: Pod, pool: str, job: JobStatus, entry: Entry, now: float) -> Grant | float | None:
    """Return the grant that is due for a bound pod; a number: it is repeated after these seconds."""
    if not job.asks or not places.is_granted(pod, pool, job.asks):
        return None
    remaining = entry.granted_at + GRANT_AGAIN - now
    return remaining if remaining > 0 else Grant(pod, job.asks)


def is_of_other_gang(pod: Pod, job: JobStatus) -> bool:
    """Whether the job is an offer for another job of the pod's group than the one that the pod has its place in."""
    return job.gang != remote_gangs.gang_of(pod) and job.phase != "ended"


def is_useless(pod: Pod, pool: str, job: JobStatus) -> bool:
    """Whether the job of a bound pod waits for a grant that it cannot get: the pod needs another job.

    The grant is for another run, the batch system no longer lists the job, or the group has another job.
    """
    if job.phase == "queued" and job.gang not in ("", remote_gangs.gang_of(pod)):
        return True
    if job.missing:
        # after the grant, a container may have started: the pod gets no other job
        return job.phase == "queued" and job.reason != GRANTED
    return bool(job.asks) and not places.is_granted(pod, pool, job.asks)


class Racers:
    """The pods without a node that have places, by pool. Safe for any thread.

    :meth:`changed` is a subscriber of the cache of pods without a node. ``notify`` gets the pool and the UID of each
    place that has changed.
    """

    def __init__(self, notify: Callable[[str, str], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._by_pool: dict[str, dict[str, Pod]] = {}

    def changed(self, kind: str, old: Pod | None, new: Pod | None) -> None:
        """Apply a change of the cache: ``kind`` is add, update or delete."""
        pod = new if new is not None else old
        if pod is None:
            return
        uid = pods.uid(pod)
        before = places.open_pools(old) if old is not None else ()
        after = places.open_pools(pod) if kind != "delete" else ()
        with self._lock:
            for pool in before:
                self._by_pool.get(pool, {}).pop(uid, None)
            for pool in after:
                self._by_pool.setdefault(pool, {})[uid] = pod
        for pool in dict.fromkeys((*before, *after)):
            self._notify(pool, uid)

    def get(self, pool: str, uid: str) -> Pod | None:
        """Return the pod with this UID if it has a place at the pool and no node."""
        with self._lock:
            return self._by_pool.get(pool, {}).get(uid)

    def uids(self, pool: str) -> list[str]:
        """Return the UIDs of the pods with a place at the pool."""
        with self._lock:
            return list(self._by_pool.get(pool, ()))


def prune(pod: dict[str, Any]) -> dict[str, Any]:
    """Reduce a pod without places to its identity; a pod with places is complete, for its script."""
    if places.recorded(pod):
        return pod
    metadata: Mapping[str, Any] = pod["metadata"]
    identity = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": identity, "spec": {}}
