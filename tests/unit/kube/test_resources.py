from __future__ import annotations

import pytest

from bridge.kube import resources
from bridge.kube.resources import EVENTS, LEASES, NODES, PODS, is_collection, resource_of


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("ns"), "/api/v1/namespaces/ns/pods"),
        (PODS.path("ns", "a"), "/api/v1/namespaces/ns/pods/a"),
        (PODS.path("ns", "a", "binding"), "/api/v1/namespaces/ns/pods/a/binding"),
        (NODES.path(name="n"), "/api/v1/nodes/n"),
        (LEASES.path("ns", "x"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/x"),
        (EVENTS.path("ns"), "/apis/events.k8s.io/v1/namespaces/ns/events"),
        (PODS.path("a/b", "c?d#e", "f g"), "/api/v1/namespaces/a%2Fb/pods/c%3Fd%23e/f%20g"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


def test_incomplete_addresses_are_refused() -> None:
    for arguments in ({"name": "a"}, {"namespace": "ns", "sub": "status"}):
        with pytest.raises(ValueError, match="incomplete"):
            PODS.path(**arguments)
    with pytest.raises(ValueError, match="not namespaced"):
        NODES.path("ns")


@pytest.mark.parametrize(
    ("path", "collection"),
    [
        (PODS.path(), True),
        (PODS.path("ns"), True),
        (PODS.path("ns", "a"), False),
        (PODS.path("ns", "a", "status"), False),
        (NODES.path(), True),
        (NODES.path(name="a"), False),
        (resources.NAMESPACES.path(name="a"), False),
        (LEASES.path(), True),
        (LEASES.path("ns"), True),
        (LEASES.path("ns", "a"), False),
    ],
)
def test_collections(path: str, collection: bool) -> None:
    assert is_collection(path) is collection


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("v1", "Pod", "/api/v1/namespaces/ns/pods/x"),
        ("batch/v1", "Job", "/apis/batch/v1/namespaces/ns/jobs/x"),
        ("apps/v1", "ReplicaSet", "/apis/apps/v1/namespaces/ns/replicasets/x"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets/x"),
        ("example.org/v1", "Widget", "/apis/example.org/v1/namespaces/ns/widgets/x"),
        ("example.org/v1", "Policy", "/apis/example.org/v1/namespaces/ns/policies/x"),
        ("example.org/v1", "Class", "/apis/example.org/v1/namespaces/ns/classes/x"),
    ],
)
def test_owners(api_version: str, kind: str, path: str) -> None:
    assert resource_of(api_version, kind).path("ns", "x") == path


def test_owner_that_is_a_node() -> None:
    assert resource_of("v1", "Node").path(name="n") == "/api/v1/nodes/n"
