"""The submitter's process: creates its parts, runs their threads, and stops them."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bridge import __version__, logs
from bridge.clock import Clock, SystemClock
from bridge.core.threads import SWITCH_INTERVAL, Supervisor
from bridge.errors import BatchError, BridgeError, ConfigError
from bridge.logs import kv
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import Event
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_server import Announcer as WireAnnouncer
from bridge.protocol.nats.request_server import Server
from bridge.site.announce import Announcer, Presence, Publish
from bridge.site.batch.batch_interface import BatchSystem
from bridge.site.batch_requests import BatchList, Delays
from bridge.site.config import site_config as configuration
from bridge.site.config.site_config import READ_AT_START, SiteConfig, make_batch_system
from bridge.site.cpus import keep_to_one
from bridge.site.images import PERIOD as IMAGES_PERIOD
from bridge.site.images import ImageCache
from bridge.site.interlink_slurm.adoption import Adoption
from bridge.site.jobs.site_folder import Folder
from bridge.site.submitter import Submitter
from bridge.site.watcher import Watcher
from bridge.telemetry import trace_export, tracing

log = logging.getLogger(__name__)

LOOK_PERIOD = 0.1
"""Seconds between two reads of ``changed/``."""
EAGER_PAUSE = 0.05
"""Seconds between two lists of the batch system's jobs, at least."""
LONGEST_PAUSE = 2.0
PAUSE_FACTOR = 3.0
"""The pause after a list (at most ``LONGEST_PAUSE``), as a multiple of its CPU time: a quarter of one core."""
LEADERSHIP_PERIOD = 0.5
"""Seconds between two attempts to become the leader."""
Loader = Callable[[Path, str | None], SiteConfig]


class LiveConfig:
    """The configuration, read again when its file changes. A file with an error changes nothing.

    ``load`` reads a file; its second argument is the name of the pool, or ``None`` for that of the file.
    """

    def __init__(self, path: Path, pool: str | None, load: Loader = configuration.load) -> None:
        self._path, self._pool, self._load = path, pool, load
        # read before the file: a change between the two is read at the next refresh
        self._stamp = self._now()
        self.config = load(path, pool)

    def _now(self) -> tuple[int, int] | None:
        try:
            file_stat = self._path.stat()
        except OSError:
            return None
        # the inode too: a file that is moved here may have an older or the same time
        return file_stat.st_mtime_ns, file_stat.st_ino

    def refresh(self) -> bool:
        """Read the file again if it changed; return whether the configuration changed."""
        stamp = self._now()
        if stamp is None or stamp == self._stamp:
            return False
        # also if the file is invalid: its error is logged once, not every second
        self._stamp = stamp
        try:
            fresh = self._load(self._path, self._pool)
        except ConfigError as error:
            log.warning("configuration file not used", extra=kv(why=error))
            return False
        for key in READ_AT_START:
            if getattr(fresh, key) != getattr(self.config, key):
                log.warning("this change of the configuration applies after a restart", extra=kv(key=key))
        merged = fresh.model_copy(update={key: getattr(self.config, key) for key in READ_AT_START})
        changed = merged != self.config
        self.config = merged
        if changed:
            log.info("configuration changed", extra=kv(digest=merged.buildconfig().digest))
        return changed


