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
from bridge.workload import services
from bridge.workload.services import Target
from controllers.expose import expose_decide
from controllers.forwarded_socket import ForwardedSocket
from controllers.reach import reach_decide
from controllers.reach.reach_decide import Endpoint

REMEMBER = 1.0
"""Seconds to cache the endpoints of a Service: clients often open several connections at once."""
CONNECT_TIMEOUT = 10.0
TRIES = 3
LOOKS = 32
"""Endpoints of a Service whose pods are read within :data:`REMEMBER`, at most."""
Pod = Mapping[str, Any]
Connect = Callable[[Target], socket.socket]
Dial = Callable[[], socket.socket]
_Endpoints = tuple[Pod, list[Endpoint]] | tuple[None, str]
"""The port of a Service and its ready endpoints; or why it has none."""
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
        # what is refused is cached, too: a pod can repeat a connection as often as it likes
        self._known: SingleFlightCache[_Endpoints] = SingleFlightCache(clock)
        self._dials: SingleFlightCache[Dial | str] = SingleFlightCache(clock)

    def connect(self, target: Target) -> socket.socket:
        """Connect to an endpoint, at most to :data:`TRIES` of them. Raises ServiceRefusedError and ``Kube*`` errors."""
        port, endpoints = self._known.get(target.text, lambda: (self._endpoints(target), REMEMBER))
        if port is None or isinstance(endpoints, str):
            raise ServiceRefusedError(str(endpoints))
        problems, failures = [], []
        for endpoint in random.sample(endpoints, len(endpoints)):
            dial = self._dials.get((target.text, endpoint), partial(self._load_dial, target.namespace, endpoint, port))
            if isinstance(dial, str):
                problems.append(f"; pod {endpoint.pod} {dial}")
                continue
            try:
                return dial()
            except (BridgeError, OSError) as error:
                failures.append(str(error))
                if len(failures) == TRIES:
                    break
        service = f"Service {target.namespace}/{target.service}"
        if failures:
            raise ServiceRefusedError(f"{service}: no endpoint answers: {failures[-1]}")
        why = "".join(sorted(problems)[:TRIES])
        raise ServiceRefusedError(f"{service} has no ready endpoint that is a pod{why}")

    def _endpoints(self, target: Target) -> _Endpoints:
        """Return the port of the Service and some of its ready endpoints."""
        named = {"fieldSelector": f"metadata.name={target.service}"}
        try:
            port = reach_decide.port_of(target, self._kube.get(SERVICES.path(target.namespace), named)["items"])
        except ServiceRefusedError as error:  # is cached, too
            return None, str(error)
        of_service = {"labelSelector": f"kubernetes.io/service-name={target.service}"}
        slices = self._kube.get(ENDPOINT_SLICES.path(target.namespace), of_service)["items"]
        found = list(reach_decide.endpoints(port, slices, target.namespace))
        return port, random.sample(found, min(LOOKS, len(found)))

    def _load_dial(self, namespace: str, endpoint: Endpoint, port: Pod) -> tuple[Dial | str, float]:
        try:
            return self._dial_of(namespace, endpoint, port), REMEMBER
        except ServiceRefusedError as error:
            return str(error), REMEMBER

    def _dial_of(self, namespace: str, endpoint: Endpoint, port: Pod) -> Dial:
        """Return what connects to an endpoint; raises ServiceRefusedError if a connection may not lead there."""
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
        connect, number = pool.connections if pool is not None else None, services.target_port(port, pod)
        found = None
        if pool is not None and connect is not None and services.is_exposed(pod):
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
