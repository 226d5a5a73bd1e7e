from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from bridge.errors import KubeConflictError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NAMESPACES, SERVICE_ACCOUNTS


@pytest.fixture
def client(cluster: Any) -> KubeClient:
    return KubeClient.load(str(cluster.kubeconfig))


@pytest.fixture
def namespace(client: KubeClient) -> Iterator[str]:
    name = f"kube-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES.path(), {"metadata": {"name": name}})
    with suppress(KubeConflictError):  # kube-controller-manager, which creates it, may be first
        client.create(SERVICE_ACCOUNTS.path(name), {"metadata": {"name": "default"}})
    yield name
    client.delete(NAMESPACES.path(name=name))
