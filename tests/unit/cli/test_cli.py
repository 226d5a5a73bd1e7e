import json
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from bridge.cli.main import cli

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "slurm-bridge"},
    "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]},
}


def run(*args, **kwargs):
    return CliRunner().invoke(cli, args, **kwargs)


def render(manifest, *args):
    return run("render", "-f", "-", "-o", "json", *args, input=yaml.safe_dump(manifest))


@pytest.mark.parametrize("args", [[], ["get"], ["explain", "pod"], ["render"], ["check"], ["run"], ["config"]])
def test_help(args):
    result = run(*args, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_help_is_quick_because_nothing_heavy_is_loaded():
    code = (
        "import sys; from click.testing import CliRunner; from bridge.cli.main import cli;"
        "CliRunner().invoke(cli, ['--help']);"
        "print([m for m in ('kubernetes', 'requests', 'flask', 'pydantic', 'nats') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    assert "_PODBRIDGE_COMPLETE" in run("completion", shell).output


def test_render_shows_the_patch_and_what_slurm_is_asked():
    result = render(POD)
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.output)
    assert {"op": "add", "path": "/spec/schedulerName", "value": "slurm-bridge-scheduler"} in record["patch"]
    assert record["slurm"]["body"]["job"]["flags"] == ["EXTERNAL_JOB"]
    assert record["slurm"]["body"]["job"]["cpus_per_task"] == 2


def test_render_speaks_older_versions():
    (record,) = json.loads(render(POD, "--api", "v0.0.38").output)
    assert "sleep" in record["slurm"]["body"]["script"]
    assert "v0.0.99" in str(render(POD, "--api", "v0.0.99").exception)


def test_render_takes_jobs_and_their_annotations():
    job = {
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "slurm-bridge",
            "annotations": {"slurmjob.slinky.slurm.net/user-id": "7"},
        },
        "spec": {"template": {"spec": POD["spec"]}},
    }
    (record,) = json.loads(render(job).output)
    assert record["needs"] == ["use slurmjobs.bridge.vk.io/user-id"]
    assert record["slurm"]["body"]["job"]["user_id"] == "7"


def test_render_refuses_what_admission_would():
    bad = {**POD, "metadata": {**POD["metadata"], "annotations": {"slurmjob.slinky.slurm.net/timelimt": "5"}}}
    result = render(bad)
    assert result.exit_code == 1
    assert "did you mean slurmjob.slinky.slurm.net/timelimit?" in result.output


def test_render_leaves_other_namespaces_alone():
    (record,) = json.loads(render({**POD, "metadata": {"name": "p", "namespace": "default"}}).output)
    assert record["patch"] == []
    assert "not managed" in record["note"]


def test_config_check(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("partition: gpu\n")
    assert yaml.safe_load(run("config", "check", str(file)).output)["partition"] == "gpu"
    file.write_text("partitio: gpu\n")
    assert "did you mean partition?" in str(run("config", "check", str(file)).exception)
    assert "cannot read" in str(run("config", "check", str(tmp_path / "none")).exception)


def test_config_schema_is_json():
    assert "schedulerName" in json.loads(run("config", "schema").output)["properties"]
