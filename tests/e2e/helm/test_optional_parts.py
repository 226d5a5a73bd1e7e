"""NATS, redis, the interLink plugin with its API server and OAuth2-proxy: the parts that the chart can start.

All run as pods of the real node. There is neither DNS nor a kube-proxy: the names of Services are host aliases of
podbridge's pods, for a relay at the pods' gateway. The site connects to the address of the pod of NATS, so the
certificate has all addresses that pods can get.
"""

import base64
import contextlib
import ipaddress
import json
import os
import re
import ssl
import subprocess
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from bridge.protocol.nats.user_keys import new_seed, public_key
from cluster import Cluster, tools
from cluster.errors import ClusterError
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.systems import helm, helm_images, realnode
from cluster.systems.interlink import NAMESPACE as INTERLINK_NAMESPACE
from cluster.systems.interlink import TOLERATION, Interlink
from cluster.systems.kube import is_ready
from cluster.tools import merged
from cluster.world import NAMESPACE
from tests.contract.nats.servers import World as NatsWorld
from tests.contract.nats.servers import certificate
from tests.fakes.relay import Relay

pytestmark = [pytest.mark.real, pytest.mark.long_only]  # a cluster, a build of OAuth2-proxy and nine pods

POOL = "local-site"
AUDIENCE = "podbridge-plugin"
VIRTUAL_NODE = "far"
KUBERNETES_ISSUER = "https://kubernetes.default.svc"
"""``--service-account-issuer`` of the local cluster: the tokens of service accounts are those of OpenID Connect."""


