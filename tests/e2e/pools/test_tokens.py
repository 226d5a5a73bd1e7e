"""Service account tokens and Secrets go to a site only where site and namespace say so."""

import json
import ssl
import urllib.request

import pytest

from cluster.pools import NAMESPACE
from cluster.world import until

pytestmark = pytest.mark.real

POOL = "local-site"
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
SHOW = (
    f'echo "host=$KUBERNETES_SERVICE_HOST port=$KUBERNETES_SERVICE_PORT"; cat {FOLDER}/token; echo; cat {FOLDER}/ca.crt'
)


def notes(cluster, pod, reason):
    events = cluster.api("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
    uid = pod["metadata"]["uid"]
    return [event["note"] for event in events if (event["regarding"].get("uid"), event["reason"]) == (uid, reason)]


@pytest.fixture
def reached(pools_world):
    """A site that says how to reach the API server; gives the address and the authorities."""
    cluster = pools_world.cluster
    server = cluster.api("GET", "/api")["serverAddressByClientCIDRs"][0]["serverAddress"]
    port = server.rpartition(":")[2]
    ca = (cluster.state / "kube" / "ca.crt").read_text()
    cluster.stop_submitter(POOL)
    cluster.start_submitter(POOL, {"api_server": {"url": f"https://127.0.0.1:{port}", "ca": ca}})
    pools_world.ready(POOL)
    yield port, ca
    cluster.stop_submitter(POOL)
    cluster.start_submitter(POOL)
    pools_world.ready(POOL)


def test_the_automatic_token_stays_away_from_a_site_that_names_no_api_server(pools_world):
    world = pools_world
    pod = world.run(SHOW, POOL)
    assert any(volume["name"].startswith("kube-api-access-") for volume in pod["spec"]["volumes"])
    world.ended(pod)
    assert "host= port=" in world.logs(pod)
    assert "eyJ" not in world.logs(pod)
    told = until("it is said", lambda: notes(world.cluster, pod, "BridgeSubmitted"))
    assert "without its service account token" in told[0]


def test_the_token_reaches_the_api_server_that_the_site_names(pools_world, reached):
    world, (port, ca) = pools_world, reached

    def taken_there():
        pod = world.run(SHOW, POOL)
        world.ended(pod)
        return (text := world.logs(pod)) and "eyJ" in text and text

    text = until("the hub knows the site's new configuration", taken_there)
    first, token, rest = text.split("\n", 2)
    assert first == f"host=127.0.0.1 port={port}"
    assert rest.strip() == ca.strip()
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    trust = ssl.create_default_context(cadata=rest)
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
        who = json.load(answer)["status"]["userInfo"]
    assert who["username"] == f"system:serviceaccount:{NAMESPACE}:default"


def test_a_namespace_keeps_its_secrets_until_it_says_otherwise(pools_world):
    world, cluster = pools_world, pools_world.cluster
    cluster.api.ensure(
        f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": "kept"}, "stringData": {"k": "v"}}
    )
    cluster.kubectl("annotate", "namespace", NAMESPACE, "bridge.vk.io/pool-secrets-")
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "echo k=$k"],
        "envFrom": [{"secretRef": {"name": "kept"}}],
    }
    try:
        until("forgotten", lambda: _kept(world, container), 30)
        pod = world.create_pod({"containers": [container], "restartPolicy": "Never"}, POOL)
        told = until("it is said", lambda: notes(cluster, pod, "BridgeWaiting"), 30)
        assert f"namespace {NAMESPACE} does not let Secret kept go to pool {POOL}" in told[0]
        assert not world.remote_job(world.get(pod))
    finally:
        cluster.open_to_pools(NAMESPACE)
    assert world.ended(pod)["status"]["phase"] == "Succeeded"
    assert world.logs(pod) == "k=v\n"


def _kept(world, container):
    """Whether the hub, which remembers a namespace for 10 s, has seen that the annotation is gone."""
    pod = world.create_pod({"containers": [container], "restartPolicy": "Never"}, POOL)
    until(
        "taken, or told to wait", lambda: world.remote_job(world.get(pod)) or notes(world.cluster, pod, "BridgeWaiting")
    )
    taken = bool(world.remote_job(world.get(pod)))
    world.delete(pod, 0)
    return not taken
