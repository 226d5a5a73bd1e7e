"""The Binding of a pod, in each version of kube-apiserver here: the grant of a race depends on these answers."""

import pytest

from bridge.errors import KubeConflictError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from bridge.workload import places
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real
TICKETS = ("11111111-2222-4333-8444-555555555555", "66666666-7777-4888-9999-000000000000")


@pytest.fixture
def client(world):
    return KubeClient.load(str(world.cluster.kubeconfig))


@pytest.fixture
def pod(world, client):
    """A pod that no scheduler binds."""
    body = world.manifest("raced", schedulerName="none")
    pod = client.create(PODS.path(NAMESPACE), body)
    yield pod
    client.delete(PODS.path(NAMESPACE, "raced"), {"gracePeriodSeconds": 0})


def bind(client, pod, pool, ticket):
    client.create(PODS.path(NAMESPACE, "raced", "binding"), places.grant_binding(pod, pool, ticket))


def test_one_write_binds_the_pod_and_names_the_ticket(client, pod):
    bind(client, pod, "site-a", TICKETS[0])
    assert places.is_granted(client.get(PODS.path(NAMESPACE, "raced")), "site-a", TICKETS[0])


@pytest.mark.parametrize("pool", ["site-a", "site-b"])
def test_a_second_binding_is_refused_and_changes_nothing(client, pod, pool):
    bind(client, pod, "site-a", TICKETS[0])
    bound = client.get(PODS.path(NAMESPACE, "raced"))
    for seen in (pod, bound):  # of a process that has seen the first one, and of one that has not
        with pytest.raises(KubeConflictError):
            bind(client, seen, pool, TICKETS[1])
    assert (
        client.get(PODS.path(NAMESPACE, "raced"))["metadata"]["resourceVersion"]
        == (bound["metadata"]["resourceVersion"])
    )


def test_a_binding_with_an_old_resource_version_or_another_uid_is_refused(client, pod):
    changed = client.patch(PODS.path(NAMESPACE, "raced"), {"metadata": {"annotations": {"changed": "yes"}}})
    with pytest.raises(KubeConflictError):
        bind(client, pod, "site-a", TICKETS[0])
    other = {**changed, "metadata": {**changed["metadata"], "uid": TICKETS[1]}}
    with pytest.raises(KubeConflictError):
        bind(client, other, "site-a", TICKETS[0])
    assert "nodeName" not in client.get(PODS.path(NAMESPACE, "raced"))["spec"]
    bind(client, changed, "site-a", TICKETS[0])
