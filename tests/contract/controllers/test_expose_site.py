"""Services of exposed pods at a real site: API server, NATS, submitter, and podbridge's own permissions."""

import contextlib
import http.client
import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from websockets.sync.client import connect

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
from cluster import Cluster
from cluster.polling import eventually
from cluster.ports import free_block, own_address
from tests import processes
from tests.contract.controllers.test_expose import COUNT, EchoedPath, fetch
from tests.contract.controllers.test_virtual import NAMESPACE, uid
from tests.contract.site import conftest as site_conftest
from tests.docs_blocks import DOCS, blocks
from tests.fakes.web_server import serving

pytestmark = pytest.mark.real

NUMBERS = itertools.count(1)
nats_url = site_conftest.nats_url

SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        if self.path == "/slow":
            time.sleep(8)
        self.wfile.write((sys.argv[1] if self.path == "/who" else self.path).encode())
    def log_message(self, *args):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

WEBSOCKET_SERVER = """
import sys
from websockets.sync.server import serve
def echo(client):
    for message in client:
        client.send(message)
with serve(echo, "127.0.0.1", int(sys.argv[1])) as server:
    server.serve_forever()
"""


class RealSite:
    """The hub's parts for pools, and a site that runs jobs as processes of this machine."""

    def __init__(self, kubernetes, site, owner):
        self.name, self.supervisor = site.pool, Supervisor()
        self.admin = KubeClient.load(str(kubernetes.kubeconfig))
        self.kube = KubeClient.load(str(kubernetes.podbridge_kubeconfig))
        first = free_block(COUNT)
        expose = f"{{ports: {first}-{first + COUNT - 1}, address: {own_address()}}}"
        text = f"{{nats: {{servers: ['{site.url}']}}, nodeAddress: 127.0.0.1, kubeletPort: 0, expose: {expose}}}"
        nodes = Cache(self.kube, NODES, name="nodes", prune=prune_node)
        events = EventRecorder(self.kube)
        shared = KubeDependencies(parse(f"pools: {text}"), self.kube, nodes, events, SystemClock())
        self.hub = HubPools(shared, None, "test", "v1.0.0-podbridge", owner)
        self.hub.start(self.supervisor, Health())
        for loop in self.hub.loops:
            loop.start(self.supervisor)
        for thread in (nodes, events):
            self.supervisor.spawn("test", lambda run=thread.run: run(self.supervisor.stopping))

    def stop(self):
        self.supervisor.stop()
        self.supervisor.join(3)
        self.hub.stop()
        self.kube.close()
        assert self.supervisor.failure is None

    def pod(self, label, port, program=SERVER):
        container = {
            "name": "main",
            "image": "none",
            "ports": [{"name": "http", "containerPort": port}],
            "command": [sys.executable, "-c", program, str(port)],
            "readinessProbe": {"tcpSocket": {"port": port, "host": "127.0.0.1"}, "periodSeconds": 1},
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        }
        fixed = {"nodeName": self.name, "restartPolicy": "Never", "automountServiceAccountToken": False}
        spec = {**fixed, "tolerations": [{"operator": "Exists"}], "containers": [container]}
        annotations = {names.EXPOSE: str(port)}
        metadata = {"name": f"real{next(NUMBERS)}", "labels": {"app": label}, "annotations": annotations}
        return self.admin.create(PODS.path(NAMESPACE), {"metadata": metadata, "spec": spec})

    def service(self, label):
        spec = {"selector": {"app": label}, "ports": [{"port": 80, "targetPort": "http"}]}
        body = {"metadata": {"name": f"real{next(NUMBERS)}"}, "spec": spec}
        return self.admin.create(SERVICES.path(NAMESPACE), body)

    def ready(self, service):
        """Return address and port of each ready endpoint, as a proxy selects them."""
        selector = {"labelSelector": f"kubernetes.io/service-name={service['metadata']['name']}"}
        slices = self.admin.get(ENDPOINT_SLICES.path(NAMESPACE), selector)["items"]
        ends = [(each, end) for each in slices for end in each["endpoints"] or () if end["conditions"]["ready"]]
        return [(end["addresses"][0], each["ports"][0]["port"]) for each, end in ends]


@pytest.fixture(scope="module")
def local_site(kubernetes, nats_url, tmp_path_factory):
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n[limits]\nallow_ports = true\n[runtime]\nkind = "none"\n'
    with site_conftest.Site(tmp_path_factory.mktemp("site"), nats_url, "local", text) as site:
        yield site


@pytest.fixture
def real_site(kubernetes, local_site):
    """A site; call it for a process of the hub. None runs after the test: it would take the pods of another hub."""
    hubs = []

    def start():
        hubs.append(RealSite(kubernetes, local_site, "c1"))
        return hubs[-1]

    yield start
    for each in hubs:
        each.stop()


@contextlib.contextmanager
def local_pod(place, label, port):
    """A pod in the cluster that listens on a port: the test is its kubelet."""
    place.admin.create(NODES.path(), {"metadata": {"name": "here"}})
    container = {"name": "main", "image": "none", "ports": [{"name": "http", "containerPort": port}]}
    fixed = {"nodeName": "here", "automountServiceAccountToken": False, "containers": [container]}
    body = {"metadata": {"name": f"here{next(NUMBERS)}", "labels": {"app": label}}, "spec": fixed}
    made = place.admin.create(PODS.path(NAMESPACE), body)
    address = own_address()
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized", "PodScheduled")]
    place.admin.patch(f"{PODS.path_of(made)}/status", {"status": {**status, "conditions": ready}})
    with serving(EchoedPath, "", port):
        yield made
    place.admin.delete(PODS.path_of(made), {"gracePeriodSeconds": 0})
    place.admin.delete(NODES.path(name="here"))


