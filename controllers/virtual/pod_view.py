"""The data that the decision for one pod on a virtual node depends on."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.protocol.model.jobs import JobStatus
from controllers.virtual.pod_state import Entry, Pod


@dataclass(frozen=True, slots=True)
class PoolView:
    """The state of a pool that a decision depends on.

    ``synced``: the cache of the pool's pods is complete. ``complete_at``: time at which the last complete snapshot was
    requested. ``ready``: the pool accepts submissions. ``leading_since``: time at which this process became the leader.
    ``lists``: the pool can list all its jobs.
    """

    name: str
    synced: bool
    complete_at: float | None
    ready: bool
    leading_since: float
    address: str
    lists: bool = True


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod (``None`` if no pod has the UID), its job in the pool's view, and its entry.

    ``may_fail``: the brake lets the pod fail for a lost job. ``held``: the engaged brake holds the pod. ``racer``: the
    pod with the UID that has no node, but a place at this pool.
    """

    pod: Pod | None
    job: JobStatus | None
    entry: Entry
    pool: PoolView
    now: float
    time: float
    may_fail: bool = True
    held: bool = False
    racer: Pod | None = None
