"""The devices of external nodes, on API servers with and without resource.k8s.io/v1."""

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from controllers.node.device_reader import DeviceReader
from tests.fakes.clock import FakeClock
from tests.fakes.old_api_server import OldApiServer
from tests.fakes.recorders import ImmediateWorkers


class Server:
    def __init__(self, error=None):
        self.error = error
        self.calls = 0

    def get(self, path, params=None, **_):
        self.calls += 1
        if self.error:
            raise self.error
        return {"items": []}


def reader_of(server):
    clock = FakeClock()
    return DeviceReader(server, Config(device_classes={"gpu.nvidia.com": "gpu"}), clock), clock


def read(server):
    reader, _ = reader_of(server)
    reader.request(["worker-7"], ImmediateWorkers())
    return reader.gres_by_node


def test_devices_are_not_counted_where_the_api_server_does_not_serve_them():
    server = OldApiServer()
    assert read(server) is None
    assert server.calls == ["/apis/resource.k8s.io/v1/deviceclasses", "/apis"]


def test_an_answer_of_a_proxy_leaves_the_nodes_unknown():
    with pytest.raises(KubeUnavailableError):
        read(OldApiServer(reachable=False))


def test_without_permission_devices_are_not_counted_and_requested_slowly(caplog):
    server = Server(KubeForbiddenError("403"))
    reader, clock = reader_of(server)
    for _ in range(300):
        reader.request(["worker-7"], ImmediateWorkers())
        clock.advance(1)
    assert reader.gres_by_node is None
    assert (server.calls, len(caplog.records)) == (10, 1)
    server.error = None
    clock.advance(30)
    reader.request(["worker-7"], ImmediateWorkers())
    assert list(reader.gres_by_node) == ["worker-7"]


def test_a_refusal_takes_no_devices_away():
    server = Server()
    reader, clock = reader_of(server)
    for error in (None, *[KubeForbiddenError("403")] * 5, None):
        server.error = error
        reader.request(["worker-7"], ImmediateWorkers())
        assert list(reader.gres_by_node) == ["worker-7"]
        clock.advance(30)
    assert server.calls == 9


def test_one_refusal_at_the_start_leaves_the_nodes_unknown():
    assert read(Server(KubeForbiddenError("403"))) == {}


def test_a_node_without_devices_has_none():
    assert list(read(Server())) == ["worker-7"]
