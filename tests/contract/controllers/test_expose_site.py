"""Services of exposed pods at a real site: API server, NATS, submitter, and podbridge's own permissions."""

from __future__ import annotations

import itertools
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bridge import names
from bridge.apps.hub.hub_pools import HubPools
from bridge.clock import SystemClock
from bridge.config.hub import parse
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import ENDPOINT_SLICES, NODES, PODS, SERVICES
from bridge.serving.health import Health
from cluster.polling import eventually
from cluster.ports import free_block, own_address
from tests import processes
from tests.contract.controllers.test_expose import COUNT, fetch
from tests.contract.controllers.test_virtual import NAMESPACE, uid
from tests.contract.site import conftest as site_conftest

pytestmark = pytest.mark.real

NUMBERS = itertools.count(1)
nats_url = site_conftest.nats_url

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class RealSite:
    """The hub's parts for pools, and a site that runs jobs as processes of this machine."""

    def __init__(self, kubernetes, site):
        self.name, self.supervisor = site.pool, Supervisor()
        self.admin = KubeClient.load(str(kubernetes.kubeconfig))
        self.kube = KubeClient.load(str(kubernetes.podbridge_kubeconfig))
        first = free_block(COUNT)
        expose = f"{{ports: {first}-{first + COUNT - 1}, address: {own_address()}}}"
        text = f"{{nats: {{servers: ['{site.url}']}}, nodeAddress: 127.0.0.1, kubeletPort: 0, expose: {expose}}}"
        nodes = Cache(self.kube, NODES, name="nodes", prune=prune_node)
        events = EventRecorder(self.kube)
        shared = KubeDependencies(parse(f"pools: {text}"), self.kube, nodes, events, SystemClock())
        hub = HubPools(shared, None, "test", "v1.0.0-podbridge", f"c{next(NUMBERS)}")
        hub.start(self.supervisor, Health())
        for loop in hub.loops:
            loop.start(self.supervisor)
        for thread in (nodes, events):
            self.supervisor.spawn("test", lambda run=thread.run: run(self.supervisor.stopping))

    def stop(self):
        self.supervisor.stop()
        self.kube.close()
        self.supervisor.join(3)
        assert self.supervisor.failure is None

    def pod(self, port):
        container = {
            "name": "main",
            "image": "none",
            "command": [sys.executable, "-c", SERVER, str(port)],
            "readinessProbe": {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "periodSeconds": 1},
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        }
        fixed = {"nodeName": self.name, "restartPolicy": "Never", "automountServiceAccountToken": False}
        spec = {**fixed, "tolerations": [{"operator": "Exists"}], "containers": [container]}
        annotations = {names.EXPOSE: str(port)}
        metadata = {"name": f"real{next(NUMBERS)}", "labels": {"app": "real"}, "annotations": annotations}
        return self.admin.create(PODS.path(NAMESPACE), {"metadata": metadata, "spec": spec})

    def ready(self, service):
        """Return address and port of each ready endpoint, as a proxy selects them."""
        selector = {"labelSelector": f"kubernetes.io/service-name={service['metadata']['name']}"}
        slices = self.admin.get(ENDPOINT_SLICES.path(NAMESPACE), selector)["items"]
        ends = [(each, end) for each in slices for end in each["endpoints"] or () if end["conditions"]["ready"]]
        return [(end["addresses"][0], each["ports"][0]["port"]) for each, end in ends]


@pytest.fixture
def real_site(kubernetes, nats_url, tmp_path):
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n[limits]\nallow_ports = true\n[runtime]\nkind = "none"\n'
    with site_conftest.Site(tmp_path, nats_url, "local", text) as site:
        made = RealSite(kubernetes, site)
        yield made
        made.stop()


def test_a_service_of_pods_at_a_real_site_loses_no_request_while_one_ends(real_site):
    """No Service proxy runs here: the test selects ready endpoints as one does."""
    eventually(lambda: real_site.name in str(real_site.admin.get(NODES.path())["items"]), "node", 30)
    ports = free_block(2)
    one, other = real_site.pod(ports), real_site.pod(ports + 1)
    spec = {"selector": {"app": "real"}, "ports": [{"port": ports, "name": "a"}, {"port": ports + 1, "name": "b"}]}
    body = {"metadata": {"name": f"s{next(NUMBERS)}"}, "spec": spec}
    service = real_site.admin.create(SERVICES.path(NAMESPACE), body)
    eventually(lambda: len(real_site.ready(service)) == 2, "two endpoints", 30)
    (address, port), _ = real_site.ready(service)
    paths = [f"/{number}" for number in range(50)]
    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(lambda path: fetch(address, port, path), paths)) == paths

    real_site.admin.delete(PODS.path_of(one), {"gracePeriodSeconds": 20})
    count, until = 0, time.monotonic() + 40
    while len(found := exists(real_site, one)) and time.monotonic() < until:
        ends = real_site.ready(service)
        count += 1
        assert fetch(*ends[count % len(ends)]) == "/hello", f"request {count} of {found}"
    assert count > 10 and not exists(real_site, one)
    assert len(real_site.ready(service)) == 1
    real_site.admin.delete(PODS.path_of(other), {"gracePeriodSeconds": 0})
    eventually(lambda: not real_site.ready(service), "no endpoints")
    eventually(lambda: not processes.with_word(str(ports + 1)), "no server is left")


def exists(place, pod):
    items = place.admin.get(PODS.path(NAMESPACE), {"fieldSelector": f"metadata.name={pod['metadata']['name']}"})[
        "items"
    ]
    return [each["metadata"]["name"] for each in items if uid(each) == uid(pod)]
