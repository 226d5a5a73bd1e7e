import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.nats.servers import NatsServer, World


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="wire-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[NatsServer]:
    running = NatsServer(folder).start()
    yield running
    running.kill()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()
