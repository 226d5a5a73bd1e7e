"""The files of a site: what is refused, and that no value can become syntax of TOML or of systemd."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.cli.sites import site_plan
from bridge.apps.cli.sites.site_plan import SiteChoices
from bridge.errors import ConfigError
from bridge.site.config.site_config import parse

HOME = Path("/home/me")


def choices(**changes):
    values = {
        "pool": "site-a",
        "servers": ["wss://hub.example:443"],
        "batch": "slurm",
        "runtime": "apptainer",
        "folder": HOME / "jobs",
        "directory": HOME / "files",
    }
    return SiteChoices(**values | changes)


def unit(program="/opt/podbridge/bin/podbridge", file="/home/me/site.toml", path="/usr/bin:/bin", account=""):
    config = parse(site_plan.site_toml(choices()))
    return site_plan.unit(config, Path(program), Path(file), path, account)


def test_the_submitters_loader_reads_what_was_chosen():
    settings = site_plan.checked_settings(["slurm.partition=batch", "limits.max_time_seconds=600", "sync=false"])
    config = parse(site_plan.site_toml(choices(own_ca=True, settings=settings)))
    assert (config.pool, config.batch.kind, config.runtime.kind) == ("site-a", "slurm", "apptainer")
    assert (config.folder, config.sync, config.limits.max_time_seconds) == ("/home/me/jobs", False, 600)
    assert config.slurm.partition == "batch"
    assert config.nats.servers == ["wss://hub.example:443"]
    assert (config.nats.seed_file, config.nats.ca_file) == (HOME / "files/site.seed", HOME / "files/ca.crt")


@pytest.mark.parametrize(
    "name", ["", "A", "a b", "-a", "a-", "a\n", 'a"', "a}", "../a", "a.b", "a%n", "x" * 64, "*", ">"]
)
def test_a_name_that_could_be_syntax_is_no_pool(name):
    with pytest.raises(ConfigError, match=r"--pool: .* is not allowed; allowed: 1 to 63"):
        site_plan.checked_pool(name)


@given(st.text(max_size=70))
def test_a_pool_that_is_accepted_has_only_harmless_characters(name):
    try:
        accepted = site_plan.checked_pool(name)
    except ConfigError:
        return
    assert accepted == name
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hub:443",
        "https://hub",
        "wss://",
        "wss://me:pw@hub",
        "wss://h ub",
        "wss://h\n",
        "wss://h:0",
        "wss://h:x",
        "wss://[",
    ],
)
def test_a_url_that_no_submitter_can_use_is_refused_without_its_password(url):
    with pytest.raises(ConfigError, match=r"--server: .*allowed: wss://HOST:PORT") as error:
        site_plan.checked_server(url)
    assert "pw" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slurm.partition", "KEY=VALUE"),
        ("=x", "KEY=VALUE"),
        ("a.b.c=1", "KEY=VALUE"),
        ("slurm]\npool=x", "KEY=VALUE"),
        ("pool=x", "--pool"),
        ("nats.servers=[]", "--server"),
        ("batch.kind=pbs", "--batch"),
    ],
)
def test_a_key_of_set_must_be_one_of_site_toml_without_an_option(text, message):
    with pytest.raises(ConfigError, match=f"--set: .*{message}"):
        site_plan.checked_settings([text])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("slurm.partitio=x", "did you mean partition"),
        ("nothing=1", "unknown key nothing"),
        ("batch.period=never", "batch.period"),
        ("batch.period=nan", "period|TOML"),
        ("sync.x=1", "sync"),
        ("folder.x=1", "folder has no keys"),
    ],
)
def test_a_wrong_key_or_value_is_named(setting, message):
    with pytest.raises(ConfigError, match=message):
        site_plan.site_toml(choices(settings=site_plan.checked_settings([setting])))


@given(st.text(max_size=200))
def test_no_value_of_set_reaches_another_key(value):
    settings = site_plan.checked_settings([f"slurm.partition={value}"])
    try:
        text = site_plan.site_toml(choices(settings=settings))
    except ConfigError:
        return
    assert tomllib.loads(text).keys() == {"pool", "folder", "nats", "batch", "runtime", "slurm"}
    assert parse(text).slurm.partition == settings["slurm.partition"]
    assert parse(text).nats.servers == ["wss://hub.example:443"]


def test_a_line_break_in_a_value_adds_no_key():
    value = 'slurm.partition="x"\nother = 1'
    assert site_plan.checked_settings([value]) == {"slurm.partition": '"x"\nother = 1'}


def test_the_unit_of_a_user_and_of_the_system():
    text = unit()
    assert 'ExecStart="/opt/podbridge/bin/podbridge" submitter --config "/home/me/site.toml"\n' in text
    assert 'Environment="PATH=/usr/bin:/bin"\n' in text
    assert "WantedBy=default.target" in text and "User=" not in text
    assert "KillMode=process" in text
    system = unit(account="pb")
    assert "User=pb\n" in system and "WantedBy=multi-user.target" in system


@pytest.mark.parametrize("bad", ["a\nb", 'a"b', "a%nb", "a$b", "a\\b", "a'b", "a;b", "a\tb", "a\u2028b"])
@pytest.mark.parametrize("place", ["program", "file", "path", "account"])
def test_what_systemd_would_interpret_is_refused(place, bad):
    with pytest.raises(ConfigError, match="cannot be written into a systemd unit"):
        unit(**{place: f"/{bad}"})


@given(st.text(min_size=1, max_size=60))
def test_a_unit_has_no_other_lines_than_ours(text):
    try:
        lines = unit(file=f"/{text}").splitlines()
    except ConfigError:
        return
    assert len(lines) == len(unit().splitlines())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("account", ["", "nobody"])
def test_systemd_reads_the_unit_as_we_mean_it(tmp_path, account):
    file = tmp_path / "podbridge-site-a.service"
    file.write_text(
        unit(program="/usr/bin/env", file="/home/me/a b/site.toml", path="/usr/bin:/opt/a b", account=account)
    )
    verify = ["systemd-analyze", "verify", str(file)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    file.write_text(file.read_text().replace("/usr/bin/env", "/nowhere/podbridge"))
    assert subprocess.run(verify, capture_output=True, timeout=30).returncode != 0


def test_the_command_that_starts_it():
    assert site_plan.start_command("a", "user", HOME).startswith("systemctl --user enable --now podbridge-a.service")
    assert "/etc/systemd/system/podbridge-a.service" in site_plan.start_command("a", "system", HOME)
    assert site_plan.start_command("a", "none", Path("/x y")) == "podbridge submitter --config '/x y/site.toml'"
