"""Services that pods at a real site reach: API server, NATS, submitter, and podbridge's own permissions.

No kubelet runs here: the test says which addresses pods in the cluster have.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

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
from bridge.kube.resources import ENDPOINT_SLICES, NODES, POD_EVENTS, PODS, SERVICES
from bridge.serving.health import Health
from cluster.polling import eventually
from tests import processes
from tests.contract.controllers.test_virtual import NAMESPACE, uid
from tests.contract.site import conftest as site_conftest
from tests.fakes.web_server import Handler, serving

pytestmark = pytest.mark.real

NUMBERS = itertools.count(1)
OTHER = "other"
LOTS = 3 * 2**20
nats_url = site_conftest.nats_url

CLIENT = """
import concurrent.futures, hashlib, os, socket, sys, time, urllib.request
def get(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            data = answer.read()
        return len(data), hashlib.sha256(data).hexdigest()[:8]
    except OSError as error:
        return repr(error)
with concurrent.futures.ThreadPoolExecutor(50) as threads:
    for url in sys.argv[1:]:
        print(url, *sorted(map(str, set(threads.map(get, [url] * (50 if "many" in url else 1))))), flush=True)
time.sleep(1000)
"""


SEEN: set[str] = set()


class SeenPaths(Handler):
    def respond(self):
        SEEN.add(self.path)
        self.answer(body_of(self.path))
        if self.path == "/endless":
            self.connection.recv(1)


def body_of(path):
    return hashlib.sha256(path.encode()).digest() * (LOTS // 32) if path == "/lots" else path.encode()


@pytest.fixture(scope="module")
def cluster_address():
    """An address of a pod in the cluster, with a server: neither a node nor podbridge has it."""
    address = "198.18.46.1"
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    with serving(SeenPaths, address) as server:
        yield address, server.server_port
    subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=True)


class RealSite:
    """The hub's parts for pools, and a site that runs jobs as processes of this machine."""

    def __init__(self, kubernetes, site, address, port):
        self.name, self.url, self.address, self.port = site.pool, site.url, address, port
        self.admin = KubeClient.load(str(kubernetes.kubeconfig))
        self.kube = KubeClient.load(str(kubernetes.podbridge_kubeconfig))
        self.cluster = f"c{next(NUMBERS)}"
        self.start()

    def start(self):
        self.supervisor = Supervisor()
        policy = f"{{namespaces: [{NAMESPACE}], reachNamespaces: [{OTHER}, default]}}"
        pools = f"{{nats: {{servers: ['{self.url}']}}, nodeAddress: 127.0.0.1, kubeletPort: 0, reach: ['{self.name}']}}"
        nodes = Cache(self.kube, NODES, name="nodes", prune=prune_node)
        events = EventRecorder(self.kube)
        config = parse(f"pools: {pools}\nnamespacePolicies: [{policy}]")
        shared = KubeDependencies(config, self.kube, nodes, events, SystemClock())
        hub = HubPools(shared, None, "test", "v1.0.0-podbridge", self.cluster)
        hub.start(self.supervisor, Health())
        for loop in hub.loops:
            loop.start(self.supervisor)
        for thread in (nodes, events):
            self.supervisor.spawn("test", lambda run=thread.run: run(self.supervisor.stopping))

    def stop(self):
        self.supervisor.stop()
        self.supervisor.join(3)
        assert self.supervisor.failure is None

    def pod(self, reach, *urls):
        container = {"name": "main", "image": "none", "command": [sys.executable, "-c", CLIENT, *urls]}
        fixed = {"nodeName": self.name, "restartPolicy": "Never", "automountServiceAccountToken": False}
        spec = {**fixed, "tolerations": [{"operator": "Exists"}], "containers": [container]}
        metadata = {"name": f"client{next(NUMBERS)}", "annotations": {names.REACH: reach}}
        return self.admin.create(PODS.path(NAMESPACE), {"metadata": metadata, "spec": spec})

    def service(self, name, namespace=NAMESPACE, **spec):
        """A Service, a pod in the cluster, and its endpoint, as Kubernetes' controller would write it."""
        body = {"selector": {"app": name}, "ports": [{"port": 8786, "name": "web"}], **spec}
        self.admin.create(SERVICES.path(namespace), {"metadata": {"name": name}, "spec": body})

    def backend(self, name, namespace=NAMESPACE, *, address=None, in_status=None, **spec):
        address = address or self.address
        spec = {"containers": [{"name": "web", "image": "none"}], "automountServiceAccountToken": False, **spec}
        metadata = {"name": name, "labels": {"app": name}}
        pod = self.admin.create(PODS.path(namespace), {"metadata": metadata, "spec": {**spec, "nodeName": "elsewhere"}})
        shown = in_status or address
        status = {"phase": "Running", "podIP": shown, "podIPs": [{"ip": shown}], "hostIP": "198.18.46.9"}
        self.admin.patch(PODS.path(namespace, name, "status"), {"status": status})
        reference = {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid(pod)}
        self.endpoint(name, namespace, address, targetRef=reference)

    def endpoint(self, name, namespace, address, **more):
        body = {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}, **more}],
            "ports": [{"name": "web", "port": self.port, "protocol": "TCP"}],
        }
        self.admin.create(ENDPOINT_SLICES.path(namespace), body)

    def folder_of(self, pod):
        return self.site.folder / "jobs" / uid(pod)

    def events_of(self, pod):
        found = self.admin.get(POD_EVENTS.path(NAMESPACE), {"fieldSelector": f"involvedObject.uid={uid(pod)}"})
        return [each["message"] for each in found["items"] if each["reason"] == names.NOT_REACHED]


