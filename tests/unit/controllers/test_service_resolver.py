"""Endpoints of Services: pods in the cluster, and exposed pods at sites. Objects of the API are plain data."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import names
from bridge.errors import KubeNotFoundError, ServiceRefusedError
from bridge.relay.multiplexer import close_with_reset
from bridge.workload.services import Target
from controllers.reach.service_resolver import LOOKS, ServiceResolver
from tests.fakes.clock import FakeClock
from tests.fakes.local_connection import LocalConnections

TARGET = Target("team", "web", 80, 80)


class Api:
    """Answers for one Service, one slice and its pods."""

    def __init__(self, port: int, *addresses: str, target_port: Any = 80) -> None:
        self.reads = 0
        self.pods: dict[str, Any] = {}
        ports = [{"port": 80, "name": "http", "targetPort": target_port}]
        self.service = {"spec": {"selector": {"app": "web"}, "ports": ports}}
        ends = []
        for number, address in enumerate(addresses):
            reference = {"kind": "Pod", "namespace": "team", "name": f"p{number}", "uid": f"u{number}"}
            ends.append({"addresses": [address], "conditions": {"ready": True}, "targetRef": reference})
            status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "10.0.0.1"}
            self.pods[f"p{number}"] = {"metadata": {"uid": f"u{number}"}, "spec": {}, "status": status}
        self.slice = {"ports": [{"name": "http", "port": port}], "endpoints": ends}

    def get(self, path: str, params: Any = None) -> Any:
        self.reads += 1
        if "/pods/" in path:
            if (found := self.pods.get(path.rpartition("/")[2])) is None:
                raise KubeNotFoundError("not found", status=404)
            return found
        return {"items": [self.service if path.endswith("/services") else self.slice]}


def resolver(
    api: Api, find: Any = lambda *_: None, own: frozenset[str] = frozenset(), *, may_expose: bool = True
) -> ServiceResolver:
    return ServiceResolver(api, find, lambda _: may_expose, own, FakeClock(0.0))  # type: ignore[arg-type]


def test_no_endpoint_is_told_with_the_reasons() -> None:
    api = Api(8080, "10.1.0.1", "10.1.0.2", "10.1.0.3")
    api.pods["p0"]["spec"]["hostNetwork"] = True
    del api.pods["p1"]
    with pytest.raises(ServiceRefusedError) as error:
        resolver(api, own=frozenset({"10.1.0.3"})).connect(TARGET)
    assert str(error.value) == (
        "Service team/web has no ready endpoint that is a pod; pod p0 has the network of its node (hostNetwork); "
        "pod p1 does not exist; pod p2 is podbridge or the API server"
    )


def test_connections_cost_the_api_server_few_requests_whatever_they_lead_to() -> None:
    """A pod can repeat a connection as often as it likes."""
    many = Api(1, *(f"10.1.0.{number}" for number in range(250)))
    for pod in many.pods.values():
        pod["spec"]["hostNetwork"] = True
    none = Api(1)
    none.service = {"spec": {"type": "ExternalName"}}
    for api, most in ((many, 2 + LOOKS), (none, 1)):
        found = resolver(api)
        for _ in range(3):
            with pytest.raises(ServiceRefusedError):
                found.connect(TARGET)
        assert api.reads <= most


def exposed(text: str, port: int) -> dict[str, Any]:
    container = {"name": "main", "ports": [{"name": "http", "containerPort": port}]}
    metadata = {"uid": "u0", "namespace": "team", "name": "p0", "annotations": {names.EXPOSE: text}}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Running"}}


def test_an_exposed_pod_at_a_site_is_reached_through_its_pool() -> None:
    """Its endpoint is the hub, to which no connection leads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        api, pool = (
            Api(20_001, "10.9.9.9", target_port="http"),
            SimpleNamespace(name="site", connections=LocalConnections()),
        )
        found = resolver(api, lambda *_: (exposed(str(number), number), pool))
        with found.connect(TARGET) as sock:
            sock.settimeout(20)
            peer = server.accept()[0]
            with peer:
                sock.sendall(b"question")
                sock.shutdown(socket.SHUT_WR)
                assert peer.recv(100) + peer.recv(100) == b"question"
                peer.sendall(b"answer")
            assert sock.recv(100) + sock.recv(100) == b"answer"
        with found.connect(TARGET) as sock:
            sock.settimeout(20)
            with server.accept()[0] as peer:
                peer.sendall(b"half an ans")
                assert sock.recv(100) == b"half an ans"
                close_with_reset(peer)
            with pytest.raises(ConnectionResetError):  # it is not complete
                sock.recv(100)
    assert api.reads == 2  # cached for a moment
    with pytest.raises(ServiceRefusedError, match="pod p0 does not expose its port 81"):
        resolver(api, lambda *_: (exposed("80", 81), pool)).connect(TARGET)
    with pytest.raises(ServiceRefusedError, match="pod p0 the policy of namespace team has expose: false"):
        resolver(api, lambda *_: (exposed("81", 81), pool), may_expose=False).connect(TARGET)
