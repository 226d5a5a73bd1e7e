from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter

from bridge.serving.health import Health, metrics_app


@pytest.fixture
def health() -> Health:
    health = Health()
    health.live("loop", lambda: None)
    health.ready("cache", lambda: None)
    return health


def test_all_well(health: Health) -> None:
    client = health.app().test_client()
    for path in ("/healthz", "/livez", "/readyz", "/readyz/cache", "/healthz/loop"):
        answer = client.get(path)
        assert (answer.status_code, answer.text) == (200, "ok"), path


def test_verbose_lists_every_check(health: Health) -> None:
    text = health.app().test_client().get("/readyz?verbose").text
    assert text == "[+]ping ok\n[+]cache ok\nreadyz check passed\n"


def test_a_failure_says_why_and_touches_only_its_kind(health: Health) -> None:
    health.ready("slurm", lambda: "no answer for 12 s")
    client = health.app().test_client()
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "[-]slurm failed: no answer for 12 s" in answer.text
    assert client.get("/healthz").status_code == 200
    assert client.get("/readyz/cache").status_code == 200
    assert client.get("/readyz/slurm").status_code == 503
    assert health.failures() == {"slurm": "no answer for 12 s"}


def test_a_check_that_raises_has_failed(health: Health) -> None:
    def broken() -> str | None:
        raise RuntimeError("boom")

    health.live("broken", broken)
    answer = health.app().test_client().get("/healthz")
    assert answer.status_code == 503
    assert "boom" in answer.text


def test_an_unknown_check_is_not_found(health: Health) -> None:
    answer = health.app().test_client().get("/readyz/nothing")
    assert answer.status_code == 404
    assert "cache" in answer.text


def test_metrics_in_the_format_asked_for() -> None:
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc()
    client = metrics_app(registry).test_client()
    plain = client.get("/metrics")
    assert plain.content_type.startswith("text/plain")
    assert "things_total 1.0" in plain.text
    open_metrics = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert open_metrics.content_type.startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")
