from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.nats.servers import World
from tests.contract.store.servers import Place


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="store-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.fixture(params=["redis", "nats"])
def place(request: Any, folder: Path) -> Iterator[Place]:
    made = Place(request.param, folder)
    yield made
    made.end()
