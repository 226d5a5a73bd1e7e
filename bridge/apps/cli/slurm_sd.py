"""``slurm-sd``: the interLink Slurm plugin's command, with its options and variables; it runs ``podbridge plugin``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from bridge.apps.cli import process_end
from bridge.apps.cli.extras import missing_extra
from bridge.apps.cli.plugin_command import plugin
from bridge.errors import BridgeError

DEFAULT_PATH = "/etc/interlink/SlurmConfig.yaml"
_LEVELS = {"verbose": "debug", "errorsonly": "error"}
_TRUE, _FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")
HELP = f"""\
Usage: slurm-sd [-SlurmConfigpath FILE] [-verbose] [-errorsonly] [OPTIONS of podbridge plugin]

Serve interLink's REST API from the configuration of the interLink Slurm plugin: -SlurmConfigpath, else SLURMCONFIGPATH,
else {DEFAULT_PATH}. For all other options, see podbridge plugin --help.
"""


def words(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the arguments of ``podbridge plugin``; raises :class:`click.UsageError`.

    As in Go, one dash and two are equal, and so are ``-x=V`` and ``-x V``.
    """
    path, rest, left = environ.get("SLURMCONFIGPATH") or DEFAULT_PATH, list(arguments), []
    level = ""
    while rest:
        word = rest.pop(0)
        name, sign, value = word.lstrip("-").partition("=")
        own = word.startswith("-") and len(word) - len(word.lstrip("-")) <= 2
        if own and name == "SlurmConfigpath":
            if not sign and not rest:
                raise click.UsageError(f"option {word} needs a value")
            path = (value if sign else rest.pop(0)) or path
        elif own and name in _LEVELS:
            if sign and value not in (*_TRUE, *_FALSE):
                raise click.UsageError(f"option {word}: {value!r} is not allowed; allowed: true, false")
            if not sign or value in _TRUE:
                level = "debug" if level == "debug" else _LEVELS[name]  # -verbose wins, as in the plugin
        else:
            left.append(word)
    return ["--slurm-config", path, *(["--log-level", level] if level else []), *left]


def program() -> None:
    """Run the command and end the process."""
    process_end.run(main)


def main() -> None:
    """Run the command."""
    arguments = sys.argv[1:]
    if {"-h", "-help", "--help"} & set(arguments):
        click.echo(HELP, nl=False)
        return
    try:
        plugin.main(words(arguments, os.environ), prog_name="slurm-sd")
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except BridgeError as error:
        click.echo(f"slurm-sd: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), err=True)
        sys.exit(1)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, "plugin")
        if missing is None:
            raise
        click.echo(f"slurm-sd: {missing}", err=True)
        sys.exit(1)
