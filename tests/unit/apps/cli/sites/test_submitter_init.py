"""``podbridge submitter init`` on this machine, without a NATS server."""

import json
import stat

import pytest
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.apps.cli.sites import init_command, site_checks
from bridge.errors import ConfigError
from bridge.protocol.nats.user_keys import public_key
from bridge.serving.certificates import make_pair
from bridge.site.config.site_config import load, parse

SERVER = "wss://127.0.0.1:1"


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "podbridge"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(site_checks, "CONNECT_TIMEOUT", 0.2)
    return tmp_path


def init(*words, input=None):
    return CliRunner().invoke(cli, ["submitter", "init", *map(str, words)], input=input)


def report(*words):
    return json.loads(init(*words, "-o", "json").stdout)


def files_of(home):
    base = home / ".config" / "podbridge" / "site-a"
    return {path.name: path for path in base.iterdir()} if base.exists() else {}


def test_all_files_are_private_and_only_the_public_key_is_printed(home):
    ca = home / "hub.crt"
    ca.write_bytes(make_pair(["ca"], 86400, now=0).ca)
    done = init("--pool", "site-a", "--server", SERVER, "--ca-file", ca, "--batch", "local")
    assert done.exit_code == 1  # no NATS server answers
    files = files_of(home)
    assert set(files) == {"ca.crt", "site.seed", "site.toml"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.values()} == {0o600}
    assert stat.S_IMODE(files["site.toml"].parent.stat().st_mode) == 0o700
    seed = files["site.seed"].read_text().strip()
    assert seed not in done.output
    assert f"podbridge pool add site-a --key {public_key(seed)} --test" in done.output
    assert "systemctl --user enable --now podbridge-site-a.service" in done.output
    config = load(files["site.toml"])
    assert (config.pool, config.batch.kind, config.runtime.kind) == ("site-a", "local", "none")
    assert config.nats.ca_file == files["ca.crt"]
    unit = (home / ".config/systemd/user/podbridge-site-a.service").read_text()
    assert f'"{home}/bin/podbridge" submitter --config "{files["site.toml"]}"' in unit


def test_a_second_run_keeps_all_and_force_renews_the_key(home):
    first = report("--pool", "site-a", "--server", SERVER, "--batch", "local")
    files = files_of(home)
    files["site.toml"].write_text(files["site.toml"].read_text() + "# mine\n")
    before = {path: path.read_bytes() for path in files.values()}
    second = report("--pool", "site-a")
    assert {path: path.read_bytes() for path in before} == before
    assert second["publicKey"] == first["publicKey"]
    assert {file["action"] for file in second["files"]} == {"kept"}
    forced = report("--pool", "site-a", "--server", "wss://127.0.0.1:2", "--batch", "local", "--force")
    assert forced["publicKey"] != first["publicKey"]
    assert load(files["site.toml"]).nats.servers == ["wss://127.0.0.1:2"]
    assert files_of(home)["site.toml.old"].read_bytes() == before[files["site.toml"]]


def test_a_dry_run_writes_nothing(home):
    done = report("--pool", "site-a", "--server", SERVER, "--batch", "local", "--dry-run")
    assert {file["action"] for file in done["files"]} == {"would write"}
    assert sorted(path.name for path in home.iterdir()) == ["bin"]
    assert done["hub"] == "podbridge pool add site-a --key KEY --test"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--server", SERVER], "--pool is missing"),
        (["--pool", "site-a"], "--server is missing"),
        (["--pool", "a\n[nats]", "--server", SERVER], "--pool: "),
        (["--pool", "site-a", "--server", "hub:1"], "--server: "),
        (["--pool", "site-a", "--server", SERVER, "--batch", "lsf"], "batch.kind"),
        (["--pool", "site-a", "--server", SERVER, "--runtime", "docker"], "runtime.kind"),
        (["--pool", "site-a", "--server", SERVER, "--folder", "jobs"], "folder"),
        (["--pool", "site-a", "--server", SERVER, "--ca-file", "/nowhere"], "--ca-file: cannot read"),
        (["--pool", "site-a", "--server", SERVER, "--ca-file", "/etc/passwd"], "--ca-file: /etc/passwd is not allowed"),
        (["--pool", "site-a", "--server", SERVER, "--out", "/tmp/a%n"], "systemd unit"),
    ],
)
def test_a_bad_option_is_named_before_anything_is_written(home, words, message):
    done = init(*words)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
    assert sorted(path.name for path in home.iterdir()) == ["bin"]


