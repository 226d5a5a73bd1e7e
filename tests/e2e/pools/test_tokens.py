"""Service account tokens and Secrets go to a site only if the site and the namespace allow it."""

import json
import ssl
import urllib.request

import pytest

from cluster.polling import eventually
from cluster.pools import NAMESPACE
from tests.e2e.pools.cases import pod, secret, sh

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
    """Let a site announce how to reach the API server; return the address and the authorities."""
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
    told = eventually(lambda: notes(world.cluster, pod, "BridgeSubmitted"), "it is said")
    assert "without its service account token" in told[0]


def test_the_token_reaches_the_api_server_that_the_site_names(pools_world, reached):
    world, (port, ca) = pools_world, reached

    def taken_there():
        pod = world.run(SHOW, POOL)
        world.ended(pod)
        return (text := world.logs(pod)) and "eyJ" in text and text

    text = eventually(taken_there, "the hub knows the site's new configuration")
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


def test_a_pod_goes_to_the_pool_that_may_have_its_secrets_and_waits_where_none_may(pools_world):
    world, cluster = pools_world, pools_world.cluster
    cluster.api.ensure(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret("kept", k="v"))
    spec = pod(sh("echo k=$k", envFrom=[{"secretRef": {"name": "kept"}}]))
    cluster.kubectl("annotate", "--overwrite", "namespace", NAMESPACE, "bridge.vk.io/pool-secrets=slurm-site")
    try:
        eventually(lambda: _kept(world, spec), "forgotten", 30)
        goes = world.create_pod(spec, f"{POOL}, slurm-site")
        assert world.ended(goes)["spec"]["nodeName"] == "slurm-site"
        assert world.logs(goes) == "k=v\n"
        assert f"{POOL} (annotation bridge.vk.io/pool-secrets" in notes(cluster, goes, "Scheduled")[0]
        waits = world.create_pod(spec, POOL)
        why = f"annotation bridge.vk.io/pool-secrets of namespace {NAMESPACE} does not let Secret kept go there"
        assert f"{POOL} ({why})" in eventually(lambda: _unschedulable(world, waits), "it is said", 30)
        (place,) = world.explained("pod", waits["metadata"]["name"], NAMESPACE)["places"]
        assert (place["place"], place["eligible"], place["reason"]) == (POOL, False, why)
    finally:
        cluster.open_to_pools(NAMESPACE)
    assert world.ended(waits)["spec"]["nodeName"] == POOL


def _unschedulable(world, pod):
    condition = world.condition(pod, "PodScheduled")
    return condition.get("reason") == "Unschedulable" and condition["message"]


def _kept(world, spec):
    """Return whether the scheduler, which caches a namespace for 10 s, has seen that the annotation is gone."""
    tried = world.create_pod(spec, POOL)
    eventually(lambda: world.get(tried)["spec"].get("nodeName") or _unschedulable(world, tried), "bound, or told")
    bound = "nodeName" in world.get(tried)["spec"]
    world.delete(tried, 0)
    return not bound
