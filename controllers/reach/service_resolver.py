"""Reads Services and their endpoints, and connects to one of them."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Collection
from typing import Any

from bridge.clock import Clock
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import KubeNotFoundError, ServiceRefusedError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import ENDPOINT_SLICES, PODS, SERVICES
from bridge.workload.reaching import Target
from controllers.reach import reach_decide

REMEMBER = 1.0
"""Seconds to cache the endpoints of a Service: clients often open several connections at once."""
CONNECT_TIMEOUT = 10.0
TRIES = 3
Address = tuple[str, int]


class ServiceResolver:
    """The endpoints of Services. ``own``: addresses of this process and of the API server."""

    def __init__(self, kube: KubeClient, own: Collection[str], clock: Clock) -> None:
        self._kube, self._own = kube, own
        self._known: SingleFlightCache[list[Address]] = SingleFlightCache(clock)

    def connect(self, target: Target) -> socket.socket:
        """Connect to an endpoint, at most to :data:`TRIES` of them. Raises ServiceRefusedError and ``Kube*`` errors."""
        addresses = self._known.get(target.text, lambda: (self._addresses(target), REMEMBER))
        problem = ""
        for address in random.sample(addresses, min(TRIES, len(addresses))):
            try:
                sock = socket.create_connection(address, CONNECT_TIMEOUT)
            except OSError as error:
                problem = f"{address[0]}: {error.strerror or error}"
            else:
                sock.settimeout(None)
                return sock
        raise ServiceRefusedError(f"Service {target.namespace}/{target.service}: no endpoint answers: {problem}")

    def _addresses(self, target: Target) -> list[Address]:
        """Return the addresses of the ready endpoints that a connection may lead to, at least one."""
        named = {"fieldSelector": f"metadata.name={target.service}"}
        port = reach_decide.port_of(target, self._kube.get(SERVICES.path(target.namespace), named)["items"])
        of_service = {"labelSelector": f"kubernetes.io/service-name={target.service}"}
        slices = self._kube.get(ENDPOINT_SLICES.path(target.namespace), of_service)["items"]
        found, problems = [], []
        for endpoint in reach_decide.endpoints(port, slices, target.namespace):
            problem = self._problem(target.namespace, endpoint)
            if problem:
                problems.append(f"; pod {endpoint.pod} {problem}")
            else:
                found.append((endpoint.address, endpoint.port))
        if not found:
            text = f"Service {target.namespace}/{target.service} has no ready endpoint that is a pod"
            raise ServiceRefusedError(text + "".join(problems[:TRIES]))
        return found

    def _problem(self, namespace: str, endpoint: reach_decide.Endpoint) -> str:
        try:
            pod: dict[str, Any] = self._kube.get(PODS.path(namespace, endpoint.pod))
        except KubeNotFoundError:
            return "does not exist"
        return reach_decide.problem_of(endpoint, pod, self._own)


Connect = Callable[[Target], socket.socket]