class Service:
    """One submitter. :meth:`start` sets ``publish``, which sends announcements and events.

    ``supervisor``: that of the process, if the submitter is a part of another process. ``pool``: the pool to which the
    folder must belong; empty: any, for a process that serves no pool over NATS.
    """

    def __init__(
        self,
        live: LiveConfig,
        clock: Clock | None = None,
        batch: BatchSystem | None = None,
        supervisor: Supervisor | None = None,
        pool: str = "",
    ) -> None:
        config = live.config
        self.live = live
        self.clock = clock or SystemClock()
        self.supervisor = supervisor or Supervisor()
        self.folder = Folder(Path(config.folder), sync=config.sync, since=self.clock.time())
        self.folder.prepare(pool)
        self.images = ImageCache(self.folder.path, lambda: self.live.config.images, self.clock)
        self.images.prepare()
        self.adoption = Adoption(Path(config.adopt_from), self.folder) if config.adopt_from else None
        if self.adoption is not None:
            self.adoption.begin()  # first: the batch system reads the names of adopted jobs
        self.batch = batch or make_batch_system(config, self.clock)
        self.name = f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"
        lag = self.batch.lag if config.batch.lag is None else config.batch.lag
        self.period = self.batch.period if config.batch.period is None else config.batch.period
        delays = Delays(config.batch.settle, config.batch.lost_after, lag)
        self.publish: Publish | None = None
        batch_list = BatchList(self.batch, self.period, self.clock)
        self._wake = threading.Event()
        self.watcher = Watcher(
            self.folder,
            self.batch,
            delays,
            self.name,
            self.clock,
            self._publish,
            # a lambda: the handlers, which need the watcher, do not exist yet
            lambda uid: self.handlers.resubmit(uid),
            batch_list,
        )
        self.handlers = Submitter(
            self.folder,
            self.batch,
            self.watcher,
            lambda: self.live.config,
            self.clock,
            lag=lag,
            settle=config.batch.settle,
            batch_list=batch_list,
            wait=self.supervisor.wait,
            wake=self._wake.set,
        )
        self.presence = Presence(self.folder)
        self.announcer: Announcer | None = None

    @property
    def config(self) -> SiteConfig:
        """The configuration as it is now."""
        return self.live.config

    def start(self, publish: Publish) -> None:
        """Start the threads that watch and announce."""
        self.publish = publish
        self.announcer = Announcer(self.folder, self.batch, self.watcher, lambda: self.live.config, publish, self.clock)
        announcer = self.announcer
        self.supervisor.spawn("changes", self._watch_changes)
        self.supervisor.spawn("batch", self._watch_batch)
        self.supervisor.spawn("announce", lambda: announcer.run(self.supervisor))
        self.supervisor.spawn("configuration", self._watch_configuration)
        self.supervisor.spawn("images", self._watch_images)
        if self.adoption is not None:
            self.supervisor.spawn("adopted jobs", self._watch_adopted)

    def stop(self) -> None:
        """Announce the end if this is the last submitter, and release the leadership."""
        if self.watcher.is_leader and self.announcer is not None and self.presence.alone():
            # before the release: a new leader may announce itself right after it
            self.announcer.publish(self.announcer.make(leaving=True))
        self.watcher.release_leadership()

    def connection_changed(self, connected: bool) -> None:
        """Announce again after an interruption of the connection."""
        if connected and self.announcer is not None:
            self.announcer.reconnected()

    def _publish(self, number: int, status: JobStatus) -> None:
        if self.publish is None:
            return
        try:
            self.publish(
                Event(pool=self.config.pool, submitter=self.name, folder=self.folder.id, sequence=number, status=status)
            )
        except BridgeError as error:  # the hub sees the gap, and requests a snapshot
            log.debug("event not sent", extra=kv(job=status.job, why=error))

    def _watch_changes(self) -> None:
        stopping = self.supervisor.stopping
        while not stopping.is_set():
            if not self.watcher.is_leader:
                if not self.watcher.take_leadership():
                    stopping.wait(LEADERSHIP_PERIOD)
                    continue
                self._wake.set()
                if self.announcer is not None:
                    # the hub compares event numbers for each submitter: it needs the name and the numbers of this one
                    self.announcer.reconnected()
            if self.watcher.read_changes():
                self._wake.set()
            stopping.wait(LOOK_PERIOD)

    def _watch_batch(self) -> None:
        stopping, due = self.supervisor.stopping, 0.0
        while not stopping.is_set():
            # nothing sets this event when the process stops or the leadership changes: hence the 0.5 s
            woken = self._wake.wait(LOOK_PERIOD if self.handlers.arrays.is_waiting else min(self.period, 0.5))
            # cleared before the query: a change during it causes another one
            self._wake.clear()
            if not self.watcher.is_leader:
                continue
            with self.watcher.folder_problems.noted("submit arrays"):
                self.handlers.arrays.run(self.config.batch.array_wait)
            now = self.clock.monotonic()
            if now >= due or (woken and self.batch.eager):
                due = now + self.period
                # CPU time of this thread: a slow answer of the batch system must not delay the next list
                began = time.thread_time()
                self.watcher.poll_batch_system()
                stopping.wait(pause_after(time.thread_time() - began))
            elif woken:
                self.watcher.actions.run_cancellations()

    def _watch_images(self) -> None:
        due = 0.0
        while not self.supervisor.wait(1.0):
            now = self.clock.monotonic()
            if self.watcher.is_leader and now >= due:
                due = now + IMAGES_PERIOD
                self.images.enforce_limits()

    def _watch_adopted(self) -> None:
        while self.adoption is not None and not self.supervisor.wait(self.adoption.period):
            if self.watcher.is_leader:
                try:
                    self.adoption.refresh()
                except OSError as error:  # a full disk; the next round repeats it
                    log.warning("the state of adopted jobs is not written yet", extra=kv(why=error.strerror))

    def _watch_configuration(self) -> None:
        while not self.supervisor.wait(1.0):
            if self.live.refresh() and self.announcer is not None:
                self.announcer.reconnected()


