"""A Service of exposed pods behind a real kube-proxy, on a host of its own: a network namespace.

Clients there connect to the ClusterIP. The rules of nftables are those of the namespace, and end with it.
"""

import ctypes
import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NODES, PODS
from cluster.hosts import Hosts
from cluster.polling import eventually
from cluster.ports import free_block, http_status
from cluster.processes import run
from cluster.systems import install
from tests import processes
from tests.contract.controllers import test_expose_site
from tests.contract.controllers.test_expose import fetch
from tests.contract.controllers.test_expose_site import exists, local_pod
from tests.fakes.relay import Relay

pytestmark = [pytest.mark.real, pytest.mark.long_only]

NAME, HOST = "kube-proxy", "n1"
CLIENTS = 50
CLONE_NEWNET = 0x40000000
nats_url, local_site, real_site = test_expose_site.nats_url, test_expose_site.local_site, test_expose_site.real_site


@pytest.fixture
def host():
    """A host whose way out is this machine."""
    install.ensure(machine=("ip", "nft"), modules=[install.KUBE_PROXY])
    hosts = Hosts(free_block(1), [HOST])
    hosts.start()
    run([*hosts.enter(HOST), "ip", "route", "replace", "default", "via", hosts.own_address])
    yield hosts
    hosts.stop()


@pytest.fixture
def clients(kubernetes, host, tmp_path):
    """Threads on the host of a kube-proxy."""
    config = json.loads(kubernetes.user_kubeconfig(f"system:{NAME}").read_text())
    server = config["clusters"][0]["cluster"]
    # the API server listens on the loopback of this machine
    relay = Relay((host.own_address, 0), ("127.0.0.1", urlsplit(server["server"]).port))
    server |= {"server": f"https://{host.own_address}:{relay.server_address[1]}", "tls-server-name": "localhost"}
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    settings = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": NAME,
        "clientConnection": {"kubeconfig": str(tmp_path / "kubeconfig")},
        "conntrack": {"maxPerCore": 0},  # settings of the whole machine
    }
    (tmp_path / "config").write_text(json.dumps(settings))
    admin = KubeClient.load(str(kubernetes.kubeconfig))
    admin.create(NODES.path(), {"metadata": {"name": NAME}})
    addresses = [{"type": "InternalIP", "address": host.address(HOST)}]
    admin.patch(f"{NODES.path(name=NAME)}/status", {"status": {"addresses": addresses}})
    program = str(install.binaries(install.KUBE_PROXY.packages)[NAME])
    kubernetes.processes.start(NAME, [*host.enter(HOST), program, f"--config={tmp_path / 'config'}"])
    with ThreadPoolExecutor(CLIENTS, initializer=enter, initargs=(host.namespace(HOST),)) as threads:
        try:
            health = "http://127.0.0.1:10256/healthz"
            kubernetes.processes.wait(NAME, lambda: threads.submit(http_status, health).result() == 200)
            yield threads
        finally:
            kubernetes.processes.stop([NAME])
            relay.close()
            admin.delete(NODES.path(name=NAME))


def enter(namespace):
    """Move this thread to a network namespace."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)


def test_a_service_over_local_and_site_pods_through_a_real_kube_proxy(real_site, clients):
    """Requests reach each pod, and none is lost while one ends."""
    site = real_site()
    eventually(lambda: site.name in str(site.admin.get(NODES.path())["items"]), "node", 30)
    first = free_block(3)
    one, other = site.pod("proxied", first), site.pod("proxied", first + 1)
    service = site.service("proxied")
    address = service["spec"]["clusterIP"]

    def requests(paths):
        return list(clients.map(lambda path: fetch(address, 80, path), paths))

    def told():
        """Return which pods answer."""
        return set(requests(["/who"] * CLIENTS))

    with local_pod(site, "proxied", first + 2):
        eventually(lambda: len(site.ready(service)) == 3, "three endpoints", 30)
        pods = {"/who", str(first), str(first + 1)}
        eventually(lambda: told() == pods, "each pod answers", 30)
        paths = [f"/{number}" for number in range(300)]
        assert requests(paths) == paths
        site.admin.delete(PODS.path_of(one), {"gracePeriodSeconds": 20})
        rounds = itertools.takewhile(lambda _: exists(site, one), itertools.count())
        assert sum(requests(["/x"] * CLIENTS) == ["/x"] * CLIENTS for _ in rounds) > 1
        assert told() == pods - {str(first)}
    site.admin.delete(PODS.path_of(other), {"gracePeriodSeconds": 0})
    eventually(lambda: not site.ready(service), "no endpoints")
    eventually(lambda: not processes.with_word(str(first + 1)), "no server is left")
    site.stop()
