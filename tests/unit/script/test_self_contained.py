"""A script that makes its own directory: run with bash, as the interLink Slurm plugin runs a jobScript."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridge.script import build, self_contained
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from cluster.polling import eventually
from tests.pod_specs import spec_of

CONFIG = BuildConfig.model_validate({"runtime": {"kind": "none"}})


def pod(*commands: str, init: tuple[str, ...] = (), **spec: Any) -> dict[str, Any]:
    def containers(prefix: str, texts: tuple[str, ...]) -> list[dict[str, Any]]:
        return [
            {"name": f"{prefix}{number}", "image": "x", "command": ["sh", "-c", text]}
            for number, text in enumerate(texts)
        ]

    return {
        "metadata": {"namespace": "ns", "name": "p", "uid": "u-1"},
        "spec": spec_of(*containers("main", commands), init=containers("init", init), restartPolicy="Never", **spec),
    }


def script_of(made: dict[str, Any]) -> str:
    return self_contained.wrap(build.build(made, CONFIG, Objects(), "far").script, made)


def start(made: dict[str, Any], folder: Path) -> subprocess.Popen[bytes]:
    file = folder / "jobScript.sh"
    file.write_text(script_of(made))
    return subprocess.Popen(["bash", str(file)], cwd="/", env={**os.environ, "workingPath": str(folder)})


def test_logs_and_exit_codes_are_where_the_slurm_plugin_reads_them(tmp_path: Path) -> None:
    assert start(pod("echo one; exit 3", "echo two", init=("echo prepared",)), tmp_path).wait(30) == 3
    read = {file.name: file.read_text() for file in tmp_path.iterdir() if file.suffix in (".out", ".status")}
    assert read == {
        "init-init0.out": "prepared\n",
        "init-init0.status": "0\n",
        "run-main0.out": "one\n",
        "run-main0.status": "3\n",
        "run-main1.out": "two\n",
        "run-main1.status": "0\n",
    }


def test_a_pod_that_succeeds_ends_with_0(tmp_path: Path) -> None:
    assert start(pod("true"), tmp_path).wait(30) == 0


def test_a_failed_init_container_ends_the_job_and_no_other_container_has_a_status(tmp_path: Path) -> None:
    assert start(pod("echo never", init=("exit 4",)), tmp_path).wait(30) == 4
    assert (tmp_path / "init-init0.status").read_text() == "4\n"
    assert not (tmp_path / "run-main0.status").exists()


def test_a_signal_of_the_batch_system_gives_the_containers_their_grace_period(tmp_path: Path) -> None:
    command = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    process = start(pod(command, terminationGracePeriodSeconds=20), tmp_path)
    log = tmp_path / "run-main0.out"
    eventually(lambda: log.exists() and "ready" in log.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) != 0, "a pod whose job was terminated has failed"
    assert log.read_text() == "ready\nsaved\n"


def test_a_second_run_of_the_same_job_runs_no_container(tmp_path: Path) -> None:
    made, log = pod("echo run"), tmp_path / "run-main0.out"
    assert start(made, tmp_path).wait(30) == 0
    assert log.read_text() == "run\n"
    log.write_text("")
    start(made, tmp_path).wait(30)
    assert not log.read_text()


@pytest.mark.parametrize("text", ["PODBRIDGE_SCRIPT_0", "PODBRIDGE_SCRIPT_0\nPODBRIDGE_SCRIPT_1", "'\"$HOME`id`\\"])
def test_no_text_of_a_pod_ends_the_script_early(tmp_path: Path, text: str) -> None:
    made = pod("true")
    made["spec"]["containers"][0]["command"] = ["printf", "%s", text]
    assert start(made, tmp_path).wait(30) == 0
    assert (tmp_path / "run-main0.out").read_text() == text


def test_without_the_variable_of_the_plugin_the_current_directory_is_used(tmp_path: Path) -> None:
    done = subprocess.run(["bash", "-c", script_of(pod("echo here"))], cwd=tmp_path, timeout=30)
    assert done.returncode == 0
    assert (tmp_path / "run-main0.out").read_text() == "here\n"
