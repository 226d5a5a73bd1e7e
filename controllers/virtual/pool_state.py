"""The state of one pool in the process that leads: its pods, the entry of each, the workers for its site, its folder.

The virtual node records the id of the site's folder that holds the pool's jobs, so that a restarted hub ignores a
submitter with another folder, which does not know the pool's jobs. Another folder replaces it automatically only if no
pod is bound to the pool. Otherwise an administrator must remove the node's annotation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bridge import names
from bridge.clock import Clock, rfc3339
from bridge.control.brake import Brake
from bridge.core.threads import Supervisor
from bridge.core.workers import Workers
from bridge.kube.cache import Cache
from bridge.pools.pool_interface import Pool, SiteFolders
from bridge.protocol.model.announcement import Announcement
from bridge.workload import pods, queue_wait
from controllers.virtual import race_decide, virtual_pod_decide
from controllers.virtual.node_manifest import PoolStatus
from controllers.virtual.pod_state import Entry, Pod


class PoolProgress(NamedTuple):
    """Whether the cache of pods is ``synced``, the jobs are ``listed``, and the pool is ``accepting`` submissions.

    After each change, all pods are decided about.
    """

    synced: bool = False
    listed: bool = False
    accepting: bool = False


@dataclass(slots=True)
class LoopState:
    """The loop's state of a pool. ``heard``: the monotonic time of the last announcement, and the same time as text.

    ``swept_at``: the monotonic time of the last check of a part of the pods.
    """

    swept_at: float
    progress: PoolProgress = field(default_factory=PoolProgress)
    heard: tuple[float | None, str] = (None, "")
    expected_wait: float = 0.0
    folder_problem: str = ""
    renewed_at: float = float("-inf")
    sweep: Iterator[str] = field(default_factory=lambda: iter(()))


@dataclass(slots=True)
class PoolState:
    """The state of a pool: its pods, the workers for its site, and the entry of each pod."""

    name: str
    cache: Cache
    workers: Workers
    threads: Supervisor
    """Owns the threads of the cache and of the workers."""
    loop: LoopState
    pool: Pool | None = None
    usable: bool = False
    """The virtual node exists and is podbridge's, and the folder of the pool is chosen."""
    entries: dict[str, Entry] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    """UIDs with a request to the site in progress."""
    doubted: set[str] = field(default_factory=set)
    """UIDs of which the site has said twice that it does not know the job."""
    brake: Brake = field(default_factory=Brake)
    """The last state of the mass-termination guard."""
    racers: race_decide.Racers | None = None
    """The pods without a node that have a place here; ``None``: no pod races."""
    _lock: threading.Lock = field(init=False, repr=False, compare=False)
    """Guards ``entries`` and ``doubted``: each worker writes those of its pod."""

    def __post_init__(self) -> None:
        """Make the lock."""
        self._lock = threading.Lock()

    @property
    def folders(self) -> SiteFolders | None:
        """The folders of the pool's site."""
        return self.pool.folders if self.pool is not None else None

    def racer(self, uid: str) -> Pod | None:
        """Return the pod with this UID if it has a place here and no node."""
        return self.racers.get(self.name, uid) if self.racers is not None else None

    def missing(self) -> tuple[int, dict[str, Pod]]:
        """Return the number of pods with a job at the site, and those of them whose jobs are missing, by UID.

        A job is missing if the site's batch system no longer lists it, or if the view lacks it. The latter counts only
        after the site has said twice of at least one such job that it does not know it.
        """
        if self.pool is None or self.pool.complete_at() is None:
            return 0, {}
        vanished = self.pool.lists.missing() if self.pool.lists is not None else frozenset()
        if not (self.doubted or vanished or self.brake.engaged):
            return 0, {}  # runs often: must not walk over all jobs
        jobs = self.pool.jobs()
        pods_with_jobs = {pods.uid(pod): pod for pod in self.cache.items() if _has_live_remote_job(pod)}
        absent_uids = pods_with_jobs.keys() - jobs.keys()
        with self._lock:
            doubted = [entry for uid in absent_uids & self.doubted if (entry := self.entries.get(uid)) is not None]
        if not any(entry.lifecycle.is_lost for entry in doubted):
            # an event of the site may be late: without a certain case, a job that the view lacks may just be new
            absent_uids = set()
        return len(pods_with_jobs), {
            uid: pod for uid, pod in pods_with_jobs.items() if uid in absent_uids or uid in vanished
        }

    def known(self) -> list[tuple[str, Entry]]:
        """Return the UID and the entry of each pod."""
        with self._lock:
            return list(self.entries.items())

    def begin(self, uid: str, entry: Entry) -> Entry:
        """Store and return the entry of a new pod."""
        with self._lock:
            self.entries[uid] = entry
        return entry

    def follow(self, pod: Pod) -> None:
        """Have the pool poll for a submitted pod, unless it lists its jobs. After a restart, it follows none."""
        if self.pool is not None and self.pool.follows is not None and pods.has_intent(pod):
            self.pool.follows.add(pod)

    def note(self, uid: str, entry: Entry) -> None:
        """Update ``doubted`` after a change of the entry."""
        with self._lock:
            (self.doubted.add if entry.lifecycle.is_lost else self.doubted.discard)(uid)

    def progress(self) -> PoolProgress:
        """Return what the pods wait for in common."""
        pool = self.pool
        listed, accepting = (pool.complete_at() is not None, pool.ready().ok) if pool is not None else (False, False)
        return PoolProgress(self.cache.synced, listed, accepting)

    def forget(self, uid: str) -> None:
        """Discard what is remembered of a pod."""
        with self._lock:
            self.entries.pop(uid, None)
            self.doubted.discard(uid)
        if self.pool is not None and self.pool.follows is not None:
            self.pool.follows.remove(uid)

    def forget_all(self) -> None:
        """Discard what is remembered of all pods."""
        with self._lock:
            self.entries.clear()
            self.doubted.clear()

    def uids(self) -> list[str]:
        """Return the UIDs of all pods bound to the node or with a place here, and of all jobs."""
        jobs = self.pool.jobs().keys() if self.pool is not None else ()
        racing = self.racers.uids(self.name) if self.racers is not None else ()
        return list({*map(pods.uid, self.cache.items()), *jobs, *racing})


