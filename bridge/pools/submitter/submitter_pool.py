"""A pool with podbridge's submitter: its last announcement and BuildConfig, and its jobs from events and snapshots."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from bridge.clock import Clock
from bridge.core import isolation
from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.logs import kv
from bridge.pools.pool_interface import Pod
from bridge.pools.submitter import site_requests
from bridge.pools.submitter.announced_pool import AnnouncedPool
from bridge.pools.submitter.job_view import JobView
from bridge.pools.submitter.site_requests import RequestSchedule
from bridge.protocol.model.jobs import MOST_USAGES, JobStatus, JobUsage
from bridge.protocol.model.requests import JobSubmission, LogOptions, VolumeFile
from bridge.protocol.model.sessions import CommandOptions, Connection, Session
from bridge.protocol.nats.envelope import check_pool
from bridge.protocol.nats.messages import (
    Announce,
    BuildConfigMessage,
    CancelMessage,
    Empty,
    Event,
    Grant,
    Published,
    Status,
    UsageRequest,
)
from bridge.protocol.nats.request_table import (
    CANCEL,
    DESCRIBE,
    GRANT,
    STATUS,
    SUBMIT,
    USAGE,
    B,
    RequestKind,
    SubmitterClient,
)
from bridge.script import build
from bridge.script.references import Objects
from bridge.script.volume_files import CurrentFiles

log = logging.getLogger(__name__)

LATE = 5.0
"""Seconds after its deadline for which a site may accept a request, because clocks differ."""
Changed = Callable[[str], None]


class SubmitterPool(AnnouncedPool):
    """One pool; implements :class:`bridge.pools.pool_interface.Pool`. Made by
    :class:`bridge.pools.submitter.nats_registry.NatsPools`.

    ``connect`` makes the client; its argument returns the id of the folder that requests concern.
    Its jobs are in one folder of the site: that of the first announcement, or the one that :meth:`choose` has set.
    Messages of submitters with another folder are ignored, and they receive no requests.
    """

    follows = None
    late = LATE

    def __init__(
        self,
        name: str,
        owner: str,
        connect: Callable[[Callable[[], str]], SubmitterClient],
        clock: Clock,
        submit_timeout: float = SUBMIT.timeout,
    ) -> None:
        super().__init__(name)
        self.lists = self.folders = self.holds = self.refreshes = self
        self._owner = owner
        self._submit_timeout = submit_timeout
        self._client = connect(lambda: self.folder)
        self._clock = clock
        self._lock = threading.Lock()
        self._view = JobView()
        self._subscribers: list[Changed] = []
        self._schedule = RequestSchedule(name)

    # --- interface of a pool ------------------------------------------------------------------------------------------
    def choose(self, folder: str) -> None:
        """Use the jobs of this folder from now on, and discard the state of any other folder."""
        with self._lock:
            if folder == (before := self._folder):
                return
            if before is not None:
                log.warning("the folder of the pool has changed", extra=kv(pool=self.name, before=before, now=folder))
            self._folder, self._view = folder, JobView()
            self._schedule.want_snapshot()
        self._notify("")

    def prepare(self, pod: Pod) -> Pod:
        """Return the pod as the site gets it; raises ScriptError."""
        return build.at_site(pod, self.usable_config())

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        """Build the script of a prepared pod and submit it."""
        return self._build_and_send(pod, objects, None)

    def offer(self, pod: Pod, objects: Objects, wait: float) -> JobStatus:
        """Build a script that waits for its grant, and submit it."""
        return self._build_and_send(pod, objects, wait)

    def _build_and_send(self, pod: Pod, objects: Objects, wait: float | None) -> JobStatus:
        user = announce.user if (announce := self.announcement) else None
        job_submission = build.build(pod, self.usable_config(), objects, self.name, wait, user)
        if job_submission.place is not None and not self.gangs:
            # an older submitter would ignore the place, and run the pod without its group
            raise SiteRefusedError(f"site {self.name} runs no groups of pods", reason="GangsNotSupported")
        return self.send(pod["metadata"]["uid"], job_submission)

    def withdraw(self, pod: Pod) -> JobStatus | None:
        """End the job of a pod that may be offered or bound here again; ``None`` if the site does not know the job."""
        return self._request_status(CANCEL, pod, CancelMessage(grace=0, withdrawn=True))

    def grant(self, pod: Pod, ticket: str) -> JobStatus | None:
        """Let the waiting script with this ticket begin; ``None`` if the site does not know the job."""
        return self._request_status(GRANT, pod, Grant(ticket=ticket))

    def send(self, job: str, job_submission: JobSubmission) -> JobStatus:
        """Submit a job whose script is complete."""
        announce, folder = self.announcement, self._folder
        library = announce.library if announce else ""
        status = site_requests.submit(self._client, job, job_submission, library, self._submit_timeout)
        with self._lock:
            self._check(folder)
            changed = self._view.submitted(status, self._clock.monotonic())
        if changed:
            self._notify(job)
        return status

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        """Cancel a job, with ``grace`` seconds to end; return ``None`` if the site does not know it."""
        job, folder = pod["metadata"]["uid"], self._folder
        status = self._client.call(CANCEL, job, CancelMessage(grace=grace, forget=forget)).status
        if status is None:
            # no event is newer than this answer: the site refuses later submissions of the job
            self._apply_absence(job, self._clock.monotonic(), folder)
        return status

    def status(self, pod: Pod) -> JobStatus | None:
        """Request the state of one job from the site; ``None`` if the site does not know it."""
        return self._request_status(STATUS, pod, Empty())

    def _request_status(self, kind: RequestKind[B, Status], pod: Pod, body: B) -> JobStatus | None:
        job, requested_at, folder = pod["metadata"]["uid"], self._clock.monotonic(), self._folder
        status = self._client.call(kind, job, body).status
        if status is None:
            self._apply_absence(job, requested_at, folder)
        return status

    def job(self, job: str) -> JobStatus | None:
        """Return one job of the view."""
        with self._lock:
            return self._view.jobs.get(job) if self._view.complete_at is not None else None

    def jobs(self) -> dict[str, JobStatus]:
        """Return the last known state of all jobs by UID. Empty before the first snapshot."""
        with self._lock:
            return dict(self._view.jobs) if self._view.complete_at is not None else {}

    def missing(self) -> frozenset[str]:
        """Return the UIDs of the jobs that the site's batch system no longer lists."""
        with self._lock:
            return frozenset(self._view.missing) if self._view.complete_at is not None else frozenset()

    def complete_at(self) -> float | None:
        """Return the monotonic time at which the last complete snapshot was requested; ``None`` before the first."""
        return self._view.complete_at

    @property
    def sessions(self) -> Callable[[Pod, CommandOptions], Session] | None:
        """Runs a command in a container of a running job, if the site has announced that it does."""
        return self._open_session if (announce := self.announcement) and announce.commands else None

    def _open_session(self, pod: Pod, options: CommandOptions) -> Session:
        return self._client.open_session(pod["metadata"]["uid"], options)

    def usage(self, jobs: Sequence[str]) -> list[JobUsage]:
        """Return what the site has measured of jobs, by their UIDs."""
        portions = [jobs[at : at + MOST_USAGES] for at in range(0, len(jobs), MOST_USAGES)]
        answers = [self._client.call(USAGE, "", UsageRequest(jobs=list(portion))) for portion in portions]
        return [usage for answer in answers for usage in answer.jobs]

    @property
    def connections(self) -> Callable[[Pod, int], Connection] | None:
        """Connects to a port of a running pod, if the site has announced that it does."""
        return self._connect if (announce := self.announcement) and announce.ports else None

    def _connect(self, pod: Pod, port: int) -> Connection:
        return self._client.connect(pod["metadata"]["uid"], port)

    @property
    def reaches(self) -> Callable[[Pod], Session] | None:
        """Opens the stream of a running pod's connections to Services, if the site has announced that it may."""
        return self._reach if (announce := self.announcement) and announce.reach else None

    def _reach(self, pod: Pod) -> Session:
        return self._client.reach(pod["metadata"]["uid"])

    def logs(self, pod: Pod, options: LogOptions) -> Iterator[bytes]:
        """Iterate over the pieces of a log. To end the log at the site too, close the iterator."""
        return self._client.logs(pod["metadata"]["uid"], options)

    def current_files(self, pod: Pod, objects: Objects) -> CurrentFiles:
        """Return the present files of a prepared pod's volumes, as far as the objects are known."""
        return build.current_files(pod, self.usable_config(), objects, self.name)

    def refresh(self, pod: Pod, files: Sequence[VolumeFile], volumes: Mapping[str, Sequence[str]]) -> None:
        """Replace files in the volumes of a job, in requests of a limited size. The last one removes other files.

        A file that is too large for a request is left out; then raises SiteTooLargeError in the end.
        """
        site_requests.replace_files(self._client, pod["metadata"]["uid"], files, volumes)

    def subscribe(self, changed: Changed) -> None:
        """Call ``changed`` after each change: with the pod's UID, or with an empty string for the announcement."""
        self._subscribers.append(changed)

    # --- messages of the site, on one thread, in their order ----------------------------------------------------------
    def receive(self, message: Published) -> None:
        """Apply a message of the site."""
        if isinstance(message, Announce):
            self._on_announce(message)
        elif isinstance(message, BuildConfigMessage):
            self._on_buildconfig(message)
        else:
            self._on_event(message)

    def _on_announce(self, announce: Announce) -> None:
        with self._lock:
            self._add_announcement(announce, self._clock.monotonic())
            # a wrong, empty folder looks like a new site: its submitter cannot detect the error, so the hub does
            if announce.folder != self._folder:
                return
            if self._view.announced(announce.submitter, announce.sequences.get(self._owner, 0)):
                self._schedule.want_snapshot()
        self._notify("")

    def _on_buildconfig(self, message: BuildConfigMessage) -> None:
        with self._lock:
            self._configs.add(message)  # an invalid one too, so that it is not requested again
        self._notify("")

    def recall(self, announce: Announce, received_at: float, buildconfig: BuildConfigMessage | None) -> None:
        """Apply stored values from the monotonic time ``received_at``, unless this process received newer ones."""
        with self._lock:
            if announce.folder not in self._by_folder:
                self._add_announcement(announce, received_at)
            announced = self.announced()
            has_config = announced is None or announced[0].digest in self._configs
        if buildconfig is not None and announced and not has_config and buildconfig.digest == announced[0].digest:
            self._on_buildconfig(buildconfig)
        else:
            self._notify("")

    def _on_event(self, event: Event) -> None:
        with self._lock:
            if event.folder != self._folder:
                return
            changed, missed = self._view.event(event, self._clock.monotonic())
            self._schedule.is_snapshot_wanted |= missed
        if changed:
            self._notify(event.status.job)

    # --- requests to the site, on a worker ----------------------------------------------------------------------------
    def request_snapshot(self) -> None:
        """Request a snapshot soon."""
        with self._lock:
            self._schedule.want_snapshot()

    def due(self, now: float) -> bool:
        """Whether a snapshot or a BuildConfig is due."""
        return self._schedule.is_rested(now) and (self._lacks_snapshot(now) or self._lacks_config(now))

    def ask(self) -> None:
        """Request what is due. A failure is logged, and the request is repeated after a back-off."""
        self._schedule.requested_at = self._clock.monotonic()
        try:
            if self._lacks_snapshot(self._schedule.requested_at):
                self._snapshot()
            if self._lacks_config(now := self._clock.monotonic()):
                self._schedule.described_at = now
                described = self._client.call(DESCRIBE, "", Empty()).buildconfig
                check_pool(self.name, described.pool)
                self._on_buildconfig(described)
        except SiteError as error:
            self._schedule.failed(error)
        except Exception as error:  # an answer from outside must not end this process
            self._schedule.failed(SiteError(str(isolation.report("pools", self.name, error))))
        else:
            self._schedule.succeeded()

    def _lacks_snapshot(self, now: float) -> bool:
        # before the announcement, the folder of the jobs is not known
        return self.announced() is not None and self._schedule.wants_snapshot(now)

    def _lacks_config(self, now: float) -> bool:
        announced = self.announced()
        if announced is None or announced[0].digest in self._configs:
            return False
        return self._schedule.wants_config(now, announced[1])

    def _snapshot(self) -> None:
        with self._lock:
            # reset before the request: a gap of events that is found meanwhile causes another snapshot
            self._schedule.is_snapshot_wanted, folder = False, self._folder
        began = self._schedule.snapshot_at = self._clock.monotonic()
        try:
            parts = site_requests.request_snapshot(self.name, self._owner, self._client, self._clock)
            with self._lock:
                self._check(folder)
                changed = self._view.snapshot(parts, began)
        except Exception:
            with self._lock:
                self._schedule.is_snapshot_wanted = True
            raise
        for job in changed:
            self._notify(job)
        self._notify("")

    # --- internal -----------------------------------------------------------------------------------------------------
    def _check(self, folder: str | None) -> None:
        """Refuse an answer if its request was sent before the folder changed."""
        if folder != self._folder:
            change = f"from {folder} to {self._folder} since the request"
            raise SiteUnknownOutcomeError(f"pool {self.name}: its folder has changed {change}")

    def _apply_absence(self, job: str, requested_at: float, folder: str | None) -> None:
        with self._lock:
            self._check(folder)
            was_known = self._view.gone(job, requested_at, self._clock.monotonic())
        if was_known:
            self._notify(job)

    def _notify(self, job: str) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(job)
            except Exception:
                log.exception("a subscriber of a pool failed", extra=kv(pool=self.name))
