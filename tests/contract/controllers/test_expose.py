"""Exposed pods: a real API server with its controllers, podbridge's own permissions, and a site in memory."""

import contextlib
import itertools
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bridge import names
from bridge.config.hub import parse
from bridge.core.threads import Supervisor
from bridge.kube.resources import ENDPOINT_SLICES, NAMESPACES, PODS, SERVICES
from cluster.polling import eventually
from cluster.ports import free_block, own_address
from controllers.expose.expose_loop import Exposure
from tests.contract.controllers import test_virtual
from tests.contract.controllers.test_virtual import NAMESPACE, uid
from tests.fakes.local_connection import LocalConnections
from tests.fakes.web_server import Handler, serving

pytestmark = pytest.mark.real

NUMBERS = itertools.count(1)
COUNT = 32


class EchoedPath(Handler):
    """Answers with the path."""

    def respond(self):
        self.answer(self.path.encode())


class Exposing:
    """The loop of exposed pods of a process, beside that of its virtual nodes."""

    def __init__(self, place, first, address, more=""):
        self.supervisor = Supervisor()
        pools = f"{{nats: {{servers: ['nats://h:1']}}, expose: {{ports: {first}-{first + COUNT - 1}}}}}"
        config = parse(f"pools: {pools}\n{more}")
        shared = replace(place.hub.shared, config=config)
        self.loop = Exposure(shared, None, place.hub.loop, address)
        place.hub.loop.exposed_changed = self.loop.wake
        self.loop.listen(self.supervisor)
        self.loop.start(self.supervisor)

    def stop(self):
        self.supervisor.stop()
        self.supervisor.join(3)
        self.loop._listeners.close()
        assert self.supervisor.failure is None


class Exposed:
    """A place whose pods are exposed, and a server in one of them."""

    def __init__(self, place, port):
        self.place, self.port, self.address = place, port, own_address()
        self.first = free_block(COUNT)
        place.pool.connections = LocalConnections()
        self.exposing = Exposing(place, self.first, self.address)

    def stop(self):
        self.exposing.stop()
        for resource in (SERVICES, ENDPOINT_SLICES):
            for each in self.place.admin.get(resource.path(NAMESPACE))["items"]:
                with contextlib.suppress(Exception):
                    self.place.admin.delete(resource.path_of(each))

    def take_over(self, address, config=""):
        """Continue with a new process, which has other ports."""
        self.exposing.stop()
        self.first = free_block(COUNT)
        self.exposing = Exposing(self.place, self.first, address, config)

    def pod(self, app, text=None, permitted=None, **more):
        annotations = {names.EXPOSE: text or str(self.port)}
        if permitted:
            annotations[names.EXPOSE_PERMITTED] = permitted
        container = {"ports": [{"name": "http", "containerPort": self.port}]}
        metadata = {"labels": {"app": app}, "annotations": annotations}
        return self.place.running_pod(metadata=metadata, container=container, **more)

    def service(self, app, **spec):
        ports = [{"name": "web", "port": 80, "targetPort": "http"}]
        body = {"metadata": {"name": f"s{next(NUMBERS)}"}, "spec": {"selector": {"app": app}, "ports": ports, **spec}}
        return self.place.admin.create(SERVICES.path(NAMESPACE), body)

    def slices(self, service, manager="podbridge"):
        selector = f"kubernetes.io/service-name={service['metadata']['name']},{MANAGED_BY}={manager}"
        return self.place.admin.get(ENDPOINT_SLICES.path(NAMESPACE), {"labelSelector": selector})["items"]

    def endpoint(self, service, check=lambda _: True, what="endpoint"):
        """Wait for the only slice of a Service; return its address, port and conditions."""

        def look():
            found = self.slices(service)
            if len(found) != 1 or not check(found[0]["endpoints"][0]["conditions"]):
                return None
            end = found[0]["endpoints"][0]
            return end["addresses"][0], found[0]["ports"][0]["port"], end["conditions"]

        return eventually(look, what)

    def is_gone(self, service):
        eventually(lambda: not self.slices(service), "no slice")


MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
KUBERNETES = "endpointslice-controller.k8s.io"


def fetch(address, port, path="/hello"):
    with urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=20) as answer:
        return answer.read().decode()


@pytest.fixture(scope="module")
def place(kubernetes):
    with pytest.MonkeyPatch.context() as patch, test_virtual.started_place(kubernetes, patch) as made:
        yield made


@pytest.fixture(scope="module")
def exposed(place):
    with serving(EchoedPath) as server:
        made = Exposed(place, server.server_port)
        yield made
        made.stop()


def test_a_service_reaches_a_pod_until_it_ends(exposed):
    place, pod, service = exposed.place, exposed.pod("web"), exposed.service("web")
    address, port, conditions = exposed.endpoint(service)
    assert (address, conditions) == (exposed.address, {"ready": True, "serving": True, "terminating": False})
    assert exposed.first <= port < exposed.first + COUNT
    paths = [f"/{number}" for number in range(50)]
    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(lambda path: fetch(address, port, path), paths)) == paths
    # Kubernetes' own controller has no endpoint for the pod, whose podIP leads nowhere
    own = eventually(lambda: exposed.slices(service, KUBERNETES), "Kubernetes' slice")
    assert all(not each.get("endpoints") for each in own)
    assert place.get(pod)["status"]["podIP"] == "100::"

    (state,) = place.pool.site[uid(pod)].containers
    place.pool.set(uid(pod), containers=[replace(state, ready=False)])
    exposed.endpoint(service, lambda c: not c["ready"] and not c["serving"], "not ready")
    place.pool.run(uid(pod))
    exposed.endpoint(service, lambda c: c["ready"], "ready again")

    place.pool.obeys = False
    place.delete(pod, 30)
    exposed.endpoint(service, lambda c: c == {"ready": False, "serving": True, "terminating": True}, "terminating")
    assert fetch(address, port) == "/hello", "an ending pod serves until it has ended"
    place.pool.end(uid(pod), 0)
    place.pool.obeys = True
    exposed.is_gone(service)
    with pytest.raises(OSError):
        fetch(address, port)


def test_no_service_has_an_endpoint_that_leads_nowhere(exposed):
    """Kubernetes' own controller writes one for each family of a Service of which the pod has an address."""
    pod = exposed.pod("families")
    seen = lambda: exposed.place.get(pod)["status"].get("podIP")  # noqa: E731
    eventually(lambda: seen() == "100::", "the family of IPv4 Services is avoided")
    service = exposed.service("families", ipFamilyPolicy="RequireDualStack")
    eventually(lambda: seen() is None, "no address")
    exposed.endpoint(service)
    own = lambda: exposed.slices(service, KUBERNETES)  # noqa: E731
    eventually(lambda: len(own()) == 2 and all(not each.get("endpoints") for each in own()), "both slices are empty")
    exposed.place.admin.delete(SERVICES.path_of(service))
    only = exposed.service("families", ipFamilyPolicy="SingleStack", ipFamilies=["IPv6"])
    eventually(lambda: seen() == "192.0.0.8", "the family of IPv6 Services is avoided")
    eventually(lambda: "see spec.ipFamilies" in str(exposed.place.events(pod, "BridgeNotExposed")))
    assert not exposed.slices(only)


def test_the_slice_follows_service_and_annotation(exposed):
    place, pod = exposed.place, exposed.pod("follow", text="true")
    service = exposed.service("follow")
    _, port, _ = exposed.endpoint(service)
    path = SERVICES.path_of(service)
    place.admin.patch(path, {"spec": {"selector": {"app": "another"}}})
    exposed.is_gone(service)
    place.admin.patch(path, {"spec": {"selector": {"app": "follow"}}})
    assert exposed.endpoint(service)[1] == port, "the listener stays"
    place.admin.patch(PODS.path_of(pod), {"metadata": {"annotations": {names.EXPOSE: None}}})
    exposed.is_gone(service)
    place.admin.patch(PODS.path_of(pod), {"metadata": {"annotations": {names.EXPOSE: "true"}}})
    exposed.endpoint(service)
    place.admin.delete(path)
    exposed.is_gone(service)


