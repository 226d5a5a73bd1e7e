"""What the plain 404 of an API server means. tests/e2e/test_admission.py asks a real one."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import KubeError, KubeNotFoundError, KubeUnavailableError
from bridge.kube.discovery import get_if_served
from bridge.kube.resources import PODS, Resource

GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", True)


class Client:
    """Answers discovery, and every other request with ``error``."""

    def __init__(self, error: KubeError, versions: tuple[str, ...] = (), resources: tuple[str, ...] = ()) -> None:
        self.error, self.versions, self.resources = error, versions, resources

    def get(self, path: str, **_: Any) -> dict[str, Any]:
        if path == "/apis":
            return {"groups": [{"versions": [{"groupVersion": version} for version in self.versions]}]}
        if path in ("/apis/scheduling.k8s.io/v1beta1", "/api/v1"):
            return {"resources": [{"name": name} for name in self.resources]}
        raise self.error


PLAIN = KubeUnavailableError("not an answer of an API server", status=404)


@pytest.mark.parametrize(
    ("resource", "versions", "resources"),
    [
        (GROUPS, ("scheduling.k8s.io/v1", "scheduling.k8s.io/v1alpha2"), ("podgroups",)),
        (GROUPS, ("scheduling.k8s.io/v1beta1",), ("workloads",)),
        (PODS, (), ("nodes",)),
    ],
)
def test_an_object_of_a_resource_that_is_not_served_does_not_exist(
    resource: Resource, versions: tuple[str, ...], resources: tuple[str, ...]
) -> None:
    assert get_if_served(Client(PLAIN, versions, resources), resource, "ns", "x") is None  # type: ignore[arg-type]


def test_a_plain_404_for_a_served_resource_says_nothing() -> None:
    served = Client(PLAIN, ("scheduling.k8s.io/v1beta1",), ("podgroups",))
    with pytest.raises(KubeUnavailableError):
        get_if_served(served, GROUPS, "ns", "x")  # type: ignore[arg-type]


def test_other_errors_are_not_explained_by_discovery() -> None:
    for status in (0, 503):
        with pytest.raises(KubeUnavailableError):
            get_if_served(Client(KubeUnavailableError("x", status=status)), GROUPS, "ns", "x")  # type: ignore[arg-type]
    missing = Client(KubeNotFoundError("x", status=404))
    assert get_if_served(missing, GROUPS, "ns", "x") is None  # type: ignore[arg-type]
