"""``site.toml``: strict, documented, and clear about what is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.apps.cli.submitter_command import submitter
from bridge.config.base import section_in
from bridge.errors import ConfigError
from bridge.script.buildconfig import BuildConfig
from bridge.site.config import sample, site_config
from bridge.site.service import LiveConfig, nats_link, open_to_pods


def test_section_2_the_sample_is_valid_and_says_only_defaults() -> None:
    assert site_config.parse(sample.sample()) == site_config.parse('pool = "my-pool"')


def test_the_sample_names_every_key() -> None:
    text = sample.sample()
    for name, field in site_config.SiteConfig.model_fields.items():
        model = section_in(field.annotation)
        for key in [name] if model is None else list(model.model_fields):
            assert f"\n{key} = " in text or f"\n# {key} = " in text, (name, key)


def test_what_stands_in_comments_of_the_sample_is_valid_too() -> None:
    without = re.sub(r"(?m)^# seed_file.*\n", "", sample.sample())  # either a seed, or a user with a password
    loaded = site_config.parse(re.sub(r"(?m)^# (?=[a-z_]+ = |\[\[)", "", without))
    assert loaded.flavors[0].name == "gpu"
    assert loaded.slurm.partition == "batch"


def test_every_section_of_a_buildconfig_is_there() -> None:
    text = 'pool = "p"\nheader = "module load x"\n[apptainer]\nfakeroot = true\n[[flavors]]\nname = "a"\n'
    told = site_config.parse(text).buildconfig()
    assert told.header == "module load x"
    assert told.apptainer.fakeroot
    assert BuildConfig.model_validate(told.dump()) == told
    assert set(BuildConfig.model_fields) <= set(site_config.SiteConfig.model_fields)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not TOML"),
        ("folder = '/x'", "pool is not set"),
        ('pool = "A_B"', "pool"),
        ('pool = "p"\nfoldr = "/x"', "unknown key foldr (did you mean folder?)"),
        ('pool = "p"\n[slurm]\npartitoin = "x"', "unknown key slurm.partitoin (did you mean partition?)"),
        ('pool = "p"\n[[flavors]]\nname = "a"\nqoss = "x"', "unknown key flavors.0.qoss (did you mean qos?)"),
        (
            'pool = "p"\n[batch]\nkind = "lsf"',
            "batch.kind: Input should be 'slurm', 'htcondor', 'pbs' or 'local' (value: 'lsf')",
        ),
        ('pool = "p"\n[nats]\nservers = ["nats://u:p@h"]', "no credentials in URLs"),
        ('pool = "p"\n[nats]\nservers = ["http://h"]', "must begin with nats://"),
        ('pool = "p"\ndefault_flavor = "x"', "'x' is none of the flavors"),
        ('pool = "p"\n[[flavors]]\nname = "a"\n[[flavors]]\nname = "a"', "a twice"),
        ('pool = "p"\n[resources]\ncpu = "many"', "resources.cpu: 'many' is not a quantity"),
        ('pool = "p"\n[node]\ntaints = ["x"]', "node.taints.0"),
        ('pool = "p"\n[batch]\nperiod = 0', "batch.period"),
        ('pool = "p"\nfolder = "relative"', "folder"),
        (
            'pool = "p"\n[container_logs]\nmax_size = "63Ki"',
            "container_logs.max_size: not allowed; allowed: 64Ki to 1Ti (value: '63Ki')",
        ),
        ('pool = "p"\n[container_logs]\nmax_size = "much"', "container_logs.max_size: 'much' is not a quantity"),
        ('pool = "p"\n[container_logs]\nmax_files = 1', "container_logs.max_files: Input should be greater than"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        site_config.parse(text)
    assert words in str(refused.value)


@pytest.mark.parametrize("url", ["wss://user:secret@host", "http://user:secret@host", "user:s:secr@secret@host"])
def test_a_password_in_a_value_is_masked(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        site_config.parse(f'pool = "p"\n[nats]\nservers = ["{url}"]')
    assert "***@host']" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_command_line_says_the_pool() -> None:
    assert site_config.parse("", pool="p").pool == "p"
    assert site_config.parse('pool = "a"', pool="b").pool == "b"


def test_the_command_prints_the_sample() -> None:
    done = CliRunner().invoke(submitter, ["config"])
    assert done.exit_code == 0
    assert site_config.parse(done.output).pool == "my-pool"


def test_the_command_checks_a_file(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(sample.sample())
    done = CliRunner().invoke(submitter, ["config", "--check", str(file)])
    assert "pool my-pool, slurm" in done.output


def test_the_command_wants_a_configuration() -> None:
    done = CliRunner().invoke(submitter, ["--pool", "p"])
    assert done.exit_code == 2
    assert "--config" in done.output


def test_section_2_a_change_of_the_file_is_taken_up_and_a_bad_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('pool = "p"\n')
    live = LiveConfig(file, None)
    before = live.config.buildconfig().digest
    assert not live.refresh()
    file.write_text('pool = "p"\nheader = "module load x"\nfolder = "/other"\n')
    assert live.refresh()
    assert live.config.buildconfig().digest != before
    assert live.config.folder == "/var/tmp/podbridge"
    file.write_text('pool = "p"\nhaeder = "x"\n')
    assert not live.refresh()
    assert live.config.header == "module load x"
    file.unlink()
    assert not live.refresh()


def test_every_key_is_either_static_or_live() -> None:
    assert set(site_config.READ_AT_START) <= set(site_config.SiteConfig.model_fields)


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_seed_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    seed = tmp_path / "seed"
    seed.write_text("secret")
    seed.chmod(mode)
    told = site_config.parse(f'pool = "p"\n[nats]\nseed_file = "{seed}"')
    with pytest.raises(ConfigError) as refused:
        nats_link(told, "n")
    assert refused.value.hint == f"chmod 600 {seed}"
    os.chmod(seed, 0o600)
    assert nats_link(told, "n")._options("nats://x")["nkeys_seed_str"] == "secret"


def test_a_directory_for_host_paths_that_has_the_folder_or_the_seed_is_named(tmp_path: Path) -> None:
    for name in ("shared", "folder", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    (tmp_path / "shared" / "seed").write_text("")
    areas = [str(tmp_path / name) for name in ("link", "folder", "data", "folder/jobs", "fold")]
    text = f'pool = "p"\nfolder = "{tmp_path}/folder"\n[nats]\nseed_file = "{tmp_path}/shared/seed"\n'
    config = site_config.parse(f"{text}[volumes]\nhost_paths = {json.dumps(areas)}\n")
    folder = f"{tmp_path}/folder"
    assert open_to_pods(config) == [(areas[0], f"{tmp_path}/shared/seed"), (areas[1], folder), (areas[3], folder)]