def test_a_new_leader_takes_over_and_foreign_slices_stay(exposed):
    pod, service = exposed.pod("over"), exposed.service("over")
    before = exposed.endpoint(service)
    foreign = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {
            "name": f"foreign{next(NUMBERS)}",
            "labels": {"kubernetes.io/service-name": service["metadata"]["name"], MANAGED_BY: "somebody"},
        },
        "endpoints": [{"addresses": ["10.200.0.1"]}],
        "ports": [{"name": "web", "port": 1}],
    }
    foreign = exposed.place.admin.create(ENDPOINT_SLICES.path(NAMESPACE), foreign)
    exposed.take_over(exposed.address)
    eventually(lambda: exposed.endpoint(service)[1] not in (before[1], None), "another port")
    address, port, _ = exposed.endpoint(service)
    assert fetch(address, port) == "/hello"
    exposed.take_over("10.200.0.9")
    eventually(lambda: exposed.endpoint(service)[0] == "10.200.0.9", "the address of the new leader")
    exposed.place.delete(pod, 0)
    exposed.is_gone(service)
    found = exposed.place.admin.get(ENDPOINT_SLICES.path_of(foreign))
    assert found["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


def test_the_policy_of_the_namespace_counts_for_pods_that_exist(exposed):
    """As after a change of the policy, or without admission."""
    place, selector = exposed.place, "namespaceSelector: {matchLabels: {exposes: 'no'}}"
    plain, permitted = exposed.pod("older"), exposed.pod("older", permitted="true")
    service, path = exposed.service("older"), NAMESPACES.path(name=NAMESPACE)
    eventually(lambda: len(exposed.slices(service)) == 2, "both are exposed")
    place.admin.patch(path, {"metadata": {"labels": {"exposes": "no"}}})
    exposed.take_over(exposed.address, f"namespacePolicies: [{{{selector}, expose: false}}]")
    assert exposed.endpoint(service)
    (found,) = exposed.slices(service)
    assert found["endpoints"][0]["targetRef"]["uid"] == uid(permitted)
    (event,) = eventually(lambda: place.events(plain, "BridgeNotExposed"), "an Event")
    assert event["note"].startswith(f"the policy of namespace {NAMESPACE} has expose: false; allowed: a new pod of")
    place.admin.patch(path, {"metadata": {"labels": {"exposes": None}}})
    exposed.take_over(exposed.address)


def test_a_foreign_slice_of_the_same_name_stays(exposed, caplog):
    service = exposed.service("taken")
    pod = exposed.place.submitted_pod(
        metadata={"labels": {"app": "taken"}, "annotations": {names.EXPOSE: str(exposed.port)}},
        container={"ports": [{"name": "http", "containerPort": exposed.port}]},
    )
    body = {"metadata": {"name": f"{service['metadata']['name']}-{uid(pod)}"}, "addressType": "IPv4", "endpoints": []}
    foreign = exposed.place.admin.create(ENDPOINT_SLICES.path(NAMESPACE), body)
    exposed.place.pool.run(uid(pod))
    refused = lambda: [one for one in caplog.records if body["metadata"]["name"] in str(vars(one).get("kv"))]  # noqa: E731
    eventually(lambda: any("failed" in one.msg for one in refused()), "a refused write")
    found = exposed.place.admin.get(ENDPOINT_SLICES.path_of(foreign))
    assert found["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


def test_refusals_are_told(exposed):
    place = exposed.place
    headless, pod = exposed.service("head", clusterIP="None"), exposed.pod("head")
    told = lambda one: " ".join(event["note"] for event in place.events(one, "BridgeNotExposed"))  # noqa: E731
    eventually(lambda: f"Service {headless['metadata']['name']} is headless" in told(pod))
    assert not exposed.slices(headless)
    place.pool.connections = None
    other = exposed.pod("closed")
    eventually(lambda: "must set limits.allow_ports" in told(other))
    place.pool.connections = LocalConnections()
    exposed.take_over(None)
    eventually(lambda: "set pools.expose.address" in told(other) and "set pools.expose.address" in told(pod))
