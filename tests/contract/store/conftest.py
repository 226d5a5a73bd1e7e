from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.nats.conftest import folder, world
from tests.contract.store.servers import Place

__all__ = ["folder", "place", "world"]


@pytest.fixture(params=["redis", "nats"])
def place(request: Any, folder: Path) -> Iterator[Place]:
    made = Place(request.param, folder)
    yield made
    made.end()
