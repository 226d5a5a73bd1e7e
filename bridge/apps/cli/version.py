"""``podbridge version``: the versions of this program and of the systems that it uses."""

from __future__ import annotations

import json
import platform
from typing import Any

import click
import yaml

from bridge import __version__
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.errors import BridgeError


def run(connection: ConnectionOptions, form: str, *, client: bool) -> int:
    """Print the versions; return the exit status, 1 if a configured system did not answer. ``client``: ask none."""
    found: dict[str, Any] = {"podbridge": __version__, "python": platform.python_version()}
    problems: dict[str, str] = {}
    if not client:
        _servers(connection, found, problems)
    if form == "json":
        click.echo(json.dumps(found | ({"errors": problems} if problems else {}), indent=2))
    elif form == "yaml":
        click.echo(yaml.safe_dump(found | ({"errors": problems} if problems else {}), sort_keys=False), nl=False)
    else:
        for name, version in found.items():
            click.echo(f"{name}: {version}")
        for name, problem in problems.items():
            click.echo(f"{name}: {problem}", err=True)
    return 1 if problems else 0


def _servers(connection: ConnectionOptions, found: dict[str, Any], problems: dict[str, str]) -> None:
    from bridge.apps.cli.session import CommandSession

    session = CommandSession(connection)
    try:
        found["kubernetes"] = session.kube.get("/version").get("gitVersion", "")
    except BridgeError as error:
        problems["kubernetes"] = str(error)
    if session.config.slurm_rest_api:
        try:
            found["slurmrestd"] = session.slurm.version.name
            found["slurm"] = session.slurm.slurm_release
        except BridgeError as error:
            problems["slurm"] = str(error)
