"""Reads Services and their endpoints, and connects to one of them."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import BridgeError, KubeNotFoundError, ServiceRefusedError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from bridge.pools.pool_interface import Pool
from bridge.protocol.model.sessions import Connection
from bridge.telemetry.metrics import EXPOSED_BYTES
from bridge.workload import exposure
from bridge.workload.reaching import Target
from controllers.expose import expose_decide
from controllers.forwarded_socket import ForwardedSocket
from controllers.reach import reach_decide
from controllers.reach.reach_decide import Endpoint

REMEMBER = 1.0
"""Seconds to cache the endpoints of a Service: clients often open several connections at once."""
CONNECT_TIMEOUT = 10.0
TRIES = 3
Pod = Mapping[str, Any]
Connect = Callable[[Target], socket.socket]
Dial = Callable[[], socket.socket]
Find = Callable[[str, str], tuple[Pod, Pool | None] | None]


class ServiceResolver:
    """The endpoints of Services.

    ``find`` returns a pod on a virtual node, and its pool. ``may_expose`` returns whether Services may reach the
    pods of a namespace at sites. ``own``: addresses of this process and of the API server.
    """

    def __init__(
        self, kube: KubeClient, find: Find, may_expose: Callable[[str], bool], own: Collection[str], clock: Clock
    ) -> None:
        self._kube, self._find, self._may_expose, self._own = kube, find, may_expose, own
        self._known: SingleFlightCache[list[Dial]] = SingleFlightCache(clock)

    def connect(self, target: Target) -> socket.socket:
        """Connect to an endpoint, at most to :data:`TRIES` of them. Raises ServiceRefusedError and ``Kube*`` errors."""
        found = self._known.get(target.text, lambda: (self._endpoints(target), REMEMBER))
        problem = ""
        for dial in random.sample(found, min(TRIES, len(found))):
            try:
                return dial()
            except (BridgeError, OSError) as error:
                problem = str(error)
        raise ServiceRefusedError(f"Service {target.namespace}/{target.service}: no endpoint answers: {problem}")

    def _endpoints(self, target: Target) -> list[Dial]:
        """Return the ready endpoints that a connection may lead to, at least one."""
        named = {"fieldSelector": f"metadata.name={target.service}"}
        port = reach_decide.port_of(target, self._kube.get(SERVICES.path(target.namespace), named)["items"])
        of_service = {"labelSelector": f"kubernetes.io/service-name={target.service}"}
        slices = self._kube.get(ENDPOINT_SLICES.path(target.namespace), of_service)["items"]
        found, problems = [], []
        for endpoint in reach_decide.endpoints(port, slices, target.namespace):
            try:
                found.append(self._dial_of(target.namespace, endpoint, port))
            except ServiceRefusedError as error:
                problems.append(f"; pod {endpoint.pod} {error}")
        if not found:
            text = f"Service {target.namespace}/{target.service} has no ready endpoint that is a pod"
            raise ServiceRefusedError(text + "".join(problems[:TRIES]))
        return found

    def _dial_of(self, namespace: str, endpoint: Endpoint, port: Pod) -> Dial:
        at_site = self._find(namespace, endpoint.pod)
        if at_site is not None and at_site[0]["metadata"]["uid"] == endpoint.uid:
            return self._dial_of_exposed(*at_site, port)
        try:
            pod = self._kube.get(PODS.path(namespace, endpoint.pod))
        except KubeNotFoundError:
            raise ServiceRefusedError("does not exist") from None
        if problem := reach_decide.problem_of(endpoint, pod, self._own):
            raise ServiceRefusedError(problem)
        return partial(_connect_to, endpoint.address, endpoint.port)

    def _dial_of_exposed(self, pod: Pod, pool: Pool | None, port: Pod) -> Dial:
        """Return what connects to an exposed pod through its pool: its endpoint is this process."""
        connect, number = pool.connections if pool is not None else None, exposure.target_port(port, pod)
        found = None
        if pool is not None and connect is not None and exposure.is_exposed(pod):
            allowed = self._may_expose(pod["metadata"]["namespace"])
            found = expose_decide.examine(pod, "", pool.name, forwards=True, allowed=allowed)
        if connect is None or found is None or number not in found.ports:
            raise ServiceRefusedError((found and found.problem) or f"does not expose its port {number}")
        return lambda: _joined(connect(pod, number))


def _connect_to(address: str, port: int) -> socket.socket:
    sock = socket.create_connection((address, port), CONNECT_TIMEOUT)
    sock.settimeout(None)
    return sock


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets. Not those of socketpair(): only TCP tells the other end that it was reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, peer = server.accept()
    if peer != ours.getsockname():
        ours.close()
        theirs.close()
        raise OSError("another process has connected")
    return ours, theirs


def _joined(connection: Connection) -> socket.socket:
    """Return a socket whose other end is a connection to a pod at a site."""
    try:
        ours, theirs = _pair()
    except OSError:
        connection.close()
        raise

    def forward() -> None:
        forwarded = ForwardedSocket(theirs, EXPOSED_BYTES)
        try:
            forwarded.forward(connection)
        except (BridgeError, OSError):
            return  # the end of the other pod's connection says it
        finally:
            connection.close()
            forwarded.close()

    threading.Thread(target=forward, name="reach-exposed", daemon=True).start()
    return ours
