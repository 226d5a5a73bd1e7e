"""The options of the commands that connect to a cluster: ``--config``, ``--kubeconfig`` and ``--context``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
OLD_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)
config_option = click.option(
    "--config",
    type=FILE,
    envvar="PODBRIDGE_CONFIG",
    show_envvar=True,
    help="Configuration file (YAML). Default: what the cluster publishes in kube-public.",
)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """The configuration file and the kubeconfig context of a command. ``None``: the default of the option.

    Without a file, a command reads the part of the configuration that the cluster publishes
    (:mod:`bridge.apps.cli.hub_config`).
    """

    config: Path | None
    kubeconfig: str | None
    context: str | None


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--config``, ``--kubeconfig`` and ``--context``; pass them as the argument ``connection``."""

    @functools.wraps(command)
    def call(*, config: Path | None, kubeconfig: str | None, context: str | None, **others: Any) -> Any:
        return command(connection=ConnectionOptions(config, kubeconfig, context), **others)

    decorated: Callable[..., Any] = call
    for option in (
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--kubeconfig", help="Default: $KUBECONFIG, ~/.kube/config, then the pod's service account."),
        config_option,
    ):
        decorated = option(decorated)
    return decorated
