"""The control loop of scheduler and controllers, and the dependencies of the loops that use Slurm."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.lease import Elector
from bridge.logs import kv
from bridge.slurm.client import SlurmClient
from bridge.slurm.snapshot import Poller
from bridge.threads import Supervisor
from bridge.workers import Workers

log = logging.getLogger(__name__)

BATCH_DELAY = 0.05
"""Least seconds between two reconciliations, to collect changes."""
FIRST_DELAY = 0.01
"""Seconds to collect changes after a pause: a snapshot and the caches change together."""
RESYNC_PERIOD = 1.0
"""Seconds between two reconciliations without changes: the end of a back-off causes no event."""
PAUSE_FACTOR = 19.0
"""The pause after a reconciliation (at most ``RESYNC_PERIOD``), as a multiple of its CPU time: 5 % of one core."""
STUCK = 60.0
"""Seconds without a reconciliation after which the loop is reported as stuck."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The clients and caches of Kubernetes and Slurm; ``cluster`` is the UID of the namespace kube-system."""

    config: Config
    kube: KubeClient
    slurm: SlurmClient
    poller: Poller
    pods: Cache
    nodes: Cache
    events: EventRecorder
    cluster: str
    clock: Clock


class Loop(ABC):
    """Reconciles after changes of the caches, while this process is the leader. Workers run the actions.

    ``elector`` is ``None`` without leader election. ``check_leadership`` raises
    :class:`~bridge.errors.LostLeadershipError` if this process is not the leader; all writes must be fenced with it.
    """

    def __init__(self, name: str, caches: Sequence[Cache], elector: Elector | None, workers: int, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.check_leadership: Callable[[], None] = elector.check if elector is not None else _always
        self.leading_since: float | None = None
        self.workers = Workers(f"{name}-worker", workers, done=self.wake, clock=clock)
        self._caches = caches
        self._elector = elector
        self._changed = threading.Event()
        self._progress = clock.monotonic()
        self._took = 0.0

    @abstractmethod
    def reconcile(self) -> None:
        """Decide once, and submit the actions to the workers. Called only if :meth:`ready`."""

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
        self._changed.set()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers. The caller starts the caches."""
        for cache in self._caches:
            cache.subscribe(self.wake)
        self.workers.start(supervisor)
        supervisor.spawn(self.name, lambda: self._run(supervisor))

    def stuck(self) -> str | None:
        """Return why the loop makes no progress; ``None`` if it does."""
        silent = self.clock.monotonic() - self._progress
        return f"the loop {self.name} has not reconciled for {silent:.0f} s" if silent > STUCK else None

    def _run(self, supervisor: Supervisor) -> None:
        ended = self.clock.monotonic()
        while not supervisor.stopping.is_set():
            self._changed.wait(RESYNC_PERIOD)
            rested = self.clock.monotonic() - ended
            pause = min(RESYNC_PERIOD, max(BATCH_DELAY, PAUSE_FACTOR * self._took))
            if supervisor.wait(max(FIRST_DELAY, pause - rested)):
                return
            self._changed.clear()
            self._progress = self.clock.monotonic()
            began = time.thread_time()
            if self._leads() and self.ready():
                try:
                    self.reconcile()
                except BridgeError as error:
                    log.warning("reconciliation failed", extra=kv(loop=self.name, error=error))
            self._took = time.thread_time() - began
            ended = self.clock.monotonic()

    def _leads(self) -> bool:
        if self._elector is not None and not self._elector.held:
            self.leading_since = None
            return False
        if self.leading_since is None:
            self.leading_since = self.clock.monotonic()
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
        """Poll Slurm: decisions need a snapshot from after the start of the leadership."""
        self.dependencies.poller.wake()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers. The caller starts the caches and the poller."""
        self.dependencies.poller.subscribe(self.wake)
        super().start(supervisor)


def _always() -> None:
    """The check of leadership without leader election."""