def _has_live_remote_job(pod: Pod) -> bool:
    return bool(virtual_pod_decide.remote_job(pod)) and not pods.is_finished(pod) and not pods.is_deleted(pod)


def pool_status(record: PoolState, *, remembered: int, may_reach: bool, clock: Clock) -> PoolStatus:
    """Return what the decision about the virtual node of a pool depends on; ``remembered`` jobs are known there."""
    pool, folders, loop = record.pool, record.folders, record.loop
    status = PoolStatus(
        record.name,
        bound=len(record.cache) if record.cache.synced else None,
        remembered=remembered,
        folder=folders.folder if folders is not None else "",
        folder_problem=loop.folder_problem,
    )
    if pool is None or (announced := pool.announced()) is None:
        return status
    announce, heard = announced
    # once for each announcement: computed again after a step of the clock, the text would differ and cause a write
    if loop.heard[0] != heard:
        loop.heard = (heard, rfc3339(clock.time() - (clock.monotonic() - heard)))
        loop.expected_wait = expected_wait(pool, clock.time())
    races: bool | None = None  # of a hub without races, and before a BuildConfig has arrived
    if record.racers is not None:
        races = pool.holds.allows_race() if pool.holds is not None else False
    return replace(
        status,
        announce=announce,
        heard=heard,
        heard_at=loop.heard[1],
        readiness=pool.ready(),
        races=races,
        gangs=pool.gangs,
        heterogeneous_gangs=pool.heterogeneous_gangs,
        flavor_limits=pool.flavor_limits,
        reaches=pool.reaches is not None and may_reach,
        expected_wait=loop.expected_wait,
    )


def expected_wait(pool: Pool, now: float) -> float:
    """Return the seconds that a job probably waits, from the jobs of this hub at the pool."""
    times = [
        (job.submitted_at, job.started_at)
        for job in pool.jobs().values()
        # a job that has ended without a start was cancelled
        if job.submitted_at is not None
        and (job.started_at is not None or (job.phase == "queued" and queue_wait.is_queued(job.reason)))
    ]
    return queue_wait.expected_wait(times, now)


@dataclass(frozen=True, slots=True)
class FolderChoice:
    """The id of the chosen folder (empty: that of the first announcement), and the problem, if any."""

    folder: str
    problem: str = ""


def choose_folder(
    pool: str, recorded: str, current: str, heard: Mapping[str, Announcement], *, bound: int | None, remembered: int
) -> FolderChoice:
    """Choose a folder.

    ``recorded``: the folder in the node's annotation. ``current``: the chosen one until now. ``heard``: the last
    announcement of each folder, without those of silent submitters. ``bound`` and ``remembered``: numbers of pods and
    jobs of the pool.
    """
    folder = recorded or current
    if heard and folder not in heard and (not recorded or (bound == 0 and not remembered)):
        folder = min(heard)
    others = {other: announce for other, announce in heard.items() if other != folder}
    if not folder or not others:
        return FolderChoice(folder)
    if folder in heard:
        return FolderChoice(
            folder,
            f"submitters of this pool use different folders: {_listed({folder: heard[folder], **others})}; only "
            f"{folder} is used. Start all with the same folder on a file system that they share, or give each a pool "
            "of its own",
        )
    return FolderChoice(
        folder,
        f"the jobs of this pool are in folder {folder}, but only another is announced: {_listed(others)}. Start the "
        "submitter with the folder from before; or, if that is lost with its jobs: "
        f"kubectl annotate node {pool} {names.SITE_FOLDER}-",
    )


def _listed(heard: Mapping[str, Announcement]) -> str:
    submitters = ((folder or "unknown", announce.submitter[:100]) for folder, announce in heard.items())
    return ", ".join(f"{folder} (submitter {submitter})" for folder, submitter in submitters)
