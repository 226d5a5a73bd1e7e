"""``podbridge submitter``: the process at a site."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from bridge.apps.cli.connection_options import FILE, FOLDER
from bridge.apps.cli.output import output_option


@click.group(
    "submitter",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:\n\n  podbridge submitter init --pool cineca\n\n"
    "  podbridge submitter --config ~/.config/podbridge/cineca/site.toml",
)
@click.option("--pool", help="Name of the pool. Default: the key pool of the configuration.")
@click.option(
    "--config", type=FILE, envvar="PODBRIDGE_SITE_CONFIG", show_envvar=True, help="Configuration file (TOML)."
)
@click.pass_context
def submitter(context: click.Context, pool: str | None, config: Path | None) -> None:
    """Run the submitter of a pool: it receives jobs from the hub and submits them to the batch system."""
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise click.UsageError(
            "--config FILE is missing (podbridge submitter init writes one; podbridge submitter config prints all keys)"
        )
    from bridge.site.service import run

    sys.exit(run(config, pool))


@submitter.command(
    "init",
    epilog="""Examples:

\b
  podbridge submitter init --pool cineca
  podbridge submitter init --pool cineca --server wss://podbridge.example:443 --set slurm.partition=batch
""",
)
@click.option("--pool", help="Name of the pool.")
@click.option("--server", "servers", multiple=True, metavar="URL", help="NATS server of the hub. Can be repeated.")
@click.option("--ca-file", type=FILE, help="Its CA certificate. Default: the machine's.")
@click.option("--batch", help="Value of batch.kind. Default: what is on PATH, else local.")
@click.option("--runtime", help="Value of runtime.kind. Default: what is on PATH, else none.")
@click.option("--folder", type=FOLDER, help="Directory of jobs. Default: ~/podbridge-jobs/POOL.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="More keys of site.toml. Can be repeated.")
@click.option("--out", type=FOLDER, help="Directory of the files. Default: ~/.config/podbridge/POOL.")
@click.option(
    "--unit",
    type=click.Choice(["user", "system", "none"]),
    default="user",
    show_default=True,
    help="systemd unit; system: root installs it.",
)
@click.option("--force", is_flag=True, help="Replace existing files and the key.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
@output_option("text", "json", "yaml")
def init(**options: Any) -> None:
    """Write and check all files of a site, and print how to start it and how the hub adds it.

    The files are site.toml, site.seed (the key), ca.crt and a systemd unit. A second run keeps and checks them. On a
    terminal, it asks for what is missing. The exit status is 1 if a check has failed.
    """
    from bridge.apps.cli.sites.init_command import InitOptions, run

    sys.exit(run(InitOptions(**options)))


@submitter.command(
    "config",
    epilog="Examples:\n\n  podbridge submitter config > site.toml\n\n  podbridge submitter config --check site.toml",
)
@click.option("--check", type=FILE, help="Check this file and print its errors.")
def show_config(check: Path | None) -> None:
    """Print a documented configuration with all defaults, or check a file."""
    if check is None:
        from bridge.site.config.sample import sample

        click.echo(sample(), nl=False)
        return
    from bridge.site.config.site_config import load

    config = load(check)
    click.echo(f"{check}: pool {config.pool}, {config.batch.kind}, BuildConfig {config.buildconfig().digest}")


@submitter.command("convert", epilog="Example:\n\n  podbridge submitter convert SlurmConfig.yaml --pool site-a")
@click.argument("file", type=FILE)
@click.option("--pool", default="my-pool", show_default=True, help="Name of the pool.")
def convert_config(file: Path, pool: str) -> None:
    """Convert the configuration of an interLink plugin, and print a documented site.toml.

    FILE is the SlurmConfig.yaml of the Slurm plugin, or the build.conf of the NATS plugin. Comments at the top of the
    output, and warnings on standard error, name what could not be converted.
    """
    from bridge.errors import ConfigError
    from bridge.site.plugin_configs import convert

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from error
    conversion = convert(text, str(file), os.environ, os.getcwd(), pool)
    for warning in conversion.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(conversion.text, nl=False)
