"""The start of a hub."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from bridge.apps.hub.hub import Hub
from bridge.config.hub import Config
from bridge.control.control_loop import Loop
from bridge.core.workers import Workers
from bridge.errors import BridgeError
from bridge.kube.lease import Elector
from tests import builders


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    return builders.kubeconfig(tmp_path)


@pytest.mark.parametrize("parts", [("admission",), ("admission", "scheduler", "controllers")])
def test_a_hub_is_not_ready_from_its_first_answer_on(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str, parts: tuple[str, ...]
) -> None:
    """A readiness probe between the start of the health server and the start of the parts must fail."""
    for module, name in ((signal, "signal"), (sys, "setswitchinterval"), (gc, "set_threshold")):
        monkeypatch.setattr(module, name, lambda *_: None)
    hub = Hub(Config(), parts, kubeconfig, None)
    told: list[dict[str, str]] = []

    def fail() -> None:
        raise BridgeError("far enough")

    monkeypatch.setattr("bridge.apps.hub.hub.start_servers", lambda health, *_: told.append(health.failures()))
    monkeypatch.setattr(hub, "_start", fail)
    assert hub.run() == 1
    assert told == [{"hub": "not started yet"}]


@pytest.mark.parametrize(
    ("seconds", "unsettled", "order"), [(0.3, False, ["call", "release"]), (3.0, False, []), (0.0, True, ["call"])]
)
def test_a_lease_is_released_after_the_last_call_and_only_if_its_outcome_is_known(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str, seconds: float, unsettled: bool, order: list[str]
) -> None:
    monkeypatch.setattr("bridge.apps.hub.hub.LAST_WRITES", 1.0)
    hub, done, begun = Hub(Config(), ("scheduler",), kubeconfig, None), list[str](), threading.Event()

    def call() -> None:
        begun.set()
        time.sleep(seconds)
        done.append("call")

    workers = Workers("w", 1)
    workers.start(hub.supervisor)
    workers.submit("key", call)
    assert begun.wait(5)
    hub.electors.append(cast("Elector", SimpleNamespace(held=True, release=lambda: done.append("release"))))
    hub.loops.append(cast("Loop", SimpleNamespace(name="scheduler", unsettled=unsettled, busy=False)))
    hub.stops.append(lambda: done.append("drain"))
    hub.supervisor.stop()
    monkeypatch.setattr(hub.kube, "close", lambda: done.append("close"))
    assert hub._stop() == 0
    assert done[: len(order) + 2] == [*order, "drain", "close"]
