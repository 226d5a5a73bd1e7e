"""What tests of several packages start with; none writes outside of its own folder."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.telemetry import tracing
from cluster import places
from tests.fakes.clock import FakeClock

WATCHED = (Path("/"), Path.home(), places.CHECKOUT, *(places.CHECKOUT / name for name in ("bridge", "hack", "tests")))


def _names() -> set[Path]:
    """Return the paths in folders into which a program with an empty variable, or with a wrong folder, would write."""
    paths = (path for folder in WATCHED for path in folder.iterdir())
    return {path for path in paths if path.name != ".hypothesis" and "cache" not in path.name}


@pytest.fixture(scope="session", autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    before = _names()
    yield
    assert _names() <= before, "a test has written outside of its folder"


@pytest.fixture(autouse=True)
def _no_cluster_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove what ``source .../env`` of a running cluster sets: commands under test would read that cluster."""
    podbridge = ("PODBRIDGE_CONFIG", "PODBRIDGE_INSTALLATION")
    for name in ("SLURM_JWT", "SLURM_JWT_FILE", "SLURM_CONF", "KUBECONFIG", *podbridge):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    """Undo what a command under test does to the logs of the process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tracing.Span]:
    """Return the spans that are sent from now on."""
    found: list[tracing.Span] = []
    monkeypatch.setattr(tracing, "tracer", tracing.Tracer(found.append, lambda: None))
    return found
