"""The control loop of scheduler and controllers, and the dependencies of the loops that use Slurm."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.config.hub import Config
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.core.workers import Workers
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.lease import Elector
from bridge.kube.object_store import Object, is_repeated
from bridge.logs import kv
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller

log = logging.getLogger(__name__)

BATCH_DELAY = 0.05
"""Least seconds between two reconciliations, to collect changes."""
FIRST_DELAY = 0.01
"""Seconds to collect changes after a pause: a snapshot and the caches change together."""
RESYNC_PERIOD = 1.0
"""Seconds between two reconciliations without changes: the end of a back-off causes no event."""
LONGEST_RESYNC_PERIOD = 5.0
"""The same, after a reconciliation of which more would use more than 5 % of one core."""
PAUSE_FACTOR = 19.0
"""The pause after a reconciliation, as a multiple of its CPU time: 5 % of one core.

It is at most ``RESYNC_PERIOD`` if something has changed, and at most ``LONGEST_RESYNC_PERIOD`` otherwise.

Whole and partial reconciliations have a pause each, so that a partial one does not wait for that of a whole one.
"""
STUCK = 60.0
"""Seconds without a reconciliation after which the loop is reported as stuck."""


@dataclass(frozen=True, slots=True)
class KubeDependencies:
    """What all loops of a process share: the configuration, the client of Kubernetes, the cache of nodes, Events."""

    config: Config
    kube: KubeClient
    nodes: Cache
    events: EventRecorder
    clock: Clock


@dataclass(frozen=True, slots=True)
class Dependencies(KubeDependencies):
    """What the loops of the colocated Slurm share, too; ``cluster`` is the UID of the namespace kube-system."""

    slurm: SlurmClient
    poller: Poller
    pods: Cache
    cluster: str


class Loop(ABC):
    """Reconciles after changes of the caches, while this process is the leader. Workers run the actions.

    A *whole* reconciliation decides about everything, and its CPU time grows with the number of objects. A subclass may
    also reconcile in part: :meth:`touch` names objects for which something has changed, and :meth:`reconcile_some`
    decides about these. Each change must also :meth:`wake` the loop: only whole reconciliations are complete. The first
    one after the start of a leadership is whole.

    ``elector`` is ``None`` without leader election. ``check_leadership`` raises
    :class:`~bridge.errors.LostLeadershipError` if this process is not the leader; all writes must be fenced with it.
    """

    def __init__(self, name: str, caches: Sequence[Cache], elector: Elector | None, workers: int, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.check_leadership: Callable[[], None] = elector.check if elector is not None else _always
        self.leading_since: float | None = None
        self.workers = Workers(f"{name}-worker", workers, done=self.acted, clock=clock)
        self._caches = caches
        self._elector = elector
        self._changed = threading.Event()
        self._is_woken = False
        self._touched_lock = threading.Lock()
        self._touched: set[str] | None = None
        self._urgent = self._has_begun = self._failing = False
        self._progress = clock.monotonic()
        self._whole_from = self._some_from = -math.inf  # the next reconciliations do not begin earlier
        self._resync_at = -math.inf

    @abstractmethod
    def reconcile(self) -> None:
        """Decide once, and submit the actions to the workers. Called only if :meth:`ready`."""

    def reconcile_some(self, keys: Set[str]) -> None:  # noqa: B027  (most loops touch nothing)
        """Decide about the objects with these keys, and about others that the subclass knows to have changed."""

    @property
    def unsettled(self) -> bool:
        """Whether an earlier request may still take effect, so that a successor must wait for it."""
        return False

    @property
    def inherited(self) -> bool:
        """Whether a former leader may have written until this process became the leader."""
        return self._elector is not None and self._elector.inherited

    @property
    def busy(self) -> bool:
        """Whether calls wait for a worker; Events are then written more slowly."""
        return self.workers.backlog

    def ready(self) -> bool:
        """Whether the first list of all caches is complete."""
        return all(cache.synced for cache in self._caches)

    def on_started_leading(self) -> None:  # noqa: B027  (most loops need nothing)
        """Run when this process becomes the leader."""

    def wake(self, *_: object) -> None:
        """Reconcile soon."""
        self._is_woken = True
        self._changed.set()

    def touch(self, keys: Iterable[str], *, at_once: bool = False) -> None:
        """Reconcile in part soon, without waiting until a whole reconciliation may begin.

        ``at_once``: do not wait for other changes or for a pause either. The caller limits how often this happens.
        """
        with self._touched_lock:
            self._touched = (self._touched or set()).union(keys)
            self._urgent |= at_once
        self._changed.set()

    def look_again(self, *_: object) -> None:
        """Reconcile in part soon, about what the subclass knows to have changed; in whole, as after :meth:`wake`."""
        self.touch(())
        self.wake()

    def acted(self, key: str) -> None:
        """Run in the thread of a worker after each of its calls, which was about the object ``key``."""
        self.wake()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers. The caller starts the caches."""
        self.subscribe()
        self.workers.start(supervisor)
        supervisor.spawn(self.name, lambda: self._run(supervisor))

    def subscribe(self) -> None:
        """Wake the loop on each change of the caches."""
        for cache in self._caches:
            cache.subscribe(lambda _, old, new, c=cache: self._object_changed(c, old, new))  # type: ignore[misc]

    def _object_changed(self, cache: Cache, old: Object | None, new: Object | None) -> None:
        """Wake the loop, unless the object is the same again: a kubelet reports its node even if nothing has changed.

        A list may skip a state that this process has written, and that decisions have seen.
        """
        if cache.listing or not is_repeated(old, new):
            self.wake()

    def stuck(self) -> str | None:
        """Return why the loop makes no progress; ``None`` if it does."""
        silent = self.clock.monotonic() - self._progress
        return f"the loop {self.name} has not reconciled for {silent:.0f} s" if silent > STUCK else None

    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self._changed.clear()  # before the causes are read: a later one ends the wait below
            now = self.clock.monotonic()
            begin = self._next()
            if begin > now:
                self._changed.wait(min(begin - now, RESYNC_PERIOD))
                self._leads()  # during a longer pause, this process may lose the lease and get it again
                continue
            if not self._urgent and supervisor.wait(FIRST_DELAY):
                return
            began_at = self.clock.monotonic()
            # a loop that fails each time is stuck, although it runs
            if not self._failing:
                self._progress = began_at
            leads = self._leads() and self.ready()
            with self._touched_lock:
                # also while this process does not lead: its first reconciliation as the leader is whole
                touched, self._touched = self._touched, None
                urgent, self._urgent = self._urgent, False
            whole = self._whole_at() <= began_at and not (urgent and self._has_begun)
            if whole:
                # before the reconciliation: a change during it wakes the loop again
                self._is_woken = False
            # not the time of the clock: waiting for the interpreter lock or for Slurm is no load
            began = time.thread_time()
            if leads:
                try:
                    if whole:
                        self._has_begun = True
                        self.reconcile()
                    else:
                        self.reconcile_some(touched or set())
                    self._failing = False
                except BridgeError as error:
                    log.warning("reconciliation failed", extra=kv(loop=self.name, error=error))
                except Exception as error:
                    # not about one object: if it lasts, the loop counts as stuck, and Kubernetes restarts the process
                    isolation.report("loop", self.name, error)
                    self._failing = True
                    self.wake()
            cpu_seconds = time.thread_time() - began
            if leads:
                log.debug("reconciled", extra=kv(loop=self.name, whole=whole, cpu=round(cpu_seconds, 4)))
            self._pause(whole, cpu_seconds)

    def _whole_at(self) -> float:
        return self._whole_from if self._is_woken else self._resync_at

    def _next(self) -> float:
        """Return when the next reconciliation may begin."""
        if self._touched is None:
            return self._whole_at()
        return min(self._whole_at(), -math.inf if self._urgent else self._some_from)

    def _pause(self, whole: bool, cpu_seconds: float) -> None:
        """Record when the next reconciliations may begin, after one that used ``cpu_seconds`` of CPU time."""
        ended = self.clock.monotonic()
        pause = ended + min(RESYNC_PERIOD, max(BATCH_DELAY, PAUSE_FACTOR * cpu_seconds)) - FIRST_DELAY
        if whole:
            self._whole_from = pause
            self._resync_at = ended + min(LONGEST_RESYNC_PERIOD, max(RESYNC_PERIOD, PAUSE_FACTOR * cpu_seconds))
            self._some_from = max(self._some_from, ended + BATCH_DELAY - FIRST_DELAY)
        else:
            self._some_from = pause
            self._whole_from = max(self._whole_from, ended + BATCH_DELAY - FIRST_DELAY)

    def _leads(self) -> bool:
        if self._elector is not None and not self._elector.held:
            self.leading_since = None
            return False
        if self.leading_since is None:
            self.leading_since = self.clock.monotonic()
            self._is_woken, self._whole_from, self._has_begun = True, -math.inf, False
            self.on_started_leading()
        return True


class SlurmLoop(Loop):
    """A loop that uses Kubernetes and Slurm."""

    def __init__(self, name: str, dependencies: Dependencies, elector: Elector | None) -> None:
        super().__init__(
            name, (dependencies.pods, dependencies.nodes), elector, dependencies.config.workers, dependencies.clock
        )
        self.dependencies = dependencies

    def ready(self) -> bool:
        """Whether the caches are complete and Slurm has answered."""
        return super().ready() and self.dependencies.poller.snapshot.sequence > 0

    def on_started_leading(self) -> None:
        """Poll Slurm: decisions need a snapshot, and submissions a list of all jobs, from after this moment."""
        self.dependencies.poller.list_all()
        self.dependencies.poller.wake()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers. The caller starts the caches and the poller."""
        self.dependencies.poller.subscribe(self.wake)
        super().start(supervisor)


def _always() -> None:
    """The check of leadership without leader election."""
