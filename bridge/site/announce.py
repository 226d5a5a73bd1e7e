"""Announcements of the site: measured resources, BuildConfig, and whether it accepts jobs."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Callable
from decimal import Decimal

from bridge import __version__
from bridge.clock import Clock
from bridge.core.threads import Supervisor
from bridge.errors import BatchError, BridgeError
from bridge.logs import kv
from bridge.protocol.model import architecture
from bridge.protocol.model.announcement import JobUser
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Published
from bridge.script import library
from bridge.script.runtimes import runtime_table as runtimes
from bridge.site import measuring
from bridge.site.batch.batch_interface import Amount, BatchSystem, Capacity
from bridge.site.batch.commands import Commands
from bridge.site.config.site_config import Resources, SiteConfig
from bridge.site.gangs.gathering import runs_groups
from bridge.site.jobs.site_folder import Folder
from bridge.site.submitter import ANNOUNCE, BUILDCONFIG
from bridge.site.watcher import Watcher
from bridge.workload import quantity

log = logging.getLogger(__name__)

PRESENT = "present"
RUNTIME_TIMEOUT = 10.0


Publish = Callable[[Published], None]
"""Sends a message to the hub. It may get lost; the next one follows."""


class Presence:
    """Whether other submitters of this directory run: each holds a shared lock of a file."""

    def __init__(self, folder: Folder) -> None:
        self._file = os.open(folder.path / PRESENT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Return whether this is the only submitter."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            fcntl.flock(self._file, fcntl.LOCK_SH)  # a failed attempt releases the shared lock, too
        return True


class Announcer:
    """Announces while this process is the leader: at start, on change, and each period."""

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        watcher: Watcher,
        config: Callable[[], SiteConfig],
        publish: Publish,
        clock: Clock,
    ) -> None:
        self._folder, self._batch, self._watcher = folder, batch, watcher
        self._config, self._publish, self._clock = config, publish, clock
        self._capacity: Capacity | None = None
        self._printed: Resources | None = None
        self._measured_at = float("-inf")
        self._problem = self._gang_problem = self._heterogeneous_problem = ""
        self._versions: tuple[str, str] | None = None
        self._user: JobUser | None = None
        self._user_of: SiteConfig | None = None
        self._described: SiteConfig | None = None
        self.wake = threading.Event()

    def run(self, supervisor: Supervisor) -> None:
        """Announce until the process stops; at once if ``wake`` is set."""
        last_announced: Announce | None = None
        due = 0.0
        while not supervisor.stopping.is_set():
            if self._watcher.is_leader:
                now = self._clock.monotonic()
                announce = self.make()
                if self.wake.is_set() or now >= due or last_announced is None or _changed(last_announced, announce):
                    self.wake.clear()
                    self.publish(announce)
                    last_announced, due = announce, now + announce.period
            supervisor.wait(min(1.0, self._config().announce.period))

    def publish(self, announce: Announce) -> None:
        """Send an announcement, and before it the BuildConfig if it is new."""
        config = self._config()
        message = BuildConfigMessage(pool=config.pool, digest=announce.digest, config=config.buildconfig().dump())
        try:
            # in this order, which describe() reverses: no announcement is answered with an older BuildConfig
            self._folder.note(BUILDCONFIG, message.model_dump(mode="json"))
            self._folder.note(ANNOUNCE, announce.model_dump(mode="json"))
        except OSError as error:  # the other submitters answer with the earlier announcement
            log.warning("the announcement is not stored", extra=kv(why=error.strerror))
        with contextlib.suppress(BridgeError):  # no connection: the next one follows
            if self._described != config:
                self._publish(message)
                self._described = config
            self._publish(announce)

    def reconnected(self) -> None:
        """Send BuildConfig and announcement again: the hub may be new."""
        self._described = None
        self.wake.set()

    def make(self, *, leaving: bool = False) -> Announce:
        """Return the announcement; ``leaving``: the last one."""
        config = self._config()
        if not leaving:
            self._measure(config)
        capacity = self._capacity or Capacity(Amount(), Amount())
        counts = self._watcher.index.counts()
        living = counts.get("queued", 0) + counts.get("running", 0)
        resources = self._printed or config.resources
        total, free = _quantities(capacity.total, resources), _quantities(capacity.free, resources, free=True)
        total["pods"] = str(resources.pods)
        free["pods"] = str(max(0, resources.pods - living))
        built = config.buildconfig()
        batch, runtime = self._versions or (config.batch.kind, config.runtime.kind)
        gangs = runs_groups(self._batch, config) and not self._gang_problem
        problem = (
            "the submitter has stopped" if leaving else self._watcher.problem or self._watcher.folder_problems.first
        )
        return Announce(
            pool=config.pool,
            submitter=self._watcher.name,
            folder=self._folder.id,
            sequences=dict(self._watcher.index.sequences),
            time=self._clock.time(),
            period=config.announce.period,
            version=__version__,
            batch=batch,
            runtime=runtime,
            capacity=total,
            free=free,
            jobs=counts,
            user=self._job_user(config),
            labels={architecture.LABEL: architecture.HERE, **config.node.labels},
            taints=list(config.node.taints),
            problem=problem or self._problem,
            digest=built.digest,
            library=library.digest(runtimes.of(built).library),
            leaving=leaving,
            gangs=gangs,
            heterogeneous_gangs=gangs and self._batch.heterogeneous and not self._heterogeneous_problem,
            commands=config.limits.allow_exec and self._batch.enters,
            ports=config.limits.allow_ports and self._batch.enters,
            reach=config.limits.allow_reach and self._batch.enters,
        )

    def _job_user(self, config: SiteConfig) -> JobUser | None:
        """Return the user of the jobs, measured with the resources and for each configuration: it may query LDAP."""
        if self._user_of is not config:
            self._user, self._user_of = measuring.job_user(config, one_machine=self._batch.one_machine), config
        return self._user

    def _measure(self, config: SiteConfig) -> None:
        now = self._clock.monotonic()
        if now - self._measured_at < (config.announce.capacity_period if not self._problem else config.announce.period):
            return
        # before the query: also a batch system that does not answer is queried once a period only
        self._measured_at = now
        self._user_of = None
        try:
            if self._versions is None:
                self._versions = self._batch.version(), runtime_version(config)
            self._capacity = self._batch.capacity()
            self._measure_gangs(config)
            self._printed = measuring.resources(config.resources) if config.resources.script else None
        except BatchError as error:
            if not self._problem:
                log.warning("resources not measured", extra=kv(why=error))
            self._problem = str(error)
        else:
            self._problem = ""

    def _measure_gangs(self, config: SiteConfig) -> None:
        problem = self._batch.gang_problem() if (runs := runs_groups(self._batch, config)) else ""
        if problem and problem != self._gang_problem:
            log.warning("the site runs no groups of pods", extra=kv(why=problem))
        self._gang_problem = problem
        problem = self._batch.heterogeneous_problem() if runs and not problem else ""
        if problem and problem != self._heterogeneous_problem:
            log.warning("the site runs no groups whose pods request different resources", extra=kv(why=problem))
        self._heterogeneous_problem = problem


def _quantities(amount: Amount, resources: Resources, *, free: bool = False) -> dict[str, str]:
    """Return an amount as Kubernetes quantities; configured values replace measured ones."""
    quantities = {"cpu": str(amount.cpus), "memory": f"{amount.memory // 2**20}Mi"}
    quantities |= {name: str(count) for name, count in amount.extended.items()}
    configured = {"cpu": resources.cpu, "memory": resources.memory, **resources.extended}
    for name, value in configured.items():
        if value is not None:
            quantities[name] = _least(quantities.get(name), value) if free else value
    return quantities


def _least(measured: str | None, configured: str) -> str:
    def size(text: str) -> Decimal:
        return quantity.parse(text)

    return configured if measured is None else min(measured, configured, key=size)


def _changed(old: Announce, new: Announce) -> bool:
    """Return whether the hub needs the announcement at once; free resources and counts wait for the period."""
    return any(
        getattr(old, name) != getattr(new, name)
        for name in ("submitter", "capacity", "labels", "taints", "problem", "digest", "batch", "runtime")
    )


def runtime_version(config: SiteConfig) -> str:
    """Return kind and version of the container runtime; the kind alone where the program is not installed here."""
    kind = config.runtime.kind
    words = runtimes.of(config).version_command(config)
    try:
        result = Commands(None, RUNTIME_TIMEOUT, os.environ).ask(*words) if words else None
    except BatchError:
        return kind
    lines = (result.out or result.err).split("\n") if result is not None else [""]
    return " ".join([kind, *lines[0].split()[-1:]])[:100]
