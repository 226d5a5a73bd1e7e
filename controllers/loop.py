"""The controllers' loop: gather a view, decide for pods and nodes, hand the actions to the workers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from bridge.clock import Clock
from bridge.config import Config
from bridge.errors import BridgeError
from bridge.kube.cache import Cache
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.kube.lease import Elector
from bridge.logs import kv
from bridge.metrics import CONTROLLER_ACTIONS
from bridge.slurm.client import SlurmClient
from bridge.slurm.snapshot import Poller
from bridge.threads import Supervisor
from bridge.workers import Workers
from bridge.workload import pods
from bridge.workload.eligibility import slurm_name
from controllers.node import act as node_act
from controllers.node import decide as node_decide
from controllers.workload import act as workload_act
from controllers.workload import decide as workload_decide

log = logging.getLogger(__name__)

GATHER = 0.05
REST = 9.0
"""Times as long as a look took is the pause after it, at least: deciding takes a tenth of a core at most."""
IDLE = 2.0
RETRY_AFTER = 2.0
"""Seconds for which a key is left alone after a failed call: no hot loop against an API that is away."""
SEEN_AFTER = 0.5
"""Seconds until caches and snapshot surely show what was done: the same is not done again meanwhile."""
ORPHAN_AFTER = 5.0
"""Seconds after which a job that was to be released with its pod, and still lives, counts as an orphan."""


class Controllers:
    """Everything the node and the workload controller own."""

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
        lead = elector.check if elector is not None else _always
        fenced = kube.fenced(lead)
        self._workload = workload_act.Actor(fenced, slurm, poller, pod_cache, events, cluster, lead, clock)
        self._node = node_act.Actor(fenced, slurm, poller, node_cache, events, lead)
        self._memory = workload_decide.Memory()
        self._changed = threading.Event()
        self._workers = Workers("controllers-worker", config.workers, done=self._changed.set)
        self._resting: dict[str, float] = {}
        self._progress = clock.monotonic()
        self._took = 0.0

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and its workers; caches and the poller are started by their owner."""
        self._pods.subscribe(lambda *_: self._changed.set())
        self._nodes.subscribe(lambda *_: self._changed.set())
        self._poller.subscribe(lambda _: self._changed.set())
        self._workers.start(supervisor)
        supervisor.spawn("controllers", lambda: self._run(supervisor))

    def stuck(self) -> str | None:
        """Say why the loop makes no progress, if it makes none."""
        silent = self._clock.monotonic() - self._progress
        return f"the controllers' loop has not come round for {silent:.0f} s" if silent > 60 else None

    def _run(self, supervisor: Supervisor) -> None:
        while not supervisor.stopping.is_set():
            self._changed.wait(IDLE)
            if supervisor.wait(max(GATHER, REST * self._took)):
                return
            self._changed.clear()
            self._progress = self._clock.monotonic()
            leads = self._elector is None or self._elector.held
            if leads and self._pods.synced and self._nodes.synced:
                try:
                    self._look()
                except BridgeError as error:
                    log.warning("no decision this time", extra=kv(error=error))
            self._took = self._clock.monotonic() - self._progress

    def _look(self) -> None:
        snapshot = self._poller.snapshot
        if not snapshot.sequence:
            return
        now = self._clock.monotonic()
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        nodes = self._nodes.items()
        slurm_names = {node["metadata"]["name"]: slurm_name(node) for node in nodes}
        workload = workload_decide.View(self._pods.items(), snapshot, slurm_names, self._memory)
        for action in workload_decide.decide(workload):
            key = f"job/{action.job_id}" if isinstance(action, workload_decide.Orphan) else pods.uid(action.pod)
            if isinstance(action, workload_decide.Release):
                # its pod may be gone before the view shows the job as cancelled: that makes it no orphan
                self._resting |= {f"job/{job_id}": now + ORPHAN_AFTER for job_id in action.job_ids}
            self._dispatch("workload", key, action, lambda a=action: self._workload.act(a))  # type: ignore[misc]
        view = node_decide.View(nodes, snapshot, self._slurm.version, self._config)
        for step in node_decide.decide(view):
            key = f"node/{step.node['metadata']['name']}"
            self._dispatch("node", key, step, lambda s=step: self._node.act(s))  # type: ignore[misc]

    def _dispatch(self, controller: str, key: str, action: object, call: Callable[[], None]) -> None:
        if key in self._resting:
            return
        name = type(action).__name__.lower()

        def run() -> None:
            try:
                call()
            except BridgeError:
                self._resting[key] = self._clock.monotonic() + RETRY_AFTER
                CONTROLLER_ACTIONS.labels(controller, name, "error").inc()
                raise
            self._resting[key] = self._clock.monotonic() + SEEN_AFTER
            CONTROLLER_ACTIONS.labels(controller, name, "ok").inc()

        self._workers.submit(key, run, 3 if controller == "workload" else 5)


def _always() -> None:
    """Stand in for the lease where there is only one replica."""
