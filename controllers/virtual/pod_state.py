"""The data of a decision about one pod: its state in this process beside the pod itself, and the view. No I/O.

The state is lost with the process, or with the leadership. Its successor finds everything that matters at the site and
on the API server again. All times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.core.job_lifecycle import NEW, Lifecycle
from bridge.protocol.model.jobs import EVENTS, JobStatus, Occurrence

Pod = Mapping[str, Any]
ObjectKey = tuple[str, str, str]
"""Plural name of the kind, namespace and name of an object."""
LOOK_AGAIN = 5.0
"""Seconds between the two answers that make a job lost."""


@dataclass(frozen=True, slots=True)
class PodAction:
    """An action for a pod."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Cancellation:
    """The site has accepted a cancellation request at ``at``.

    ``deletion``: the deletionTimestamp of the pod at that time; empty if the pod was not deleted, or did not exist.
    """

    deletion: str
    at: float


@dataclass(frozen=True, slots=True)
class Deletion:
    """The pod has this deletionTimestamp, which this process first saw at ``seen_at``.

    The grace period counts from ``seen_at``, because the clock of the API server may differ from this one.
    """

    timestamp: str
    seen_at: float


@dataclass(frozen=True, slots=True)
class SentFiles:
    """The files of a job's volumes that this process has sent."""

    digests: Mapping[str, bytes]
    """Digests of content and mode by path below ``volumes``; empty for a file whose content was not sent."""
    versions: Mapping[ObjectKey, str]
    """Versions of the objects in the volumes; empty for an object that was missing. Objects that never change are left
    out."""
    shown: tuple[Any, ...]
    """The labels and annotations in the volumes."""


@dataclass(slots=True)
class Entry:
    """The state of one pod."""

    not_before: float = 0.0
    failures: int = 0
    """The back-off: no request to the site before this time; number of consecutive failures."""
    lifecycle: Lifecycle = NEW
    answer: JobStatus | None = None
    """The job in the last answer of the site; ``None``: it had none, or the view has listed the job since."""
    cancellation: Cancellation | None = None
    deletion: Deletion | None = None
    written_at: float = 0.0
    """Time of the last write of the status."""
    refused: JobStatus | None = None
    refused_until: float = 0.0
    """The job whose status the API server has refused as invalid; before this time it is not written again."""
    files: SentFiles | None = None
    """The files of volumes that the site has; ``None``: this process does not know."""
    stale: frozenset[ObjectKey] = frozenset()
    """The objects in the volumes that have changed since."""
    refresh_at: float | None = None
    """Time at which the service account tokens, or unknown files, are due for a refresh; ``None``: there are none."""
    refresh_after: float = 0.0
    reserved: bool = False
    counted: bool = False
    """No refresh before this time; whether the next refresh has its share of the limits: of reads, and of bytes."""
    settled: tuple[str, JobStatus] | None = None
    """The pod's resourceVersion and the job's state for which the last decision was to do nothing."""
    reported_events: frozenset[str] = frozenset()
    """The Events that were written once and are not repeated."""
    reported_occurrences: dict[tuple[str, str, str], int] | None = None
    """The occurrences in the containers of the last known job that have become Events, with their counts; ``None``:
    this process has seen no job yet."""
    forgotten: bool = False
    """The pool, which cannot list its jobs, has deleted the files of the job."""
    note: str = ""
    """Addition to the message of the Event BridgeSubmitted."""
    offers: int = 0
    offered_at: float = 0.0
    """Of a place of a pod that races: number of accepted offers, and the time of the last one."""
    asked_at: float | None = None
    granted_at: float = float("-inf")
    """Time of the first claim for a grant, ``None`` before; time of the last grant that was sent to the site."""
    reread_at: float = 0.0
    """Of a withdrawn place: time at which its pod is read again, which may be gone or bound elsewhere."""
    claimed: str = ""
    """The ticket in the grant that the API server has accepted."""

    def see(self, pod: Pod | None, now: float) -> None:
        """Record the time at which a deletion is first seen."""
        timestamp = pod["metadata"].get("deletionTimestamp") if pod is not None else None
        if timestamp and (self.deletion is None or self.deletion.timestamp != timestamp):
            self.deletion = Deletion(timestamp, now)

    def answered(self, at: float, job: JobStatus | None) -> None:
        """Record an answer of the site that was requested at ``at``, or that to a submission, which came then.

        ``job`` is ``None`` if the site does not know it.
        """
        self.answer, before = job, self.lifecycle
        self.lifecycle = before.denied(at, LOOK_AGAIN) if job is None else before.shown(EVENTS[job.phase], at)

    def listed(self, job: JobStatus, now: float) -> None:
        """Record that the view lists the job, which makes answers obsolete."""
        self.answered(now, job)
        self.answer = None

    def new_occurrences(self, job: JobStatus, since: float) -> list[tuple[str, Occurrence]]:
        """Return the occurrences that are no Events yet, with their containers.

        Of the first job that this process sees, an earlier process may have reported them: only those after ``since``
        (seconds since 1970) count then.
        """
        occurrences = {
            (state.name, occurrence.reason, occurrence.message): occurrence
            for state in (*job.init_containers, *job.containers)
            for occurrence in state.occurrences
        }
        reported = self.reported_occurrences
        self.reported_occurrences = {key: occurrence.count for key, occurrence in occurrences.items()}
        if reported is None:
            return [(key[0], occurrence) for key, occurrence in occurrences.items() if (occurrence.at or 0) >= since]
        return [
            (key[0], occurrence) for key, occurrence in occurrences.items() if occurrence.count > reported.get(key, 0)
        ]

    def changed(self, key: ObjectKey, version: str) -> bool:
        """Record the present version of an object; return whether the site has another one."""
        files = self.files
        if files is None or files.versions.get(key, version) == version or key in self.stale:
            return False
        self.stale |= {key}
        # otherwise the reconciler skips the decision: neither the pod nor its job has changed
        self.settled = None
        return True

    def is_settled(self, pod: Pod | None, job: JobStatus | None) -> bool:
        """Whether the last decision for this pod and this job was to do nothing."""
        if self.settled is None or pod is None:
            return False
        return self.settled[1] is job and self.settled[0] == pod["metadata"]["resourceVersion"]


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
    pod with the UID that has no node, but a place at this pool. ``families``: see
    :func:`~bridge.protocol.model.pod_status.pod_status`.
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
    families: Collection[str] | None = frozenset()
