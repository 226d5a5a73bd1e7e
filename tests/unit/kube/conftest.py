from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.kube.kube_client import KubeClient
from tests.fakes.kube_api import FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        yield api


@pytest.fixture
def client(api: FakeApi, tmp_path: Path) -> KubeClient:
    return KubeClient.load(api.kubeconfig(tmp_path), connect_timeout=1, read_timeout=2)
