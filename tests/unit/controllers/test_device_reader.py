"""The devices of external nodes, on API servers with and without resource.k8s.io/v1."""

import pytest

from bridge.clock import FakeClock
from bridge.config import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from controllers.node.device_reader import DeviceReader
from tests.fakes.old_api_server import OldApiServer


class Workers:
    def submit(self, key, call, *_, **__):
        call()


class Server:
    def __init__(self, error=None):
        self.error = error

    def get(self, path, params=None, **_):
        if self.error:
            raise self.error
        return {"items": []}


def read(server):
    reader = DeviceReader(server, Config(device_classes={"gpu.nvidia.com": "gpu"}), FakeClock())
    reader.request(["worker-7"], Workers())
    return reader.found


def test_devices_are_not_counted_where_the_api_server_does_not_serve_them():
    server = OldApiServer()
    assert read(server) is None
    assert server.calls == ["/apis/resource.k8s.io/v1/deviceclasses", "/apis"]


def test_an_answer_of_a_proxy_leaves_the_nodes_unknown():
    with pytest.raises(KubeUnavailableError):
        read(OldApiServer(reachable=False))


def test_devices_are_not_counted_without_permission():
    assert read(Server(KubeForbiddenError("403"))) is None


def test_a_node_without_devices_has_none():
    assert list(read(Server())) == ["worker-7"]
