"""The loop of exposed pods: opens their listeners, and writes the EndpointSlices of the Services that select them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from bridge import names
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core.threads import Supervisor
from bridge.errors import KubeConflictError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.kube.object_store import number
from bridge.kube.resources import ENDPOINT_SLICES, SERVICES
from bridge.pools.pool_interface import Pool
from bridge.workload import pods
from controllers.expose import expose_decide
from controllers.expose.expose_decide import Action, Create, Delete, Exposed, Replace, Report
from controllers.expose.exposed_connection import ExposedConnections
from controllers.expose.listeners import Listeners

Object = Mapping[str, Any]
SETTLE = 5.0
"""Seconds until a write is repeated although the cache does not show it."""
WORKERS = 4


class ExposedPods(Protocol):
    """The pods on virtual nodes, each with its pool; ``None``: it has not announced itself."""

    def exposed(self) -> Iterable[tuple[Object, Pool | None]]:
        """Return the pods with the annotation."""

    def find(self, namespace: str, name: str) -> tuple[Object, Pool | None] | None:
        """Return a pod."""


class Exposure(Loop):
    """Exposes pods. Only the leader listens: the end of its process closes its listeners.

    ``address``: that of this process, in the endpoints; ``None``: there is none that an endpoint may have.
    """

    def __init__(
        self, shared: KubeDependencies, elector: Elector | None, virtual: ExposedPods, address: str | None
    ) -> None:
        self._manager = shared.config.installation
        kube, clock = shared.kube, shared.clock
        services = Cache(kube, SERVICES, name="services", prune=expose_decide.prune_service, clock=clock)
        slices = Cache(
            kube,
            ENDPOINT_SLICES,
            name="endpoint-slices",
            prune=expose_decide.prune_slice,
            label_selector=f"{expose_decide.MANAGED_BY}={self._manager}",
            clock=clock,
        )
        super().__init__("expose", (services, slices), elector, WORKERS, clock)
        self._services, self._slices = services, slices
        self._virtual, self._address = virtual, address
        self._kube, self._events = kube.fenced(self.check_leadership), shared.events
        connections = ExposedConnections(virtual.find)
        self._listeners = Listeners(address or "", shared.config.pools.expose.numbers, connections.accept, clock)
        self._reported: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._written: dict[str, tuple[int, float]] = {}
        """Path of a slice -> its version after the last write, and until when the cache may lack it."""

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop, its caches and the thread that accepts connections."""
        super().start(supervisor)
        supervisor.spawn("cache-services", lambda: self._services.run(supervisor.stopping))
        supervisor.spawn("cache-endpoint-slices", lambda: self._slices.run(supervisor.stopping))
        supervisor.spawn("expose-accept", lambda: self._listeners.run(supervisor.stopping))

    def reconcile(self) -> None:
        """Open and close listeners, and submit the writes of slices to the workers."""
        slices, exposed = self._slices.items(), self._exposed()
        taken = expose_decide.used_ports(slices)
        problems = [(each.pod, each.problem) for each in exposed if each.problem]
        problems += self._listeners.update(expose_decide.wanted_listeners(exposed), taken)
        actions = expose_decide.decide(
            exposed, self._services.items(), slices, self._listeners.ports(), self._address, self._manager
        )
        problems += [(action.pod, action.text) for action in actions if isinstance(action, Report)]
        self._report(problems, {pods.uid(each.pod) for each in exposed})
        for action in actions:
            if not isinstance(action, Report):
                self._submit(action)

    def _exposed(self) -> list[Exposed]:
        found = (
            expose_decide.examine(pod, self._address, pool.name, pool.connections is not None)
            for pod, pool in self._virtual.exposed()
            if pool is not None
        )
        return [each for each in found if each is not None]

    def _report(self, problems: Iterable[tuple[Object, str]], present: set[str]) -> None:
        """Write an Event for each new problem."""
        self._reported = {(uid, text) for uid, text in self._reported if uid in present}
        for pod, text in problems:
            key = pods.uid(pod), text
            if key not in self._reported:
                self._reported.add(key)
                self._events.event(pod, names.NOT_EXPOSED, text, warning=True, action="Exposing")

    def _submit(self, action: Create | Replace | Delete) -> None:
        found = action.found if isinstance(action, Delete) else action.body
        path = ENDPOINT_SLICES.path_of(found)
        if self._is_pending(path, found):
            return
        calls: dict[type[Action], Callable[[], None]] = {
            Create: lambda: self._create(path, dict(found)),
            Replace: lambda: self._noted(path, self._kube.replace(path, dict(found))),
            Delete: lambda: self._delete(path, found),
        }
        self.workers.submit(path, calls[type(action)], kind="slice")

    def _is_pending(self, path: str, found: Object) -> bool:
        """Whether the cache does not show the last write of a slice yet."""
        version, until = self._written.get(path, (0, 0.0))
        metadata = found["metadata"]
        cached = self._slices.get(metadata["namespace"], metadata["name"])
        is_shown = cached is not None and number(cached["metadata"]["resourceVersion"]) >= version
        if is_shown or self.clock.monotonic() >= until:
            with self._lock:
                self._written.pop(path, None)
            return False
        return True

    def _create(self, path: str, body: dict[str, Any]) -> None:
        namespace = body["metadata"]["namespace"]
        try:
            self._noted(path, self._kube.create(ENDPOINT_SLICES.path(namespace), body))
        except KubeForbiddenError as error:
            pod = {"apiVersion": "v1", **body["endpoints"][0]["targetRef"]}
            text = f"podbridge may not write EndpointSlices in this namespace (podbridge rbac pools {namespace})"
            self._events.event(pod, names.NOT_EXPOSED, f"{text}: {error}", warning=True, action="Exposing")
            raise

    def _noted(self, path: str, stored: Object) -> None:
        with self._lock:
            version = number(stored["metadata"]["resourceVersion"])
            self._written[path] = version, self.clock.monotonic() + SETTLE

    def _delete(self, path: str, found: Object) -> None:
        preconditions = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        with contextlib.suppress(KubeNotFoundError, KubeConflictError):  # it has changed: the cache shows it soon
            self._kube.delete(path, {"preconditions": preconditions})
