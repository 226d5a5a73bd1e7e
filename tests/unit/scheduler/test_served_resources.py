"""API servers before Kubernetes 1.34 do not serve resource.k8s.io/v1: each request is answered 404 with plain text."""

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeUnavailableError
from bridge.workload.devices.claimed_devices import UnsupportedClaimError
from scheduler.devices.claim_store import ClaimStore
from scheduler.devices.device_names import SLOW_PERIOD, DeviceNames
from tests.fakes.clock import FakeClock
from tests.fakes.old_api_server import OldApiServer
from tests.fakes.recorders import ImmediateWorkers


def names(server, clock):
    return DeviceNames(server, Config(gres={"a/b": "gpu"}, device_classes={"c": "gpu"}), clock)


def test_device_classes_that_are_not_served_are_requested_slowly():
    server, clock = OldApiServer(), FakeClock()
    found = names(server, clock)
    for _ in range(4):
        found.request(ImmediateWorkers())
        clock.advance(SLOW_PERIOD / 4)
    assert server.calls == ["/apis/resource.k8s.io/v1/deviceclasses", "/apis"]
    assert not found.class_by_resource
    found.request(ImmediateWorkers())
    assert len(server.calls) == 4


def test_a_refusal_leaves_the_known_device_classes(caplog):
    server, clock = Classes(), FakeClock()
    found = names(server, clock)
    for error in (None, KubeForbiddenError("403"), KubeForbiddenError("403"), None):
        server.error = error
        found.request(ImmediateWorkers())
        assert found.class_by_resource == {"a/b": "c"}
        clock.advance(SLOW_PERIOD)
    assert (server.calls, len(caplog.records)) == (4, 1)


class Classes:
    """An API server with one DeviceClass, or with an error."""

    error, calls = None, 0

    def get(self, path, params=None, **_):
        self.calls += 1
        if self.error:
            raise self.error
        return {"items": [{"metadata": {"name": "c"}, "spec": {"extendedResourceName": "a/b"}}]}


def test_a_proxy_without_the_api_server_does_not_count():
    with pytest.raises(KubeUnavailableError):
        names(OldApiServer(reachable=False), FakeClock()).request(ImmediateWorkers())


def test_a_claim_on_an_api_server_without_the_resource_is_refused_with_the_version_that_has_it():
    pod = {"metadata": {"namespace": "ns", "name": "p", "uid": "u"}, "spec": {}}
    pod["spec"]["resourceClaims"] = [{"name": "d", "resourceClaimName": "gpus"}]
    with pytest.raises(UnsupportedClaimError, match=r"does not serve resource\.k8s\.io/v1; needed: Kubernetes 1\.34"):
        ClaimStore(OldApiServer()).of_pod(pod)
    with pytest.raises(KubeUnavailableError):
        ClaimStore(OldApiServer(reachable=False)).of_pod(pod)
