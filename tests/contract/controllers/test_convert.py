"""``podbridge convert``: Helm and a real API server accept what it prints."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster import tools
from cluster.systems import install
from generate.manifests import template

pytestmark = pytest.mark.real

INPUTS = Path(__file__).parents[2] / "unit/apps/conversion/inputs"
SETS = Path(__file__).parent / "chart"


def convert(*words: str) -> str:
    done = subprocess.run([*tools.PODBRIDGE, "convert", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["slurm-bridge", str(INPUTS / "slurm-bridge.yaml")],
        ["slurm-bridge", str(INPUTS / "slurm-bridge.yaml"), "--allow-all", "--exclusive"],
        ["slurm-bridge", str(SETS / "slurm-bridge.values.yaml")],
        ["nats-plugin", str(INPUTS / "nats-plugin.yaml"), "--pools", "alpha,beta", "--namespaces", "research"],
        ["nats-plugin", str(INPUTS / "nats-plugin.yaml"), "--pools", "alpha"],
    ],
    ids=["slurm-bridge", "slurm-bridge-open", "slurm-bridge-1.2", "nats-plugin", "nats-plugin-no-namespace"],
)
def test_the_chart_accepts_the_values(words: list[str], tmp_path: Path) -> None:
    install.ensure(modules=[install.HELM])
    values = tmp_path / "values.yaml"
    values.write_text(convert(*words))
    text = template("--skip-tests", f"--values={values}")
    settings = json.loads(convert(*words, "-o", "json"))["config"]
    for key in ("partition", "mcsLabel", "slurmRestApi"):
        if settings.get(key):
            assert f"{key}: {settings[key]}\n" in text


def test_the_api_server_accepts_the_queues(kubernetes: Any, tmp_path: Path) -> None:
    listed = json.loads(convert("kueue-nats", str(INPUTS / "kueue-nats.yaml"), "-o", "json"))
    queues = [each for each in listed["items"] if each["kind"] == "MasterQueue"]
    file = tmp_path / "queues.json"
    file.write_text(json.dumps({**listed, "items": queues}))
    checked = kubernetes.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", str(file))
    assert checked.splitlines() == ["masterqueue.vk.io/research serverside-applied (server dry run)"]
