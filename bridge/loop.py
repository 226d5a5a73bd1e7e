"""What scheduler and controllers share: both sides in view, and a loop that looks whenever something has changed."""

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

GATHER = 0.05
"""Seconds for which changes are gathered before the next look."""
IDLE = 1.0
"""Seconds after which is looked anyway: back-offs end without any event."""
REST = 19.0
"""Times the processor time of a look is the pause after it (``IDLE`` at most): deciding takes a twentieth of a core."""
STUCK = 60.0
"""Seconds without a turn after which the loop counts as stuck."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Kubernetes and Slurm as one process sees them; ``cluster`` is the UID of the namespace kube-system."""

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
    """Looks when one of the caches has changed, while this process leads; actions go to the workers.

    ``elector`` is ``None`` where only one replica can run. ``check_leadership`` raises
    :class:`~bridge.errors.LostLeadershipError` once this process leads no more, and is to fence every write.
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
        """Decide once, and hand the actions to the workers. Only called when :meth:`ready`."""

    @property
    def unsettled(self) -> bool:
        """Whether something that was asked for may still come to be, so that a successor has to wait for it."""
        return False

    @property
    def inherited(self) -> bool:
        """Whether a former leader may have written until this process began to lead."""
        return self._elector is not None and self._elector.inherited

    @property
    def busy(self) -> bool:
        """Whether something waits to be done, so that Events give way."""
        return self.workers.backlog

    def ready(self) -> bool:
        """Whether all that a decision needs has been seen once."""
        return all(cache.synced for cache in self._caches)

    def on_started_leading(self) -> None:  # noqa: B027  (most have nothing to do)
        """Do what is to be done when this process begins to lead."""

    def wake(self, *_: object) -> None:
        """Have another look soon."""
        self._changed.set()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers; caches and other sources are started by their owner."""
        for cache in self._caches:
            cache.subscribe(self.wake)
        self.workers.start(supervisor)
        supervisor.spawn(self.name, lambda: self._run(supervisor))

    def stuck(self) -> str | None:
        """Say why the loop makes no progress, if it makes none."""
        silent = self.clock.monotonic() - self._progress
        return f"the loop of {self.name} has not come round for {silent:.0f} s" if silent > STUCK else None

    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self._changed.wait(IDLE)
            if supervisor.wait(min(IDLE, max(GATHER, REST * self._took))):
                return
            self._changed.clear()
            self._progress = self.clock.monotonic()
            began = time.thread_time()
            if self._leads() and self.ready():
                try:
                    self.reconcile()
                except BridgeError as error:
                    log.warning("no decision this time", extra=kv(loop=self.name, error=error))
            self._took = time.thread_time() - began

    def _leads(self) -> bool:
        if self._elector is not None and not self._elector.held:
            self.leading_since = None
            return False
        if self.leading_since is None:
            self.leading_since = self.clock.monotonic()
            self.on_started_leading()
        return True


class SlurmLoop(Loop):
    """A loop that sees Kubernetes and Slurm."""

    def __init__(self, name: str, dependencies: Dependencies, elector: Elector | None) -> None:
        super().__init__(
            name, (dependencies.pods, dependencies.nodes), elector, dependencies.config.workers, dependencies.clock
        )
        self.dependencies = dependencies

    def ready(self) -> bool:
        """Full caches, and an answer of Slurm's."""
        return super().ready() and self.dependencies.poller.snapshot.sequence > 0

    def on_started_leading(self) -> None:
        """Ask Slurm anew: decisions need a view that is younger than the leadership."""
        self.dependencies.poller.wake()

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers; caches and the poller are started by their owner."""
        self.dependencies.poller.subscribe(self.wake)
        super().start(supervisor)


def _always() -> None:
    """Stand in for the lease where there is only one replica."""
