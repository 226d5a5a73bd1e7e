from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.kube.client import KubeClient
from bridge.kube.resources import NAMESPACES


@pytest.fixture
def client(cluster: Any) -> KubeClient:
    return KubeClient.load(str(cluster.kubeconfig))


@pytest.fixture
def namespace(client: KubeClient) -> Iterator[str]:
    name = f"kube-{uuid.uuid4().hex[:8]}"
    client.create(NAMESPACES.path(), {"metadata": {"name": name}})
    yield name
    client.delete(NAMESPACES.path(name=name))
