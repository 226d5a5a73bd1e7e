from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster import Cluster


@pytest.fixture(scope="package")
def kubernetes(state_folder) -> Iterator[Any]:
    """Kubernetes alone, with its controllers and config/rbac.yaml, and no node."""
    with Cluster(state_folder / "kubernetes", slurm=None, nodes=0, audit=True) as running:
        yield running