def each_request(place, service, goes_on):
    """Send requests to the ready endpoints in turn, as a proxy of Services does, and return their number."""
    count = 0
    while goes_on():
        ends = place.ready(service)
        count += 1
        assert fetch(*ends[count % len(ends)]) == "/hello", f"request {count}"
    return count


def test_a_service_over_local_and_site_pods_loses_no_request_while_one_ends(real_site):
    """No Service proxy runs here: the test selects ready endpoints as one does."""
    site = real_site()
    eventually(lambda: site.name in str(site.admin.get(NODES.path())["items"]), "node", 30)
    first = free_block(3)
    one, other = site.pod("mixed", first), site.pod("mixed", first + 1)
    service = site.service("mixed")
    with local_pod(site, "mixed", first + 2):
        eventually(lambda: len(site.ready(service)) == 3, "three endpoints", 30)
        for address, port in site.ready(service):
            paths = [f"/{number}" for number in range(50)]
            with ThreadPoolExecutor(50) as threads:
                assert list(threads.map(lambda path, a=address, p=port: fetch(a, p, path), paths)) == paths
        site.admin.delete(PODS.path_of(one), {"gracePeriodSeconds": 20})
        assert each_request(site, service, lambda: exists(site, one)) > 0
        assert len(site.ready(service)) == 2
    site.admin.delete(PODS.path_of(other), {"gracePeriodSeconds": 0})
    eventually(lambda: not site.ready(service), "no endpoints")
    eventually(lambda: not processes.with_word(str(first + 1)), "no server is left")
    site.stop()


def test_a_websocket(real_site):
    site, port = real_site(), free_block(1)
    one = site.pod("websocket", port, WEBSOCKET_SERVER)
    service = site.service("websocket")
    eventually(lambda: site.ready(service), "an endpoint", 30)
    (address,) = site.ready(service)
    large = bytes(range(256)) * 4000
    with connect("ws://{}:{}".format(*address)) as client:
        for message in ("hello", large):
            client.send(message)
            assert client.recv(20) == message
        assert client.ping().wait(20)
    assert client.close_code == 1000
    site.admin.delete(PODS.path_of(one), {"gracePeriodSeconds": 0})
    eventually(lambda: not site.ready(service), "no endpoints")
    site.stop()


def test_connections_go_on_while_the_next_process_takes_over(real_site):
    """The first one stops as at SIGTERM, and drains."""
    before, port = real_site(), free_block(1)
    one = before.pod("drain", port)
    service = before.service("drain")
    eventually(lambda: before.ready(service), "an endpoint", 30)
    old = before.ready(service)
    kept = http.client.HTTPConnection(*old[0], timeout=20)
    with contextlib.closing(kept), ThreadPoolExecutor(1) as threads:
        kept.request("GET", "/slow")
        before.supervisor.stop()
        drain = threads.submit(before.hub.stop)
        after = real_site()
        assert each_request(after, service, lambda: after.ready(service) == old) > 0
        assert not drain.done() and fetch(*old[0]) == "/hello", "some nodes use the old endpoint for a while"
        assert kept.getresponse().read() == b"/slow"
        kept.close()
        drain.result(10)
        assert fetch(*after.ready(service)[0]) == "/hello"
    after.admin.delete(PODS.path_of(one), {"gracePeriodSeconds": 0})
    eventually(lambda: not after.ready(service), "no endpoints")


def exists(place, pod):
    items = place.admin.get(PODS.path(NAMESPACE), {"fieldSelector": f"metadata.name={pod['metadata']['name']}"})[
        "items"
    ]
    return [each["metadata"]["name"] for each in items if uid(each) == uid(pod)]


@pytest.fixture
def slurm_site(kubernetes, nats_url, state_folder):
    """A process of the hub, and a site with a real Slurm, whose machines can mount /etc/hosts."""
    with Cluster(state_folder / "expose-slurm", slurm="24.11", nodes=1, kube=False) as slurm:
        text = f'[slurm]\nbin_dir = "{slurm.state}/bin"\n[limits]\nallow_ports = true\n[runtime]\nkind = "none"\n'
        with site_conftest.new_place() as place, site_conftest.Site(place, nats_url, "slurm", text) as site:
            made = RealSite(kubernetes, site, "c2")
            yield made
            made.stop()


def test_the_example_of_the_page_at_a_slurm(kubernetes, slurm_site):
    """docs/users/run-pods.md; without podbridge's scheduler, the pod names its node."""
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    eventually(lambda: slurm_site.name in str(slurm_site.admin.get(NODES.path())["items"]), "node", 30)
    (example,) = [one.text for one in blocks(DOCS / "users/run-pods.md", ("yaml",)) if "name: pages" in one.text]
    one, service = yaml.safe_load_all(example)
    one["spec"] |= {"nodeName": slurm_site.name, "tolerations": [{"operator": "Exists"}]}
    one["spec"]["automountServiceAccountToken"] = False
    slurm_site.admin.create(PODS.path(NAMESPACE), one)
    service = slurm_site.admin.create(SERVICES.path(NAMESPACE), service)
    eventually(lambda: slurm_site.ready(service), "an endpoint", 60)
    (end,) = slurm_site.ready(service)
    with ThreadPoolExecutor(4) as threads:  # the server's queue has five places
        (page,) = set(threads.map(lambda _: fetch(*end, "/passwd"), range(50)))
    assert "\nalice:" in page, "a user of the site's machine"
    slurm_site.admin.delete(PODS.path(NAMESPACE, one["metadata"]["name"]), {"gracePeriodSeconds": 1})
    eventually(lambda: not slurm_site.ready(service), "no endpoints")
