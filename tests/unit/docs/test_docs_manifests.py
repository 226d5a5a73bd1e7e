"""Each manifest of docs/users/from-sbatch.md passes admission, and becomes the request that the page promises."""

import json

import pytest
import yaml
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from tests.docs_blocks import manifests

MANIFESTS = manifests("users/from-sbatch.md")
CONFIG = {
    "slurmRestApi": "http://slurmrestd.example.org:6820",
    "managedNamespaces": ["slurm-bridge"],
    "namespacePolicies": [{"namespaces": ["*"], "allowed": {"partition": ["gpu"]}}],
}


def number(value):
    return {"set": True, "infinite": False, "number": value}


WANTED = {
    "fit": {"cpus_per_task": 4, "memory_per_node": number(8192), "time_limit": number(240)},
    "array": {"cpus_per_task": 1, "memory_per_node": number(1024)},
    "train": {"partition": "gpu", "tres_per_node": "gres/gpu:2", "time_limit": number(36 * 60)},
    "mpi": {"minimum_nodes": 2, "maximum_nodes": 2, "cpus_per_task": 16},
    "steps": {"cpus_per_task": 4, "memory_per_node": number(8192)},
    "notebook": {"cpus_per_task": 2, "time_limit": number(480)},
}


def test_each_manifest_is_compared():
    assert list(MANIFESTS) == list(WANTED)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_passes_admission_and_translates(name, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    done = CliRunner().invoke(cli, ["render", "-f", "-", "-o", "json", "--config", str(config)], input=MANIFESTS[name])
    assert done.exit_code == 0, done.output
    (record,) = json.loads(done.output)
    assert not record.keys() & {"refused", "warnings", "needs", "note"}, record
    job = record["slurm"]["body"]["job"]
    assert {key: job.get(key) for key in WANTED[name]} == WANTED[name]
