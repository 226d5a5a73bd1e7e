"""resource.k8s.io/v1 on API servers with and without it: fake and real ones answer the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import KubeUnavailableError
from bridge.kube.discovery import is_served, list_if_served
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import DEVICE_CLASSES, NAMESPACES
from cluster import Cluster
from tests.fakes.kube_answers import old_api_server

OLD = "1.32"
"""The last version of Kubernetes without the resource."""


@pytest.fixture(scope="module")
def real_server(state_folder: Path) -> Iterator[KubeClient]:
    """An old Kubernetes without nodes."""
    options: dict[str, Any] = {"slurm": None, "nodes": 0, "kcm": False, "kwok": False, "kubernetes": OLD}
    with Cluster(state_folder / f"kube-{OLD}", **options) as running:
        yield KubeClient.load(str(running.kubeconfig))


@pytest.fixture(params=["fake", pytest.param(OLD, marks=pytest.mark.real)])
def old(request: pytest.FixtureRequest) -> Any:
    return old_api_server() if request.param == "fake" else request.getfixturevalue("real_server")


def test_an_old_server_does_not_serve_the_resource(old: Any) -> None:
    with pytest.raises(KubeUnavailableError) as refused:
        old.get(DEVICE_CLASSES.path())
    assert refused.value.status == 404
    assert not is_served(old, DEVICE_CLASSES)
    assert list_if_served(old, DEVICE_CLASSES) is None


@pytest.mark.real
@pytest.mark.parametrize("old", [OLD], indirect=True)
def test_another_resource_of_an_old_server_is_listed(old: KubeClient) -> None:
    assert is_served(old, NAMESPACES)
    assert list_if_served(old, NAMESPACES)


@pytest.mark.real
def test_a_newer_server_lists_the_resource(client: KubeClient) -> None:
    assert is_served(client, DEVICE_CLASSES)
    assert list_if_served(client, DEVICE_CLASSES) is not None
