"""Each part in its own process with its own service account of config/rbac.yaml."""

import time

import pytest
import yaml

from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.systems.kube import ACCOUNTS
from tests.e2e.pools.cases import config_map, env, pod, secret, sh

pytestmark = pytest.mark.real

PARTS = ("admission", "scheduler", "controllers")
POOL = "local-site"


@pytest.fixture
def parts(pools_world):
    """Run podbridge as three processes instead of one; return the time of their start (RFC 3339)."""
    cluster = pools_world.cluster
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    settings = yaml.safe_load((cluster.state / "podbridge.yaml").read_text())
    cluster.stop_podbridge()
    for part in PARTS:
        # the webhook listens at the registered port, which must be free
        own = settings["admission"] if part == "admission" else {}
        cluster.start_podbridge((part,), name=part, config_overrides={"admission": own})
    yield since
    for part in PARTS:
        cluster.stop_podbridge(part)
    cluster.start_podbridge()
    pools_world.ready(POOL)


def refused(cluster, since):
    """Return the calls of podbridge's accounts that the API server has forbidden."""
    users = {f"system:serviceaccount:podbridge:{account}" for account in ACCOUNTS.values()}
    return [
        f"{event['user']['username']} {event['verb']} {event['requestURI']}"
        for event in cluster.audit_events()
        if event["user"]["username"] in users
        and event.get("responseStatus", {}).get("code") == 403
        and event["requestReceivedTimestamp"] >= since
    ]


def test_each_part_does_its_work_with_its_own_account(pools_world, parts):
    world, cluster = pools_world, pools_world.cluster
    world.ready(POOL)
    cluster.api.ensure(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret("roles", word="swordfish"))
    word = env("WORD", secretKeyRef={"name": "roles", "key": "word"})
    remote = world.create_pod(pod(sh("echo word=$WORD", env=[word])), POOL)
    local = world.create(run="1")
    assert world.ended(remote)["status"]["phase"] == "Succeeded"
    assert "word=swordfish" in world.logs(remote)
    eventually(lambda: world.get(local)["status"]["phase"] == "Succeeded", "the local pod is over", 60)
    eventually(lambda: not world.get(local)["metadata"].get("finalizers"), "its job is released", 30)
    world.delete(remote)
    eventually(lambda: world.get(remote) is None, "the remote pod is gone", 60)
    assert refused(cluster, parts) == []


def test_a_namespace_without_the_role_binding_is_named_on_the_pod(pools_world):
    world, cluster = pools_world, pools_world.cluster
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/podbridge-pools"
    cluster.api("DELETE", path)
    cluster.api.ensure(f"/api/v1/namespaces/{NAMESPACE}/configmaps", config_map("unbound"))
    waits = world.create_pod(pod(sh(":", envFrom=[{"configMapRef": {"name": "unbound"}}])), POOL)
    text = f" in namespace {NAMESPACE}: RoleBinding podbridge-pools is missing there"

    def said():
        found = world.get(waits)
        waiting = [c["state"].get("waiting", {}) for c in found["status"].get("containerStatuses", ())]
        events = cluster.api("GET", f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
        mine = [event["note"] for event in events if event["regarding"].get("uid") == waits["metadata"]["uid"]]
        return any(text in w.get("message", "") for w in waiting) and any(text in note for note in mine)

    eventually(said, "the pod says which RoleBinding is missing", 30)
    cluster.open_to_pools(NAMESPACE)
    assert world.ended(waits)["status"]["phase"] == "Succeeded"