def pause_after(took: float) -> float:
    """Return the seconds of the pause after a list of the batch system's jobs that took so much CPU time."""
    return min(LONGEST_PAUSE, max(EAGER_PAUSE, PAUSE_FACTOR * took))


def open_to_pods(config: SiteConfig) -> list[tuple[str, str]]:
    """Return each directory for hostPath volumes from which pods reach a secret of the site, and that secret."""
    found: list[tuple[str, str]] = []
    for area in config.volumes.host_paths:
        inner = Path(os.path.realpath(area))
        paths = (config.folder, config.nats.seed_file, config.nats.password_file)
        for path in (str(each) for each in paths if each is not None):
            secret = Path(os.path.realpath(path))
            if secret.is_relative_to(inner) or inner.is_relative_to(secret):
                found.append((area, path))
    return found


def nats_link(config: SiteConfig, name: str) -> Link:
    """Return the connection, not started; raises :class:`ConfigError` if other users can read a secret."""
    nats = config.nats
    for file in (nats.seed_file, nats.password_file):
        if file is None:
            continue
        try:
            mode = stat.S_IMODE(file.stat().st_mode)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        if mode & 0o077:
            raise ConfigError(f"{file} is open to others (mode {mode:04o})", hint=f"chmod 600 {file}")
    return Link(nats, name)


def run(path: Path, pool: str | None) -> int:
    """Run until a signal, or until a thread ends; return the exit status."""
    live = LiveConfig(path, pool)
    logs.setup(live.config.logging.level, live.config.logging.format)
    trace_export.setup("podbridge-submitter")
    os.umask(0o077)
    sys.setswitchinterval(SWITCH_INTERVAL)
    # before the first thread starts: threads inherit the processors of the thread that starts them
    if live.config.one_cpu:
        keep_to_one()
    service = Service(live, pool=live.config.pool)
    supervisor = service.supervisor
    supervisor.stop_on_signals()
    config = service.config
    log.info(
        "starting",
        extra=kv(
            version=__version__,
            pool=config.pool,
            batch=config.batch.kind,
            submitter=service.name,
            folder=config.folder,
            id=service.folder.id,
        ),
    )
    for area, secret in open_to_pods(config):
        log.warning(
            "pods reach the secrets of other pods or of the site by a hostPath", extra=kv(area=area, path=secret)
        )
    try:
        log.info("batch system", extra=kv(version=service.batch.version()))
    except BatchError as error:
        log.warning("the batch system does not answer", extra=kv(why=error))
    link = nats_link(config, service.name)
    Server(link, config.nats.prefix, config.pool, service.handlers, service.clock, folder=service.folder.id)
    service.start(WireAnnouncer(link, config.nats.prefix, config.pool).publish)
    link.watch(service.connection_changed)
    link.start(supervisor)
    supervisor.wait_for_stop()
    if supervisor.failure is not None:
        log.error("ending", extra=kv(why=supervisor.failure))
    # at once: the link sends for only nats_link.LINGER seconds after the process begins to stop
    service.stop()
    tracing.stop()
    busy_threads = supervisor.join(5)
    if busy_threads:
        log.warning("threads still busy at the end", extra=kv(threads=",".join(busy_threads)))
    log.info("ended", extra=kv(status=1 if supervisor.failure else 0))
    return 1 if supervisor.failure else 0