@pytest.fixture(scope="module")
def real_site(kubernetes, nats_url, cluster_address):
    for namespace in (NAMESPACE, OTHER):
        kubernetes.add_namespace(namespace)
    kubernetes.open_to_pools(NAMESPACE)
    text = '[local]\ncpus = 8\nmemory = "8Gi"\n[limits]\nallow_reach = true\n[runtime]\nkind = "none"\n'
    with site_conftest.new_place() as place, site_conftest.Site(place, nats_url, "local", text) as site:
        made = RealSite(kubernetes, site, *cluster_address)
        made.site = site
        eventually(lambda: made.name in str(made.admin.get(NODES.path())["items"]), "node", 30)
        yield made
        made.stop()


def lines(site, pod, count):
    """Wait for the first lines of a pod's log."""

    def read():
        try:
            return site.site.log(uid(pod)).decode().splitlines()
        except Exception as error:  # it has not started
            return [repr(error)] * 0

    def look():
        found = read()
        return found if len(found) >= count else None

    return eventually(look, f"{count} lines", 60)


def test_a_pod_reaches_a_service_by_its_names(real_site):
    real_site.service("scheduler")
    real_site.backend("scheduler")
    real_site.service("db", OTHER, clusterIP="None")
    real_site.backend("db", OTHER)
    names_ = ("scheduler", f"scheduler.{NAMESPACE}", f"scheduler.{NAMESPACE}.svc.cluster.local", f"db.{OTHER}.svc")
    urls = [f"http://{name}:8786/{index}" for index, name in enumerate(names_)]
    urls += ["http://scheduler:8786/many", "http://scheduler:8786/lots"]
    pod = real_site.pod(f"scheduler:8786, db.{OTHER}:8786", *urls)
    found = lines(real_site, pod, len(urls))
    for url, line in zip(urls, found, strict=True):
        data = body_of(url[url.rindex("/") :])
        assert line == f"{url} {(len(data), hashlib.sha256(data).hexdigest()[:8])}"
    real_site.admin.delete(PODS.path_of(pod), {"gracePeriodSeconds": 0})
    eventually(lambda: not processes.in_folder(real_site.folder_of(pod)), "nothing is left", 30)


def test_what_no_pod_reaches(real_site):
    """Each in words, in an Event of the pod. The API server itself refuses endpoints with link-local addresses."""
    real_site.service("outside", type="ExternalName", externalName="localhost", selector=None, ports=[{"port": 8786}])
    real_site.service("without-selector", selector=None)
    real_site.endpoint("without-selector", NAMESPACE, real_site.address)
    real_site.service("no-pod")
    real_site.endpoint("no-pod", NAMESPACE, real_site.address)
    real_site.service("on-node")
    real_site.backend("on-node", hostNetwork=True)
    real_site.service("forged")
    real_site.backend("forged", in_status="198.18.46.2")
    own = ("outside", "without-selector", "no-pod", "on-node", "forged", "missing")
    targets = [*(f"{name}:8786" for name in own), "kubernetes.default:8786:443"]
    targets += ["secret.third:8786"]
    hosts = [*own, "kubernetes.default.svc", "secret.third"]
    pod = real_site.pod(",".join(targets), *(f"http://{host}:8786/" for host in hosts))
    assert all("reset" in line.lower() or "Disconnected" in line for line in lines(real_site, pod, len(hosts)))
    wanted = [
        "ExternalName",
        "has no selector",
        "no ready endpoint that is a pod",
        "hostNetwork",
        "forged does not have",
    ]
    wanted += ["missing does not exist", "leads to the API server", "policy of namespace"]

    def missing():
        found = real_site.events_of(pod)
        return [text for text in wanted if not any(text in message for message in found)]

    eventually(lambda: not missing(), f"the Events: {wanted}", 30)
    real_site.admin.delete(PODS.path_of(pod), {"gracePeriodSeconds": 0})


def test_a_hub_that_starts_again_serves_the_pod(real_site):
    """An open connection ends with an error, new ones wait; the end of the pod leaves no process at the site."""
    if "again" not in str(real_site.admin.get(SERVICES.path(NAMESPACE))):
        real_site.service("again")
        real_site.backend("again")
    first = real_site.pod("again:8786", "http://again:8786/one", "http://again:8786/endless")
    assert "one" in lines(real_site, first, 1)[0]
    eventually(lambda: "/endless" in SEEN, "the connection is open")
    real_site.stop()
    second = real_site.pod("again:8786", "http://again:8786/two")
    real_site.start()
    assert "reset" in lines(real_site, first, 2)[1].lower()
    assert "(4," in lines(real_site, second, 1)[0]
    for pod in (first, second):
        real_site.admin.delete(PODS.path_of(pod), {"gracePeriodSeconds": 0})
    folders = [real_site.folder_of(pod) for pod in (first, second)]
    eventually(lambda: not any(map(processes.in_folder, folders)), "nothing is left", 30)