@pytest.fixture(scope="module")
def cluster(state_folder):
    """A cluster with a real node, a site, and interLink's virtual kubelet."""
    state = state_folder / "parts"
    with Cluster(state, nodes=1, real_node=True, helm=True, pools=[POOL], interlink=True) as running:
        role = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:service-account-issuer-discovery",
        }
        group = {"apiGroup": role["apiGroup"], "kind": "Group", "name": "system:unauthenticated"}
        binding = {"metadata": {"name": "issuer"}, "roleRef": role, "subjects": [group]}
        running.api.ensure("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        yield running


def secret(cluster, name, **values):
    data = {key.replace("_", "-"): base64.b64encode(value).decode() for key, value in values.items()}
    cluster.api.ensure(f"/api/v1/namespaces/{helm.NAMESPACE}/secrets", {"metadata": {"name": name}, "data": data})


def tls(cluster, folder):
    """Create the Secrets with the certificate of all addresses that pods can get; return the file of its CA."""
    addresses = map(str, ipaddress.ip_network(cluster.real_node.addresses).hosts())
    authority, cert, key = certificate(folder, "podbridge-nats.podbridge.svc", *addresses)
    files = {"tls.crt": cert.read_bytes(), "tls.key": key.read_bytes()}
    secret(cluster, "nats-tls", **files, **{"ca.crt": authority.read_bytes()})
    secret(cluster, "plugin-tls", **files, **{"ca.crt": (cluster.state / "kube" / "ca.crt").read_bytes()})
    return authority


@pytest.fixture(scope="module")
def settings(cluster, tmp_path_factory):
    """Values with all optional parts, and the file of the CA of their certificate."""
    helm.prepare(cluster)
    authority = tls(cluster, tmp_path_factory.mktemp("tls"))
    secret(
        cluster,
        "oauth2",
        client_id=AUDIENCE.encode(),
        client_secret=b"none",
        cookie_secret=os.urandom(16).hex().encode(),
    )
    proxy = {
        "enabled": True,
        "issuer": KUBERNETES_ISSUER,
        "existingSecret": "oauth2",
        "extraArgs": [
            "--skip-oidc-discovery=true",
            "--login-url=https://none.invalid",
            "--redeem-url=https://none.invalid",
            f"--oidc-jwks-url=https://{realnode.address()}:{cluster.kube_port}/openid/v1/jwks",
            "--provider-ca-file=/etc/podbridge/plugin-tls/ca.crt",
            "--oidc-email-claim=sub",
            "--oidc-enabled-signing-alg=ES256",
        ],
    }
    parts = {
        "nats": {"enabled": True, "pools": [POOL], "tls": {"existingSecret": "nats-tls"}},
        "redis": {"enabled": True, "persistence": {"enabled": False}},
        "plugin": {
            "enabled": True,
            "tls": {"existingSecret": "plugin-tls"},
            "interlink": {"enabled": True},
            "oauth2Proxy": proxy,
        },
        "rbac": {"poolNamespaces": [NAMESPACE]},
        **{part: {"replicas": 1} for part in helm.PARTS},
    }
    return merged(helm_images.prepare(cluster), parts), authority


def address(release, part):
    """Wait until the pod of a part is ready; return its address."""
    (pod,) = eventually(lambda: [pod for pod in release.pods(part) if is_ready(pod)], f"the pod of {part} is ready", 90)
    return pod["status"]["podIP"]


@pytest.fixture(scope="module")
def world(cluster, settings):
    """The cluster with the release: first NATS and redis get their addresses, then the others connect to them."""
    values, authority = settings
    text = json.dumps(merged(helm.values(cluster), values))
    first = helm.Release(cluster)
    first.helm("upgrade", "--install", first.name, str(helm.CHART), "--values=-", text=text)
    nats, redis = (address(first, part) for part in ("nats", "redis"))
    gateway = str(next(ipaddress.ip_network(cluster.real_node.addresses).hosts()))
    relays = [Relay((gateway, port), (pod, port)) for pod, port in ((nats, 4222), (redis, 6379))]
    services = [f"{first.name}-{part}.{helm.NAMESPACE}.svc" for part in ("nats", "redis")]
    aliases = [{"ip": gateway, "hostnames": services}]
    release = helm.Release(cluster, settings=merged(values, {"hostAliases": aliases}))
    release.install()

    name = f"podbridge-nats-pool-{POOL}"
    found = cluster.api("GET", f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/{name}")["data"]
    site = cluster.sites[POOL]
    for file, content in (("password", base64.b64decode(found["password"])), ("nats-ca.crt", authority.read_bytes())):
        path = site.folder / "home" / file
        path.write_bytes(content)
        os.chown(path, site.uid, site.uid)
        path.chmod(0o600)
    user = base64.b64decode(found["username"]).decode()
    server = {"servers": [f"wss://{nats}:8080"], "user": user, "password_file": "/srv/home/password"}
    files = {"ca_file": "/srv/home/nats-ca.crt", "seed_file": None}
    cluster.start_submitter(POOL, {"nats": {**server, **files}}, wait=False)
    made = PoolWorld(cluster)
    made.ready(POOL, 60)
    yield made, release
    cluster.stop_submitter(POOL)
    for relay in relays:
        relay.close()


def test_a_pod_runs_at_a_site_that_connects_to_the_nats_of_the_release(world):
    at, release = world
    metadata = {"name": "remote", "annotations": {"bridge.vk.io/pools": POOL}}
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo from the site; sleep 15"]}
    body = {"metadata": metadata, "spec": {"containers": [container], "restartPolicy": "Never"}}
    pod = at.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
    job = at.taken(pod, 60)
    assert job.startswith(f"{POOL}/")
    (before,) = release.pods("controllers")
    at.cluster.kubectl(
        "delete", "pod", before["metadata"]["name"], f"--namespace={helm.NAMESPACE}", "--grace-period=0", "--force"
    )
    ended = at.ended(pod, 120)
    assert ended["status"]["phase"] == "Succeeded"
    assert at.remote_job(ended) == job
    eventually(release.ready, "the controllers are back", 60)
    at.ready(POOL, 60)
    assert eventually(lambda: at.logs(ended, check=False), "its logs", 30) == "from the site\n"
    at.delete(ended)
    at.gone(ended, 60)


def test_the_release_checks_nats_pool_and_store(world):
    _, release = world
    with contextlib.suppress(ClusterError):  # the port of another pod cannot be reached: the node forwards no packets
        release.test()
    test = ("logs", f"--namespace={helm.NAMESPACE}", f"{release.name}-test-check")
    rows = [re.split(r" {2,}", line, maxsplit=2) for line in release.cluster.kubectl(*test).splitlines()]
    results = {row[1]: row for row in rows if len(row) == 3}
    assert results["NATS"] == ["ok", "NATS", "tls://podbridge-nats.podbridge.svc:4222"]
    assert results["store"] == ["ok", "store", "redis contains 1 pools"]
    assert results["pools"] == ["ok", "pools", f"{POOL} is Ready"]
    assert [row[1] for row in rows if row[0] == "FAIL"] in ([], ["kubelet port"])


def request(url, token=""):
    """Return status and body of an answer of the plugin's pod."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url, headers=headers), context=context, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_interlinks_virtual_kubelet_reaches_the_pool_through_proxy_api_server_and_plugin(world, tmp_path):
    at, release = world
    url = f"https://{address(release, 'plugin')}:8443"
    at.cluster.add_namespace(INTERLINK_NAMESPACE)
    account = {"metadata": {"name": "virtual-kubelet"}}
    at.api.ensure(f"/api/v1/namespaces/{INTERLINK_NAMESPACE}/serviceaccounts", account)
    create = ("create", "token", "virtual-kubelet", f"--namespace={INTERLINK_NAMESPACE}")
    token = at.cluster.kubectl(*create, f"--audience={AUDIENCE}").strip()
    other = at.cluster.kubectl(*create, "--audience=another").strip()
    assert request(f"{url}/pinglink")[0] in (401, 403)
    assert request(f"{url}/pinglink", other)[0] in (401, 403)
    assert request(f"{url}/pinglink", token)[0] == 200

    file = tmp_path / "token"
    file.write_text(token)
    interlink = Interlink(at.cluster)
    kubelet = interlink.start_virtual_kubelet(VIRTUAL_NODE, url, {"VKTokenFile": str(file)})
    try:
        eventually(lambda: at.readiness(VIRTUAL_NODE).get("status") == "True", "the virtual node is ready", 60)
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", "echo through four programs"]}
        spec = {
            "containers": [container],
            "restartPolicy": "Never",
            "nodeName": VIRTUAL_NODE,
            "tolerations": [TOLERATION],
        }
        body = {"metadata": {"name": "chained"}, "spec": spec}
        pod = at.api("POST", f"/api/v1/namespaces/{INTERLINK_NAMESPACE}/pods", body)
        assert at.ended(pod, 90)["status"]["phase"] == "Succeeded"
    finally:
        interlink.remove(kubelet)


def test_the_nats_of_the_release_gets_the_key_of_a_new_site(world, settings, tmp_path):
    """The last test: the pod of NATS has another address afterwards, which the relay and the site do not know."""
    at, release = world
    seeds = {name: tmp_path / name for name in ("new-site", "another")}
    for file in seeds.values():
        file.write_text(new_seed())
    key = public_key(seeds["new-site"].read_text())
    command = [*tools.PODBRIDGE, "pool", "add", "new-site", "--key", key, "--namespace", helm.NAMESPACE]
    (before,) = release.pods("nats")
    done = subprocess.run(command, env={**os.environ, **at.cluster.env}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (after,) = release.pods("nats")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    url, authority = f"wss://{address(release, 'nats')}:8080", settings[1]
    nats = NatsWorld()
    try:
        link = nats.link(url, seed_file=seeds["new-site"], ca_file=authority)
        link.subscribe("bridge.v1.local-site.announce", lambda *_: None)
        eventually(lambda: "refuses" in (link.problem() or ""), "the subject of another pool is refused")
        stranger = nats.link(url, wait=False, seed_file=seeds["another"], ca_file=authority)
        eventually(lambda: "authorization" in (stranger.problem() or "").lower(), "an unknown key is refused")
    finally:
        nats.close()
    # an upgrade of the release keeps the key
    text = json.dumps(merged(helm.values(at.cluster), release.settings))
    release.helm("upgrade", release.name, str(helm.CHART), "--values=-", text=text)
    path = f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/podbridge-nats-keys"
    assert at.api("GET", path)["data"] == {"new-site.nkey": key}
