"""The messages about extras that are not installed."""

import re
import tomllib
from pathlib import Path

import pytest

from bridge.apps.cli import main as command_line
from bridge.apps.cli import slurm_sd
from bridge.apps.cli.extras import MODULES, missing_extra

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
INDIRECT = {"werkzeug", "urllib3"}


def name(requirement):
    """Return the module of a requirement: the packages of OpenTelemetry share one."""
    found = re.match(r"[\w-]+", requirement)[0]
    return "opentelemetry" if found.startswith("opentelemetry-") else found


def missing(module, command):
    return missing_extra(ModuleNotFoundError("No module", name=module), command)


def test_the_table_has_the_modules_of_the_extras_and_no_others():
    declared = PROJECT["optional-dependencies"]
    wanted = {}
    for extra, requirements in declared.items():
        for requirement in requirements:
            wanted.setdefault(name(requirement), set()).add(extra)
    assert {module: set(extras) for module, extras in MODULES.items() if module not in INDIRECT} == wanted


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("kubernetes", "scheduler", "hub"),
        ("opentelemetry.sdk", "scheduler", "otel"),
        ("opentelemetry.sdk", "plugin", "otel"),
        ("kubernetes.client", "get", "hub"),
        ("flask", "run", "hub"),
        ("flask", "plugin", "plugin"),
        ("requests", "plugin", "hub"),
        ("urllib3", "", "hub"),
    ],
)
def test_a_missing_module_names_the_extra(module, command, extra):
    error = missing(module, command)
    assert str(error).endswith(f"install the extra {extra}: pip install 'podbridge[{extra}]'")
    assert str(error).startswith(module.partition(".")[0])


@pytest.mark.parametrize("module", ["nats", "bridge.absent", None])
def test_a_module_of_no_extra_is_an_error_of_the_code(module):
    assert missing(module, "run") is None


@pytest.mark.parametrize("program", [command_line, slurm_sd])
def test_a_module_of_no_extra_is_raised(program, monkeypatch):
    def absent(*_, **__):
        raise ModuleNotFoundError("No module named 'bridge.absent'", name="bridge.absent")

    monkeypatch.setattr("sys.argv", ["podbridge"])
    if program is slurm_sd:
        monkeypatch.setattr(slurm_sd.plugin, "main", absent)
    else:
        monkeypatch.setattr(command_line, "cli", absent)
    with pytest.raises(ModuleNotFoundError):
        program.main()
