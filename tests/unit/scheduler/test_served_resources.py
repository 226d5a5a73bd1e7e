"""API servers before Kubernetes 1.34 do not serve resource.k8s.io/v1: each request is answered 404 with plain text."""

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from bridge.workload.devices.claimed_devices import UnsupportedClaimError
from scheduler.devices.claim_store import ClaimStore
from scheduler.devices.device_names import SLOW_PERIOD, DeviceNames
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers, old_api_server
from tests.fakes.recorders import ImmediateWorkers


def names(server, clock):
    return DeviceNames(server, Config(gres={"a/b": "gpu"}, device_classes={"c": "gpu"}), clock)


def test_device_classes_that_are_not_served_are_requested_slowly():
    server, clock = old_api_server(), FakeClock()
    found = names(server, clock)
    for _ in range(4):
        found.request(ImmediateWorkers())
        clock.advance(SLOW_PERIOD / 4)
    assert server.reads == ["/apis/resource.k8s.io/v1/deviceclasses", "/apis"]
    assert not found.class_by_resource
    found.request(ImmediateWorkers())
    assert len(server.reads) == 4


def test_a_refusal_leaves_the_known_device_classes(caplog):
    classes = {"items": [{"metadata": {"name": "c"}, "spec": {"extendedResourceName": "a/b"}}]}
    server, clock = KubeAnswers(), FakeClock()
    found = names(server, clock)
    for answer in (classes, KubeForbiddenError("403"), KubeForbiddenError("403"), classes):
        server.default = answer
        found.request(ImmediateWorkers())
        assert found.class_by_resource == {"a/b": "c"}
        clock.advance(SLOW_PERIOD)
    assert (len(server.reads), len(caplog.records)) == (4, 1)


def test_a_proxy_without_the_api_server_does_not_count():
    with pytest.raises(KubeUnavailableError):
        names(old_api_server(reachable=False), FakeClock()).request(ImmediateWorkers())


def test_a_claim_on_an_api_server_without_the_resource_is_refused_with_the_version_that_has_it():
    pod = {"metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": {}}
    pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": "gpus"}]
    with pytest.raises(UnsupportedClaimError, match=r"does not serve resource\.k8s\.io/v1; needed: Kubernetes 1\.34"):
        ClaimStore(old_api_server()).of_pod(pod)
    with pytest.raises(KubeUnavailableError):
        ClaimStore(old_api_server(reachable=False)).of_pod(pod)
