"""The Ingress of the web page: an nginx that does what an Ingress controller does with this object.

No Ingress controller runs in the local cluster. The nginx takes host, Service and port from the Ingress, the addresses
from the EndpointSlices, and connects to the page by TLS.
"""

import base64

import pytest
import requests

from cluster.polling import eventually
from cluster.systems import helm
from cluster.world import NAMESPACE
from tests.contract.nats.servers import Nginx, certificate

pytestmark = pytest.mark.real

HOST = "podbridge.example.org"
SECRET = "page-tls"
NAME = "podbridge-dashboard"


@pytest.fixture
def certificates(tmp_path):
    """Files of the CA, and of certificate and key: of the page in the cluster, and of its public name."""
    folders = {}
    for folder, names in (("inside", (f"{NAME}.{helm.NAMESPACE}.svc",)), ("outside", (HOST, "127.0.0.1"))):
        (tmp_path / folder).mkdir()
        folders[folder] = certificate(tmp_path / folder, *names)
    return folders


@pytest.fixture
def ingress(clean, certificates):
    """A release with the Ingress; yield the cluster and the Ingress."""
    world, release, _ = clean
    secrets = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets"
    _, cert, key = certificates["inside"]
    data = {
        "tls.crt": base64.b64encode(cert.read_bytes()).decode(),
        "tls.key": base64.b64encode(key.read_bytes()).decode(),
    }
    world.api("POST", secrets, {"metadata": {"name": SECRET}, "type": "kubernetes.io/tls", "data": data})
    page = {"tls": {"existingSecret": SECRET}, "allowedHosts": [f"{NAME}.{helm.NAMESPACE}.svc"]}
    release.install({"dashboard": {**page, "ingress": {"enabled": True, "host": HOST}}})
    yield world, world.api("GET", f"/apis/networking.k8s.io/v1/namespaces/{helm.NAMESPACE}/ingresses/{NAME}")
    release.install()
    world.api("DELETE", f"{secrets}/{SECRET}")


def backend(world, rule):
    """Return address and port of a pod behind the Service of a rule."""
    (path,) = rule["http"]["paths"]
    service = path["backend"]["service"]
    assert path["path"] == "/" and path["pathType"] == "Prefix"

    def found():
        selector = f"kubernetes.io/service-name={service['name']}"
        slices = world.api(
            "GET", f"/apis/discovery.k8s.io/v1/namespaces/{helm.NAMESPACE}/endpointslices?labelSelector={selector}"
        )["items"]
        return [
            (address, port["port"])
            for each in slices
            for endpoint in each["endpoints"] or ()
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
            for port in each["ports"]
            if port["name"] == service["port"]["name"]
        ]

    return eventually(found, "an endpoint of the page", 60)[0]


@pytest.fixture
def nginx(ingress, certificates, tmp_path):
    """An nginx in front of the page; yield the cluster and the port of the nginx."""
    world, document = ingress
    (rule,) = document["spec"]["rules"]
    assert document["spec"]["tls"] == [{"hosts": [rule["host"]]}]
    address, port = backend(world, rule)
    authority, *_ = certificates["inside"]
    location = f"""location / {{
      proxy_pass https://{address}:{port};
      proxy_set_header Host $host;
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {authority};
      proxy_ssl_name {NAME}.{helm.NAMESPACE}.svc;
    }}"""
    _, cert, key = certificates["outside"]
    server = Nginx(tmp_path, location, cert, key, rule["host"])
    yield world, server.port
    server.stop()


def test_a_user_signs_in_through_the_ingress(nginx, certificates):
    world, port = nginx
    where = ("-n", NAMESPACE)
    world.cluster.kubectl("create", "serviceaccount", "visitor", *where)
    world.cluster.kubectl(
        "create", "rolebinding", "visitor", "--clusterrole=view", f"--serviceaccount={NAMESPACE}:visitor", *where
    )
    token = world.cluster.kubectl("create", "token", "visitor", *where).strip()
    seen = world.create("seen", cpu="5m", memory="8Mi", script="sleep 1")
    page, browser = f"https://127.0.0.1:{port}", requests.Session()
    browser.verify = str(certificates["outside"][0])
    browser.trust_env = False  # a bundle of the environment would replace it
    browser.headers["Host"] = HOST
    assert 'type="password"' in browser.get(page, timeout=20).text
    browser.post(f"{page}/sign-in", {"token": token}, timeout=20).raise_for_status()
    assert all(cookie.secure for cookie in browser.cookies)
    eventually(lambda: ">seen</a>" in browser.get(f"{page}/pods", timeout=20).text, "the pod on the page")
    assert browser.get(page, headers={"Host": "other.example.org"}, timeout=20).status_code == 421
    world.delete(seen, 0)
