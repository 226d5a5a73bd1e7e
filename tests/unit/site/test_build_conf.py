"""build.conf of the interLink NATS plugin as site.toml, and the command that converts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.cli.main import cli
from bridge.errors import ConfigError
from bridge.site.config.sample import documented
from bridge.site.config.site_config import parse, validated
from bridge.site.plugin_configs import STEPS, convert_build_conf, is_toml

# every section of BuildConfig.py, and a key of each kind
WHOLE = """\
[volumes]
scratch_area = "/scratch"
apptainer_cachedir = "/cache"
image_dir = "/opt/images"
additional_directories_in_path = ["/opt/bin"]
fuse_sleep_seconds = 7
[apptainer]
executable = "/usr/bin/singularity"
fakeroot = true
containall = false
fuse_mode = "host-privileged"
nvidia_support = true
tmp_dir_mode = "bind"
[shub_proxy]
server = "proxy:8080"
master_token = "hunter2"
cache_validity_seconds = 600
[slurm]
bash_executable = "/usr/local/bin/sbatch"
sbatch_executable = "/usr/local/bin/sbatch"
squeue_executable = "/usr/local/bin/squeue"
sacct_executable = "/usr/local/bin/sacct"
partition = "batch"
account = "acc"
nodes = 2
ntasks = 1
time = 2
memory = "4G"
cpu = 3
mail_user = "me@example"
generic_resources = ["gpu:1", "shard:2"]
flags = ["--exclusive"]
output = "%(sandbox)s/stdout.log"
header = "module load x"
[[slurm.flavors]]
partition = "gpu"
max_time_seconds = 600
memory = "8000"
cpu = 4
ntasks = 2
generic_resources = ["gpu:a100"]
[slurm.flavors.max_resources]
cpu = 8
"nvidia.com/gpu" = 1
[resources]
cpu = "64"
gpus = 4
pods = 20
[node]
labels = ["a=b", "c"]
taints = ["k=v:NoSchedule"]
[network]
allowed = false
tap_mtu = 1280
[odd]
"""


def test_each_key_arrives_or_is_named() -> None:
    values, warnings = convert_build_conf(WHOLE, "build.conf", "cineca")
    config = validated(values, "x")
    assert parse(documented(values, warnings)) == config
    assert (config.pool, config.header) == ("cineca", "module load x")
    assert (config.volumes.scratch_area, config.volumes.scratch_in_job_folder) == ("/scratch", False)
    assert (config.volumes.image_dir, config.volumes.fuse_sleep_seconds) == ("/opt/images", 7)
    own = config.apptainer
    assert (own.executable, own.fakeroot, own.containall) == ("/usr/bin/singularity", True, False)
    assert (own.fuse_mode, own.nvidia_support) == ("host-privileged", "always")
    slurm = config.slurm
    assert (slurm.bin_dir, slurm.bash, slurm.partition, slurm.account) == (
        "/usr/local/bin",
        "/bin/bash",
        "batch",
        "acc",
    )
    assert slurm.options == ["--nodes=2", "--mail-user=me@example", "--gres=gpu:1,shard:2", "--exclusive"]
    assert (config.limits.max_time_seconds, config.limits.default_memory, config.limits.default_cpu) == (7200, "4Gi", 3)
    assert config.flavors[0].model_dump(exclude_defaults=True) == {
        "name": "flavor-1",
        "partition": "gpu",
        "generic_resources": ["gpu:a100"],
        "max_time_seconds": 600,
        "max_resources": {"cpu": "8", "nvidia.com/gpu": "1"},
        "cpu": 4,
        "memory": "8000Mi",
        "flags": ["--ntasks=2"],
    }
    assert (config.resources.cpu, config.resources.extended, config.resources.pods) == (
        "64",
        {"nvidia.com/gpu": "4"},
        20,
    )
    assert (config.node.labels, config.node.taints) == ({"a": "b", "c": ""}, ["k=v:NoSchedule"])
    assert config.runtime.network == "none"
    dropped = [warning.partition(":")[0] for warning in warnings]
    assert dropped == [
        "apptainer.tmp_dir_mode", "shub_proxy.server", "shub_proxy.master_token", "shub_proxy.cache_validity_seconds",
        "slurm.bash_executable", "slurm.output", "network.tap_mtu", "odd",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[slurm", "not TOML"),
        ("slurm = 1", "slurm: 1 is not allowed"),
        ("[slurm]\nflavors = [1]", "slurm.flavors"),
        ("[slurm]\nmemory = 'much'", "slurm.memory: 'much' is not allowed"),
        ("[slurm]\ntime = 'long'", "a value has the wrong type"),
        ("[node]\nlabels = 3", "a value has the wrong type"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"build\.conf") as wrong:
        convert_build_conf(text, "build.conf", "p")
    assert words in str(wrong.value)


def test_the_kind_of_a_file() -> None:
    assert is_toml(WHOLE, "build.conf") and is_toml(WHOLE, "build") and is_toml("[", "build.conf")
    assert not is_toml("DataRootFolder: /x", "SlurmConfig") and not is_toml("[a]", "SlurmConfig.yaml")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.lists(st.text(max_size=3), max_size=2)
)


@given(st.dictionaries(st.sampled_from(sorted(STEPS)), st.dictionaries(st.text(max_size=8), VALUES, max_size=3)))
def test_any_keys_are_converted_or_named(data: dict[str, dict[str, object]]) -> None:
    import json

    lines = []
    for section, keys in data.items():
        lines.append(f"[{section}]")
        lines += [
            f"{json.dumps(k)} = {json.dumps(v)}"
            for k, v in keys.items()
            if v is not None and k.isascii() and k.isprintable()
        ]
    text = "\n".join(lines)
    try:
        _, warnings = convert_build_conf(text, "build.conf", "p")
    except ConfigError as error:
        assert str(error).startswith("build.conf: ")
    else:
        assert all(": not converted: " in warning for warning in warnings)


# --- the command ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("build.conf", WHOLE, "shub_proxy.master_token"),
        ("SlurmConfig.yaml", "DataRootFolder: /jobs/\nSingularityPrefix: x\n", "SingularityPrefix"),
    ],
)
def test_the_command_prints_a_file_that_the_check_accepts(tmp_path: Path, name: str, content: str, named: str) -> None:
    (tmp_path / name).write_text(content)
    done = CliRunner().invoke(cli, ["submitter", "convert", "--pool", "cineca", str(tmp_path / name)])
    assert done.exit_code == 0, done.output
    assert f"warning: {named}" in done.stderr
    assert f"# {named}" in done.stdout and "hunter2" not in done.output
    (tmp_path / "site.toml").write_text(done.stdout)
    checked = CliRunner().invoke(cli, ["submitter", "config", "--check", str(tmp_path / "site.toml")])
    assert checked.exit_code == 0 and "pool cineca, slurm" in checked.output


def test_the_command_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["submitter", "convert", str(tmp_path / "none")])
    assert done.exit_code != 0
