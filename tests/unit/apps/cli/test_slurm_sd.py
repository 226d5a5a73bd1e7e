"""slurm-sd: the options and variables of the interLink Slurm plugin's command (interlink.md 3.1)."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.cli.main import cli
from bridge.apps.cli.slurm_sd import DEFAULT_PATH, words
from bridge.errors import ConfigError
from bridge.site.live_slurm_config import open_config, report

LEAST = "DataRootFolder: jobs/\nSidecarPort: 4001\nSingularityPrefix: x\nExportPodData: true\n"


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ([], {}, ["--slurm-config", DEFAULT_PATH]),
        ([], {"SLURMCONFIGPATH": "/a"}, ["--slurm-config", "/a"]),
        (["-SlurmConfigpath", "/b"], {"SLURMCONFIGPATH": "/a"}, ["--slurm-config", "/b"]),
        (["--SlurmConfigpath=/b"], {}, ["--slurm-config", "/b"]),
        (["-SlurmConfigpath="], {"SLURMCONFIGPATH": "/a"}, ["--slurm-config", "/a"]),
        (["-verbose"], {}, ["--slurm-config", DEFAULT_PATH, "--log-level", "debug"]),
        (["-errorsonly=true"], {}, ["--slurm-config", DEFAULT_PATH, "--log-level", "error"]),
        (["-errorsonly", "--verbose", "-errorsonly"], {}, ["--slurm-config", DEFAULT_PATH, "--log-level", "debug"]),
        (["-verbose=false"], {}, ["--slurm-config", DEFAULT_PATH]),
        (
            ["--listen", "0.0.0.0:4000", "-verbose", "--token-file=t"],
            {},
            ["--slurm-config", DEFAULT_PATH, "--log-level", "debug", "--listen", "0.0.0.0:4000", "--token-file=t"],
        ),
    ],
)
def test_options(arguments: list[str], environ: dict[str, str], expected: list[str]) -> None:
    assert words(arguments, environ) == expected


@pytest.mark.parametrize("arguments", [["-SlurmConfigpath"], ["-verbose=maybe"]])
def test_what_is_wrong_is_named(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError, match="option"):
        words(arguments, {})


@given(st.lists(st.text(max_size=8), max_size=4))
def test_all_other_words_are_passed_on(arguments: list[str]) -> None:
    own = ("SlurmConfigpath", "verbose", "errorsonly")
    others = [word for word in arguments if word.lstrip("-").partition("=")[0] not in own]
    assert words(others, {})[2:] == others


def test_the_log_names_rights_and_what_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SlurmConfig.yaml").write_text(LEAST)
    live, conversion = open_config(Path("SlurmConfig.yaml"))
    assert (conversion.listen, live.config.adopt_from) == ("127.0.0.1:4001", f"{tmp_path}/jobs")
    with caplog.at_level(logging.INFO):
        report(live.config, conversion)
    pairs = [record.kv for record in caplog.records]  # type: ignore[attr-defined]
    assert pairs[0]["limits"] == "allow_user_flags,allow_pre_exec,allow_runtime_options"
    assert pairs[1] == {"why": "SingularityPrefix: has no meaning, as in the plugin itself"}
    assert "--token-file" in caplog.records[2].message and pairs[2] == {"address": "127.0.0.1:4001"}


def test_the_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "SlurmConfig.yaml"
    path.write_text(LEAST)
    live, _ = open_config(path)
    assert not live.refresh() and live.config.flavors == []
    path.write_text(LEAST + "Flavors: {big: {CPUDefault: 8}}\n")
    assert live.refresh() and live.config.flavors[0].cpu == 8
    path.write_text("DataRootFolder: [\n")
    assert not live.refresh() and live.config.flavors[0].cpu == 8


def test_a_file_that_is_not_there_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        open_config(tmp_path / "none")
    assert "SLURMCONFIGPATH" in (wrong.value.hint or "")


def test_one_source_of_pools() -> None:
    from click.testing import CliRunner

    done = CliRunner().invoke(cli, ["plugin", "--slurm-config", "a", "--site", "b"])
    assert done.exit_code == 2 and "--slurm-config FILE" in done.output