def test_a_private_key_is_no_ca(home):
    key = home / "pair.pem"
    key.write_bytes(
        make_pair(["ca"], 86400, now=0).ca + b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    )
    done = init("--pool", "site-a", "--server", SERVER, "--ca-file", key)
    assert "private key" in str(done.exception)


def test_a_terminal_is_asked_for_what_is_missing(home, monkeypatch):
    monkeypatch.setattr(init_command, "_is_terminal", lambda: True)
    ca = home / "hub.crt"
    ca.write_bytes(make_pair(["ca"], 86400, now=0).ca)
    done = init(input=f"site-a\n{SERVER}\n{ca}\n\n\n{home}/jobs\n")
    assert "Name of the pool" in done.output and "[local]" in done.output
    config = load(files_of(home)["site.toml"])
    assert (config.pool, config.folder, config.batch.kind) == ("site-a", f"{home}/jobs", "local")
    assert config.nats.servers == [SERVER]


def test_the_system_unit_is_for_root_to_install(home):
    done = report("--pool", "site-a", "--server", SERVER, "--batch", "local", "--unit", "system")
    unit = files_of(home)["podbridge-site-a.service"].read_text()
    assert "User=" in unit and "WantedBy=multi-user.target" in unit
    assert done["start"].startswith("sudo install -m 644 ")
    assert not (home / ".config" / "systemd").exists()


def test_a_folder_that_others_can_read_fails_the_check(home):
    (home / "jobs").mkdir()
    (home / "jobs").chmod(0o750)
    done = report("--pool", "site-a", "--server", SERVER, "--batch", "local", "--folder", home / "jobs")
    (folder,) = (check for check in done["checks"] if check["what"] == "folder")
    assert folder["result"] == "FAIL" and "chmod 700" in folder["fix"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_root_is_warned(home, monkeypatch, uid):
    monkeypatch.setattr("os.geteuid", lambda: uid)
    done = init("--pool", "site-a", "--server", SERVER, "--batch", "local", "--dry-run")
    assert ("run as root" in done.stderr) == (uid == 0)
    assert "run as root" not in done.stdout


def test_a_configuration_of_another_pool_is_not_used(home):
    report("--pool", "site-a", "--server", SERVER, "--batch", "local")
    done = init("--pool", "site-b", "--out", home / ".config" / "podbridge" / "site-a")
    assert "it is of pool site-a, not site-b" in str(done.exception)


def test_a_configuration_that_exists_keeps_its_own_secret(home):
    base = home / ".config" / "podbridge" / "site-a"
    base.mkdir(parents=True)
    text = f'pool = "site-a"\nfolder = "{home}/jobs"\n[batch]\nkind = "local"\n[nats]\nservers = ["{SERVER}"]\n'
    (base / "site.toml").write_text(text + f'seed_file = "{home}/my.seed"\n')
    done = report("--pool", "site-a")
    assert done["publicKey"] == public_key((home / "my.seed").read_text().strip())
    (home / "password").write_text("hunter2")
    (home / "password").chmod(0o600)
    (base / "site.toml").write_text(text + f'user = "pool-site-a"\npassword_file = "{home}/password"\n')
    done = report("--pool", "site-a")
    assert (done["publicKey"], done["hub"]) == ("", "")
    assert not (base / "site.seed").exists()


@pytest.mark.parametrize(
    ("programs", "batch", "runtime"),
    [
        ((), "local", "none"),
        (("sbatch", "qsub", "apptainer", "podman"), "slurm", "apptainer"),
        (("condor_submit", "podman"), "htcondor", "podman"),
        (("qsub", "ch-run"), "pbs", "charliecloud"),
    ],
)
def test_batch_system_and_runtime_follow_from_the_programs(programs, batch, runtime):
    found = {name: f"/usr/bin/{name}" for name in programs}.get
    assert site_checks.detect_batch(found) == batch
    assert site_checks.detect_runtime(found) == runtime


@pytest.mark.parametrize(("problem", "result"), [("", "ok"), ("no machine runs groups of pods", "warn")])
def test_a_batch_system_that_runs_no_groups_as_it_is_configured_is_a_warning(home, monkeypatch, problem, result):
    class Batch:
        def version(self):
            return "htcondor 23"

        def gang_problem(self):
            return problem

    monkeypatch.setattr(site_checks, "make_batch_system", lambda *_: Batch())
    finding = next(
        found
        for found in site_checks.check(parse(f'pool = "p"\nfolder = "{home}/site"\nnats.servers = ["{SERVER}"]\n'))
        if found.what == "batch system"
    )
    assert (finding.result, problem in finding.found, "htcondor 23" in finding.found) == (result, True, True)
