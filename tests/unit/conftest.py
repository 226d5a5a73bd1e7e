"""What tests of several packages start with."""

import pytest

from bridge.telemetry import tracing
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tracing.Span]:
    """Return the spans that are sent from now on."""
    found: list[tracing.Span] = []
    monkeypatch.setattr(tracing, "tracer", tracing.Tracer(found.append, lambda: None))
    return found
