"""A pool in memory: a site that works, does not answer, loses its jobs, or answers late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.apps.plugin.directory import Directory
from bridge.core.threads import Supervisor
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError
from bridge.pools.registry import PoolSource
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from bridge.protocol.model.jobs import GRANTED, ContainerState, JobStatus, Termination
from bridge.protocol.model.requests import JobSubmission, LogOptions, VolumeFile
from bridge.script import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.script.volume_files import CurrentFiles

Pod = Mapping[str, Any]


def uid_of(pod: Pod) -> str:
    return str(pod["metadata"]["uid"])


class FakePool:
    """One pool; implements the port. ``asked`` lists its requests."""

    statement = ""

    def __init__(self, name: str, **announced: Any) -> None:
        self.name = name
        self.asked: list[tuple[str, str]] = []
        self.submits: dict[str, JobSubmission] = {}
        self.site: dict[str, JobStatus] = {}
        self.offered: set[str] = set()
        """The jobs that need a grant."""
        self.refreshed: dict[str, Sequence[VolumeFile]] = {}
        self.kept: dict[str, Mapping[str, Sequence[str]]] = {}
        """The lists of all files of volumes in the last refresh."""
        self.problem: SiteError | None = None
        """The error that every request raises."""
        self.swallow = False
        """Whether answers to submissions are lost after the job was accepted."""
        self.obeys = True
        """Whether a cancelled job ends at once."""
        self.heard: tuple[Announcement, float] | None = None
        self.folder = ""
        self.config_problem = ""
        self.complete: float | None = time.monotonic()
        self.config: BuildConfig | None = BuildConfig.model_validate({"runtime": {"kind": "none"}})
        self.late, self.gangs, self.heterogeneous_gangs, self.flavor_limits = 5.0, False, False, None
        self.folders = self.holds = self
        self.refreshes: FakePool | None = self
        self.reaches = None
        self.is_listing = True
        self.followed: dict[str, Pod] = {}
        self._view: dict[str, JobStatus] = {}
        self._subscribers: list[Callable[[str], None]] = []
        self._lock = threading.RLock()
        self.announce(**announced)

    # --- the port -----------------------------------------------------------------------------------------------------
    def announced(self) -> tuple[Announcement, float] | None:
        return self.heard

    def ready(self) -> Readiness:
        return (
            Readiness("BuildConfigUnusable", self.config_problem)
            if self.config_problem
            else (READY if self.config is not None else Readiness("NoBuildConfig", "none", transient=True))
        )

    @property
    def lists(self) -> FakePool | None:
        return self if self.is_listing else None

    @property
    def follows(self) -> FakePool | None:
        return None if self.is_listing else self

    def prepare(self, pod: Pod) -> Pod:
        assert self.config is not None
        return build.at_site(pod, self.config)

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        return self._submit(pod, objects, waits=False)

    def offer(self, pod: Pod, objects: Objects, wait: float) -> JobStatus:
        return self._submit(pod, objects, waits=True)

    def _submit(self, pod: Pod, objects: Objects, *, waits: bool) -> JobStatus:
        assert self.config is not None
        job, submit = (
            uid_of(pod),
            build.build(pod, self.config, objects, self.name, jobs=self.heard[0].user if self.heard else None),
        )
        with self._lock:
            self._ask("submit", job)
            if job not in self.site or self.site[job].unused:
                (self.offered.add if waits else self.offered.discard)(job)
                self.submits[job] = submit
                number = str(len(self.submits))
                self.site[job] = JobStatus(
                    job=job, namespace=submit.namespace, name=submit.name, job_id=number, phase="queued"
                )
            if self.swallow:
                raise SiteUnknownOutcomeError("no answer in time")
            self._seen(job)
            return self.site[job]

    def allows_race(self) -> bool:
        return self.config is not None and self.config.limits.allow_race

    def withdraw(self, pod: Pod) -> JobStatus | None:
        job = uid_of(pod)
        with self._lock:
            self._ask("withdraw", job)
            found = self.site.get(job)
            if found is not None and job in self.offered and found.phase == "queued" and found.reason != GRANTED:
                self.end(job, 143, reason="Deleted", unused=True)
            return self.site.get(job)

    def grant(self, pod: Pod, ticket: str) -> JobStatus | None:
        job = uid_of(pod)
        with self._lock:
            self._ask("grant", job)
            if job in self.site and self.site[job].asks == ticket:
                self.run(job)
            return self.site.get(job)

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        job = uid_of(pod)
        with self._lock:
            self._ask("forget" if forget else "cancel", job)
            if job in self.site and self.site[job].phase != "ended" and self.obeys:
                self.end(job, 143, reason="Deleted")
            if forget:
                self.site.pop(job, None)
            self._seen(job)
            return self.site.get(job)

    def status(self, pod: Pod) -> JobStatus | None:
        job = uid_of(pod)
        with self._lock:
            self._ask("status", job)
            self._seen(job)
            return self.site.get(job)

    def job(self, job: str) -> JobStatus | None:
        return self.jobs().get(job)

    def jobs(self) -> dict[str, JobStatus]:
        return dict(self._view) if self.complete is not None else {}

    def missing(self) -> frozenset[str]:
        return frozenset(uid for uid, job in self.jobs().items() if job.missing)

    def complete_at(self) -> float | None:
        return self.complete

    def announcements(self) -> dict[str, tuple[Announcement, float]]:
        return {self.folder: self.heard} if self.heard else {}

    def choose(self, folder: str) -> None:
        self.folder = folder

    def logs(self, pod: Pod, options: LogOptions) -> Iterator[bytes]:
        raise NotImplementedError

    def add(self, pod: Pod) -> None:
        self.followed[uid_of(pod)] = pod

    def remove(self, job: str) -> None:
        self.followed.pop(job, None)

    def current_files(self, pod: Pod, objects: Objects) -> CurrentFiles:
        assert self.config is not None
        return build.current_files(pod, self.config, objects, self.name)

    def refresh(self, pod: Pod, files: Sequence[VolumeFile], volumes: Mapping[str, Sequence[str]]) -> None:
        job = uid_of(pod)
        self._ask("refresh", job)
        self.refreshed[job], self.kept[job] = files, volumes

    def subscribe(self, changed: Callable[[str], None]) -> None:
        self._subscribers.append(changed)

    # --- what happens at the site -------------------------------------------------------------------------------------
    def announce(self, **values: Any) -> None:
        base = {"submitter": "s", "sequences": {}, "time": time.time(), "period": 1, "version": "1"}
        capacity = {"cpu": "64", "memory": "256Gi"}
        announce = Announcement.model_validate({"pool": self.name, "capacity": capacity, **base, **values})
        self.heard = (announce, time.monotonic())
        self.tell("")

    def set(self, job: str, *, told: bool = True, **changes: Any) -> None:
        with self._lock:
            self.site[job] = replace(self.site[job], **changes)
            if told:
                self._seen(job)

    def run(self, job: str, *containers: str) -> None:
        names = containers or ("main",)
        now = time.time()
        states = [ContainerState(name=n, state="running", started=True, ready=True, started_at=now) for n in names]
        self.set(job, phase="running", started_at=now, host="cn1", containers=states)

    def end(self, job: str, code: int = 0, *containers: str, **changes: Any) -> None:
        now = time.time()
        over = Termination(exit_code=code, started_at=now, finished_at=now)
        states = [ContainerState(name=n, state="terminated", ended=over) for n in containers or ("main",)]
        outcome = "Failed" if code else "Succeeded"
        self.set(job, **{"phase": "ended", "outcome": outcome, "ended_at": now, "containers": states, **changes})

    def snapshot(self) -> None:
        """Take a complete snapshot: the view has all jobs of the site."""
        with self._lock:
            changed = {*self._view, *self.site}
            self.complete = time.monotonic()
            self._view = dict(self.site)
        for job in changed:
            self.tell(job)
        self.tell("")

    def lose(self, job: str) -> None:
        """Let the site lose a job and its folder."""
        self.site.pop(job, None)
        self._view.pop(job, None)

    def tell(self, job: str) -> None:
        for subscriber in self._subscribers:
            subscriber(job)

    def _seen(self, job: str) -> None:
        before = self._view.get(job)
        if job in self.site:
            self._view[job] = self.site[job]
        else:
            self._view.pop(job, None)
        if self._view.get(job) != before:
            self.tell(job)

    def _ask(self, what: str, job: str) -> None:
        self.asked.append((what, job))
        if self.problem is not None:
            raise self.problem

    def count(self, what: str, job: str | None = None) -> int:
        return sum(1 for kind, uid in self.asked if kind == what and job in (None, uid))

    def down(self) -> None:
        self.problem = SiteDownError("nobody listens")


def one_pool(pool: Any) -> Directory:
    """The directory of a plugin with one pool, which runs every pod."""
    return Directory(lambda: {pool.name: pool}, every_pod=True)


class FakePools(PoolSource):
    """The registry of pools."""

    def __init__(self, *pools: FakePool) -> None:
        self.started = 0
        self._pools: dict[str, FakePool] = {}
        self._removed: dict[str, FakePool] = {}
        """Pools that the hub has removed: the next announcement adds them again."""
        self._subscribers: list[Callable[[str, str], None]] = []
        for pool in pools:
            self.add(pool)

    def add(self, pool: FakePool) -> None:
        self._pools[pool.name] = pool
        pool.subscribe(lambda job: self._changed(pool.name, job))
        self._tell(pool.name, "")

    def drop(self, name: str) -> None:
        del self._pools[name]
        self._tell(name, "")

    def remove(self, name: str) -> None:
        if name in self._pools:
            self._removed[name] = self._pools[name]
            self.drop(name)

    def start(self, supervisor: Supervisor) -> None:
        self.started += 1

    def pools(self) -> dict[str, FakePool]:
        return dict(self._pools)

    def subscribe(self, changed: Callable[[str, str], None]) -> None:
        self._subscribers.append(changed)

    def _changed(self, name: str, job: str) -> None:
        if not job and (pool := self._removed.pop(name, None)) is not None:
            self._pools[name] = pool
        self._tell(name, job)

    def _tell(self, pool: str, job: str) -> None:
        for subscriber in self._subscribers:
            subscriber(pool, job)
