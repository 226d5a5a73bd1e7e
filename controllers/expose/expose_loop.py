"""The loop of exposed pods: opens their listeners, and writes the EndpointSlices of the Services that select them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Protocol

from bridge import names
from bridge.config import policies
from bridge.control.control_loop import KubeDependencies, Loop
from bridge.core import isolation
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError, KubeConflictError, KubeForbiddenError, KubeNotFoundError
from bridge.kube import namespaces
from bridge.kube.cache import Cache
from bridge.kube.lease import Elector
from bridge.kube.namespaces import Namespaces
from bridge.kube.object_store import number
from bridge.kube.resources import ENDPOINT_SLICES, SERVICES
from bridge.pools.pool_interface import Pool
from bridge.workload import pods
from controllers.expose import expose_decide
from controllers.expose.expose_decide import Action, Create, Delete, Exposed, Replace, ReportProblem
from controllers.expose.exposed_connection import ExposedConnections
from controllers.expose.listeners import Listeners
from controllers.service_reports import ServiceReports

Object = Mapping[str, Any]
SETTLE = 5.0
"""Seconds until a write is repeated although the cache does not show it."""
WORKERS = 4
NAMESPACE_REMEMBERED = 10.0
"""Seconds for which the labels of a namespace, which select its policy, are cached."""


class ExposedPods(Protocol):
    """The pods on virtual nodes, each with its pool; ``None``: it has not announced itself."""

    def exposed(self) -> Iterable[tuple[Object, Pool | None]]:
        """Return the pods with the annotation."""

    def find(self, namespace: str, name: str) -> tuple[Object, Pool | None] | None:
        """Return a pod."""

    def follow_services(self, families_of: Callable[[str], Set[str] | None]) -> Callable[[str], None]:
        """Use the IP families of the Services of a pod; return the function to call after a change."""


class Exposure(Loop):
    """Exposes pods. Only the leader opens listeners: the end of its process closes them.

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
        self._kube = kube.fenced(self.check_leadership)
        self._reports = ServiceReports(shared.events, names.NOT_EXPOSED, "Exposing")
        self._policies = shared.config.namespace_policies
        self._namespaces = Namespaces(namespaces.read_from(kube), clock, NAMESPACE_REMEMBERED)
        self._allowed: dict[str, bool] = {}
        self._section = shared.config.pools.expose
        self._connections = ExposedConnections(virtual.find)
        self._listeners = Listeners(address or "", self._section.numbers, self._connections.accept, clock)
        self._families: dict[str, frozenset[str]] | None = None
        self._decide_again = virtual.follow_services(self._families_of)
        self._silent_after = shared.config.pools.silent_after
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._written: dict[str, tuple[int, float]] = {}
        """Path of a slice -> its version after the last write, and until when the cache may lack it."""

    def start(self, supervisor: Supervisor) -> None:
        """Start the loop and the cache of Services."""
        super().start(supervisor)
        supervisor.spawn("cache-services", lambda: self._services.run(supervisor.stopping))

    def listen(self, supervisor: Supervisor) -> None:
        """Start what may outlive the loop: the thread that accepts connections, and the cache of slices."""
        supervisor.spawn("cache-endpoint-slices", lambda: self._slices.run(supervisor.stopping))
        supervisor.spawn("expose-accept", lambda: self._listeners.run(supervisor.stopping))

    def drain(self) -> None:
        """Serve, after the end of the loop, until there are only endpoints of the next leader, and no open connections.

        It takes ``pools.expose.drain`` seconds at most.
        """
        if self._listeners.ports():
            self._connections.drain(self._section.drain, self._is_named)
            self._listeners.close()

    def _is_named(self) -> bool:
        named = expose_decide.used_ports(self._slices.items(), self._address)
        return not named.isdisjoint(self._listeners.ports().values())

    def reconcile(self) -> None:
        """Open and close listeners, and submit the writes of slices to the workers."""
        slices = self._slices.items()
        known = [(pod, pool) for pod, pool in self._virtual.exposed() if pool is not None]
        self._seen |= {pods.uid(pod) for pod, _ in known}
        exposed = self._examine(known)
        taken = expose_decide.used_ports(slices)
        problems = [(each.pod, each.problem) for each in exposed if each.problem]
        problems += self._listeners.update(expose_decide.wanted_listeners(exposed), taken)
        actions = expose_decide.decide(
            exposed, self._services.items(), slices, self._listeners.ports(), self._address, self._manager, self._sure()
        )
        problems += [(action.pod, action.text) for action in actions if isinstance(action, ReportProblem)]
        self._follow(expose_decide.families((pod for pod, _ in known), self._services.items()))
        self._reports.keep({pods.uid(each.pod) for each in exposed})
        for pod, text in problems:
            self._reports.once(pod, text)
        for action in actions:
            if not isinstance(action, ReportProblem):
                self._submit(action)

    def _families_of(self, uid: str) -> Set[str] | None:
        return None if self._families is None else self._families.get(uid, frozenset())

    def _follow(self, families: dict[str, frozenset[str]]) -> None:
        before, self._families = self._families or {}, families
        for uid in families.keys() | before.keys():
            if families.get(uid) != before.get(uid):
                self._decide_again(uid)

    def _sure(self) -> Set[str] | None:
        """Return the pods about which to decide while this process does not know all pools yet; ``None``: about all."""
        if self.clock.monotonic() - (self.leading_since or 0.0) < self._silent_after:
            return self._seen
        self._seen.clear()
        return None

    def _examine(self, known: Iterable[tuple[Object, Pool]]) -> list[Exposed]:
        found: list[Exposed] = []
        for pod, pool in known:
            try:
                if (allowed := self._allows(pod["metadata"]["namespace"])) is not None:
                    forwards = pool.connections is not None
                    each = expose_decide.examine(pod, self._address, pool.name, forwards, allowed)
                    found += [each] if each is not None else []
            except Exception as error:
                isolation.report("expose", pods.key(pod), error)
        return found

    def _allows(self, namespace: str) -> bool | None:
        """Whether the policy of the namespace allows exposed pods; the last answer while it cannot be read."""
        if all(policy.expose for policy in self._policies):
            return True
        with contextlib.suppress(BridgeError):
            labels = self._namespaces.get(namespace).labels
            self._allowed[namespace] = policies.may_expose(self._policies, namespace, labels)
        return self._allowed.get(namespace)

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
            self._reports.event(pod, f"{text}: {error}")
            raise

    def _noted(self, path: str, stored: Object) -> None:
        with self._lock:
            version = number(stored["metadata"]["resourceVersion"])
            self._written[path] = version, self.clock.monotonic() + SETTLE

    def _delete(self, path: str, found: Object) -> None:
        preconditions = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        with contextlib.suppress(KubeNotFoundError, KubeConflictError):  # it has changed: the cache shows it soon
            self._kube.delete(path, {"preconditions": preconditions})
