"""A fake Slurm and a poller for each test."""

from collections.abc import Iterator

import pytest

from tests.fakes.slurmrestd import FakeSlurm
from tests.unit.slurm.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    """The main version."""
    with FakeSlurm() as slurm:
        yield Scene(slurm)


@pytest.fixture
def old_scene() -> Iterator[Scene]:
    """The oldest API."""
    with FakeSlurm("22.05.8") as slurm:
        yield Scene(slurm)
