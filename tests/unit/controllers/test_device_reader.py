"""The devices of external nodes, on API servers with and without resource.k8s.io/v1."""

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from controllers.node.device_reader import DeviceReader
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers, old_api_server
from tests.fakes.recorders import ImmediateWorkers

NO_DEVICES = {"items": []}


def reader_of(server):
    clock = FakeClock()
    return DeviceReader(server, Config(device_classes={"gpu.nvidia.com": "gpu"}), clock), clock


def read(server):
    reader, _ = reader_of(server)
    reader.request(["worker-7"], ImmediateWorkers())
    return reader.gres_by_node


def test_devices_are_not_counted_where_the_api_server_does_not_serve_them():
    server = old_api_server()
    assert read(server) is None
    assert server.reads == ["/apis/resource.k8s.io/v1/deviceclasses", "/apis"]


def test_an_answer_of_a_proxy_leaves_the_nodes_unknown():
    with pytest.raises(KubeUnavailableError):
        read(old_api_server(reachable=False))


def test_without_permission_devices_are_not_counted_and_requested_slowly(caplog):
    server = KubeAnswers(default=KubeForbiddenError("403"))
    reader, clock = reader_of(server)
    for _ in range(300):
        reader.request(["worker-7"], ImmediateWorkers())
        clock.advance(1)
    assert reader.gres_by_node is None
    assert (len(server.reads), len(caplog.records)) == (10, 1)
    server.default = NO_DEVICES
    clock.advance(30)
    reader.request(["worker-7"], ImmediateWorkers())
    assert list(reader.gres_by_node) == ["worker-7"]


def test_a_refusal_takes_no_devices_away():
    server = KubeAnswers()
    reader, clock = reader_of(server)
    for answer in (NO_DEVICES, *[KubeForbiddenError("403")] * 5, NO_DEVICES):
        server.default = answer
        reader.request(["worker-7"], ImmediateWorkers())
        assert list(reader.gres_by_node) == ["worker-7"]
        clock.advance(30)
    assert len(server.reads) == 9


def test_one_refusal_at_the_start_leaves_the_nodes_unknown():
    assert read(KubeAnswers(default=KubeForbiddenError("403"))) == {}


def test_a_node_without_devices_has_none():
    assert list(read(KubeAnswers(default=NO_DEVICES))) == ["worker-7"]


SLICES = "/apis/resource.k8s.io/v1/resourceslices"


def slice_of(pool):
    return {"items": [{"spec": {"nodeName": "worker-8", "driver": "gpu.nvidia.com", "pool": pool, "devices": []}}]}


class Slices(KubeAnswers):
    """The ResourceSlices of node worker-8, which counts the reads by node; no other node has any."""

    def __init__(self, answer):
        super().__init__(default=NO_DEVICES)
        self.answer, self.nodes = answer, []

    def get(self, path, params=None, **options):
        if path != SLICES:
            return super().get(path, params, **options)
        self.nodes.append(params["fieldSelector"].removeprefix("spec.nodeName="))
        return self.answer if self.nodes[-1] == "worker-8" else NO_DEVICES


INCOMPLETE, MALFORMED = slice_of({"name": "p", "resourceSliceCount": 2}), slice_of({})


@pytest.mark.parametrize("answer", [INCOMPLETE, MALFORMED], ids=["incomplete", "malformed"])
def test_a_node_whose_driver_never_completes_its_devices_costs_its_own_requests_alone(answer, isolates):
    server = Slices(answer)
    reader, clock = reader_of(server)
    for _ in range(60):
        reader.request(["worker-7", "worker-8"], ImmediateWorkers())
        clock.advance(1)
    assert list(reader.gres_by_node) == ["worker-7"]
    assert (server.nodes.count("worker-7"), server.nodes.count("worker-8")) == (2, 60)
    server.answer = NO_DEVICES
    reader.request(["worker-7", "worker-8"], ImmediateWorkers())
    assert list(reader.gres_by_node) == ["worker-7", "worker-8"]


def test_thousands_of_nodes_cost_a_limited_number_of_requests_in_a_second():
    server = Slices(NO_DEVICES)
    reader, clock = reader_of(server)
    names = [f"worker-{number}" for number in range(1200)]
    for _ in range(61):
        reader.request(names, ImmediateWorkers())
        clock.advance(1)
    assert len(server.nodes) == 2 * len(names), "at the start, and after a minute"
