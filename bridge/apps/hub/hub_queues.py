"""The hub's part for MasterQueues: it starts when the API server serves them and Kueue."""

from __future__ import annotations

import logging

from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.errors import KubeError
from bridge.kube.cache import Cache
from bridge.kube.discovery import is_served
from bridge.kube.lease import Elector
from bridge.kube.resources import MASTER_QUEUES, Resource
from bridge.logs import kv
from bridge.serving.health import Health
from controllers.queues.manifests import GROUP, VERSIONS
from controllers.queues.queue_loop import PLURALS, Kueue, Queues, resource

log = logging.getLogger(__name__)

RETRY_PERIOD = 10.0
"""Seconds between two looks for the APIs."""
CHECK_PERIOD = 60.0
"""Seconds between two looks whether the API server still serves the version of Kueue's API that was found."""


class HubQueues:
    """Waits for the APIs, and starts the loop of the MasterQueues and its caches."""

    def __init__(self, shared: KubeDependencies, elector: Elector | None) -> None:
        self._shared, self._kube, self._elector = shared, shared.kube, elector
        self._reported = ""

    def start(self, supervisor: Supervisor, health: Health) -> None:
        """Start the thread that waits for the APIs."""
        supervisor.spawn("queues-start", lambda: self._start(supervisor, health))

    def _start(self, supervisor: Supervisor, health: Health) -> None:
        stopping, version = supervisor.stopping, ""
        while not stopping.is_set():
            version = self._served()
            if version:
                self._run(version, supervisor, health)
                break
            stopping.wait(RETRY_PERIOD)
        while not stopping.wait(CHECK_PERIOD):
            self._check(version, supervisor)

    def _check(self, version: str, supervisor: Supervisor) -> None:
        """End the process if the version is not served any more; the next one finds another."""
        try:
            served = is_served(self._kube, _cluster_queues(version))
        except KubeError:
            return  # without an answer nothing is known
        if not served:
            supervisor.fail(f"{GROUP}/{version} is not served any more: the process ends to look for the APIs again")

    def _run(self, version: str, supervisor: Supervisor, health: Health) -> None:
        log.info("MasterQueues are served", extra=kv(kueue=version))
        queues = Cache(self._kube, MASTER_QUEUES, name="masterqueues", clock=self._shared.clock)
        kinds = {
            kind: Cache(self._kube, resource(version, kind), name=plural, clock=self._shared.clock)
            for kind, plural in PLURALS.items()
        }
        kueue = Kueue(version, queues, kinds)
        loop = Queues(self._shared, kueue, self._elector)
        health.live(loop.name, loop.stuck)
        loop.start(supervisor)
        for cache in (queues, *kinds.values()):
            supervisor.spawn(f"cache-{cache.name}", lambda c=cache: c.run(supervisor.stopping))  # type: ignore[misc]

    def _served(self) -> str:
        """Return the version of Kueue's API; empty if it, or that of MasterQueues, is not served."""
        try:
            if not is_served(self._kube, MASTER_QUEUES):
                return self._say("kubectl apply -f config/crds.yaml")
            # the preferred version first: an API server serves the older one beside it
            for version in VERSIONS:
                if is_served(self._kube, _cluster_queues(version)):
                    return version
            return self._say("install Kueue")
        except KubeError as error:
            return self._say(str(error))

    def _say(self, what: str) -> str:
        if what != self._reported:
            log.warning("MasterQueues are not served", extra=kv(hint=what))
        self._reported = what
        return ""


def _cluster_queues(version: str) -> Resource:
    return resource(version, "ClusterQueue")
