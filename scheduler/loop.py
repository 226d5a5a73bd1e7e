"""The scheduler's loop: gather one view, decide, hand the actions to the workers, wait for something to change."""

from __future__ import annotations

import logging
import threading
from collections import Counter

from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.lease import Elector
from bridge.logs import kv
from bridge.metrics import SCHEDULER_PODS
from bridge.slurm.client import SlurmClient
from bridge.slurm.models import Snapshot
from bridge.slurm.snapshot import Poller
from bridge.threads import Supervisor
from bridge.workers import Workers
from bridge.workload import eligibility, pods
from scheduler import decide
from scheduler.act import URGENCY, Actor
from scheduler.attempts import Attempts
from scheduler.placement import Placements

log = logging.getLogger(__name__)

GATHER = 0.05
"""Seconds for which changes are gathered before the next decision."""
REST = 9.0
"""Times as long as a look took is the pause after it, at least: deciding takes a tenth of a core at most."""
IDLE = 1.0
"""Seconds after which is decided anyway: back-offs end without any event."""


class Scheduler:
    """Everything the scheduler owns. ``elector`` is ``None`` where only one replica can run."""

    def __init__(
        self,
        config: Config,
        kube: KubeClient,
        slurm: SlurmClient,
        poller: Poller,
        pod_cache: Cache,
        node_cache: Cache,
        events: EventRecorder,
        elector: Elector | None,
        cluster: str,
        clock: Clock,
    ) -> None:
        self._config = config
        self._slurm = slurm
        self._poller = poller
        self._pods = pod_cache
        self._nodes = node_cache
        self._elector = elector
        self._clock = clock
        self._changed = threading.Event()
        self._attempts = Attempts()
        self._led_since: float | None = None
        self._node_change = 0
        self._placed: tuple[object, ...] = ()
        lead = elector.check if elector is not None else _always
        fenced = kube.fenced(lead)
        self._actor = Actor(
            config,
            fenced,
            slurm,
            poller,
            pod_cache,
            events,
            self._attempts,
            cluster,
            lead,
            clock,
        )
        self._workers = Workers("scheduler-worker", config.workers, done=self._changed.set)
        self._progress = clock.monotonic()
        self._took = 0.0

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers; caches and the poller are started by their owner."""
        self._pods.subscribe(lambda *_: self._changed.set())
        self._nodes.subscribe(self._node_changed)
        self._poller.subscribe(lambda _: self._changed.set())
        self._workers.start(supervisor)
        supervisor.spawn("scheduler", lambda: self._run(supervisor))

    def stuck(self) -> str | None:
        """Say why the loop makes no progress, if it makes none."""
        silent = self._clock.monotonic() - self._progress
        return f"the scheduler's loop has not come round for {silent:.0f} s" if silent > 60 else None

    def _node_changed(self, *_: object) -> None:
        self._node_change += 1
        self._changed.set()

    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self._changed.wait(IDLE)
            if supervisor.wait(max(GATHER, REST * self._took)):
                return
            self._changed.clear()
            self._progress = self._clock.monotonic()
            if self._leads() and self._pods.synced and self._nodes.synced:
                try:
                    self._look()
                except BridgeError as error:
                    log.warning("no decision this time", extra=kv(error=error))
            self._took = self._clock.monotonic() - self._progress

    def _leads(self) -> bool:
        if self._elector is not None and not self._elector.held:
            self._led_since = None
            return False
        if self._led_since is None:
            self._led_since = self._clock.monotonic()
            self._poller.wake()
        return True

    def _look(self) -> None:
        snapshot = self._poller.snapshot
        if not snapshot.sequence:
            return
        waiting = [pod for pod in self._pods.items() if not pods.is_bound(pod) and not pods.is_finished(pod)]
        self._attempts.forget_all_but({pods.uid(pod) for pod in waiting})
        placements = self._place(snapshot)
        view = decide.View(
            pods=[pod for pod in waiting if not self._workers.busy(pods.uid(pod))],
            snapshot=snapshot,
            placements=placements,
            attempts=self._attempts,
            version=self._slurm.version,
            config=self._config,
            now=self._clock.monotonic(),
            led_since=self._led_since or 0.0,
        )
        counts: Counter[str] = Counter()
        for action in decide.decide(view):
            counts[type(action).__name__.lower()] += 1
            self._dispatch(action)
        counts["slurm"] = len(waiting) - sum(counts.values())
        for name in (*(kind.__name__.lower() for kind in URGENCY), "slurm"):
            SCHEDULER_PODS.labels(name).set(counts[name])

    def _dispatch(self, action: decide.Action) -> None:
        self._workers.submit(pods.uid(action.pod), lambda: self._actor.act(action), URGENCY[type(action)])

    def _place(self, snapshot: Snapshot) -> Placements:
        """Give the placements on the nodes of this moment, worked out anew only when a node has changed."""
        mark = (self._node_change, frozenset(snapshot.nodes), tuple(sorted(snapshot.partitions.items())))
        if mark != self._placed:
            nodes = [eligibility.view(node) for node in self._nodes.items()]
            self._actor.placements = Placements(nodes, snapshot.nodes, snapshot.partitions)
            self._placed = mark
        return self._actor.placements


def _always() -> None:
    """Stand in for the lease where there is only one replica."""
