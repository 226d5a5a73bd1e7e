"""The start of a hub."""

from __future__ import annotations

import gc
import json
import signal
import sys
from pathlib import Path

import pytest

from bridge.cli.hub import Hub
from bridge.config import Config
from bridge.errors import BridgeError


@pytest.mark.parametrize("parts", [("admission",), ("admission", "scheduler", "controllers")])
def test_a_hub_is_not_ready_from_its_first_answer_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, parts: tuple[str, ...]
) -> None:
    """Who asks between the first answer and the start of the parts must not hear that all is well."""
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [cluster],
                "contexts": [context],
                "users": [{"name": "u", "user": {}}],
                "current-context": "c",
            }
        )
    )
    for module, name in ((signal, "signal"), (sys, "setswitchinterval"), (gc, "set_threshold")):
        monkeypatch.setattr(module, name, lambda *_: None)
    hub = Hub(Config(), parts, str(kubeconfig), None)
    told: list[dict[str, str]] = []

    def fail() -> None:
        raise BridgeError("far enough")

    monkeypatch.setattr(hub, "_serve", lambda: told.append(hub.health.failures()))
    monkeypatch.setattr(hub, "_start", fail)
    assert hub.run() == 1
    assert told == [{"hub": "not started yet"}]
