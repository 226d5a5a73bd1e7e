"""``podbridge``: the command line. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from bridge import __version__
from bridge.cli.nats import nats
from bridge.cli.rbac import rbac
from bridge.cli.submitter import submitter
from bridge.errors import BridgeError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Where:
    """Which configuration and which cluster a command works on."""

    config: Path | None
    kubeconfig: str | None
    context: str | None


def where_options(command: F) -> F:
    """Add ``--config``, ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option("--context", help="Context of the kubeconfig."),
        click.option("--kubeconfig", help="Default: $KUBECONFIG, ~/.kube/config, then the pod's service account."),
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="PODBRIDGE_CONFIG",
            show_envvar=True,
            help="Configuration file (YAML).",
        ),
    ):
        command = option(command)
    return command


output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table", show_default=True
)
namespace_option = click.option("-n", "--namespace", help="Default: the kubeconfig's, else default.")


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:\n\n  podbridge check\n\n  podbridge get pods -A\n\n  podbridge explain pod train-7 -n hpc",
)
@click.version_option(__version__, prog_name="podbridge")
def cli() -> None:
    """Run Kubernetes pods on batch systems: a colocated Slurm, and remote pools."""


def _part(name: str, help_text: str, parts: tuple[str, ...]) -> None:
    @cli.command(name, help=help_text)
    @where_options
    def command(config: Path | None, kubeconfig: str | None, context: str | None) -> None:
        sys.exit(_run(Where(config, kubeconfig, context), parts))


def _run(where: Where, parts: tuple[str, ...]) -> int:
    from bridge import config as configuration
    from bridge import logs
    from bridge.cli.hub import Hub

    config = configuration.load(where.config)
    logs.setup(config.logging.level, config.logging.format)
    return Hub(config, parts, where.kubeconfig, where.context).run()


_part("run", "Run admission, scheduler and controllers in one process.", ("admission", "scheduler", "controllers"))
_part("scheduler", "Run the scheduler: it asks Slurm for room and binds pods to what Slurm gives.", ("scheduler",))
_part("controllers", "Run the controllers: they keep nodes, pods and jobs in step.", ("controllers",))


@cli.command("admission", help="Run the webhook that admits pods. With --unregister: take its registration away.")
@where_options
@click.option("--unregister", is_flag=True, help="Remove the webhook configurations and exit.")
def admission_command(config: Path | None, kubeconfig: str | None, context: str | None, unregister: bool) -> None:
    """Run or unregister the webhook."""
    where = Where(config, kubeconfig, context)
    if not unregister:
        sys.exit(_run(where, ("admission",)))
    from admission.server import unregister as take_away
    from bridge import config as configuration
    from bridge.kube.client import KubeClient

    for name in take_away(configuration.load(config), KubeClient.load(kubeconfig, context)):
        click.echo(f"removed {name}")


@cli.command()
@where_options
@output_option
def check(config: Path | None, kubeconfig: str | None, context: str | None, output: str) -> None:
    """Look at connections, permissions, versions, clocks and certificates: what is wrong, and how to mend it.

    Exit status 1 when something must be mended.
    """
    from bridge.cli.check import run

    sys.exit(run(Where(config, kubeconfig, context), output))


@cli.group(
    epilog="Examples:\n\n  podbridge get pods -A\n\n  podbridge get jobs -o json\n\n  podbridge get nodes -o wide\n\n"
    "  podbridge get pools"
)
def get() -> None:
    """List pods, jobs, nodes or pools, both sides in one row."""


def _getter(kind: str, help_text: str) -> None:
    @get.command(kind, help=help_text)
    @where_options
    @namespace_option
    @click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
    @click.option("-l", "--selector", default="", help="Label selector.")
    @click.option("--no-headers", is_flag=True)
    @output_option
    def command(
        config: Path | None,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        all_namespaces: bool,
        selector: str,
        no_headers: bool,
        output: str,
    ) -> None:
        from bridge.cli import get as getting

        where = Where(config, kubeconfig, context)
        getting.run(kind, where, None if all_namespaces else namespace, all_namespaces, selector, output, no_headers)


_getter("pods", "Pods of the scheduler with their Slurm jobs.")
_getter("jobs", "Placeholder jobs of this cluster with their pods.")
_getter("nodes", "Nodes with their state on both sides.")
_getter("pools", "Pools: whether they are ready, and what is taken of them.")


@cli.group()
def explain() -> None:
    """Say why something is as it is."""


@explain.command("pod", epilog="Example:\n\n  podbridge explain pod train-7 -n slurm-bridge")
@click.argument("name")
@where_options
@namespace_option
@output_option
def explain_pod(
    name: str, config: Path | None, kubeconfig: str | None, context: str | None, namespace: str | None, output: str
) -> None:
    """Say why pod NAME waits, or where it runs: what Kubernetes and Slurm know of it, and what to do next."""
    from bridge.cli.explain import run

    run(Where(config, kubeconfig, context), namespace, name, output)


@cli.command(epilog="Examples:\n\n  podbridge render -f pod.yaml\n\n  podbridge render -f - --api v0.0.42 < pod.yaml")
@click.option("-f", "--filename", required=True, type=click.File("r"), help="Manifest with pods or Jobs; - for stdin.")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), envvar="PODBRIDGE_CONFIG", show_envvar=True)
@click.option("--api", default=None, help="API version of slurmrestd. Default: the newest known.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
def render(filename: Any, config: Path | None, api: str | None, output: str) -> None:
    """Show, offline, what the webhook would change in a manifest's pods and what Slurm would be asked.

    Exit status 1 when a pod would be refused.
    """
    from bridge.cli.render import run

    sys.exit(run(filename, config, api, output))


@cli.group("config")
def config_group() -> None:
    """Look at the configuration."""


@config_group.command("check")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def config_check(file: Path) -> None:
    """Read FILE and say what is wrong with it, or show it with all defaults."""
    import yaml

    from bridge import config as configuration

    loaded = configuration.load(file)
    click.echo(yaml.safe_dump(loaded.model_dump(mode="json", by_alias=True), sort_keys=False), nl=False)


@config_group.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the configuration."""
    import json

    from bridge.config import Config

    click.echo(json.dumps(Config.model_json_schema(by_alias=True), indent=2))


@cli.group(
    epilog="Examples:\n\n  podbridge brake status\n\n  podbridge brake hold slurm\n\n  podbridge brake confirm slurm"
)
def brake() -> None:
    """Look at the brake on mass ending, and answer it.

    It engages when many jobs vanish at once: of Slurm (the brake "slurm") or of a pool (pool.NAME).
    """


@brake.command("status")
@where_options
def brake_status(config: Path | None, kubeconfig: str | None, context: str | None) -> None:
    """Print every engaged brake: the pods that it holds, and until when."""
    from bridge.cli.brake import status

    status(Where(config, kubeconfig, context))


@brake.command("confirm")
@where_options
@click.argument("name")
def brake_confirm(config: Path | None, kubeconfig: str | None, context: str | None, name: str) -> None:
    """Say that the missing jobs are gone for good: their pods are ended now."""
    from bridge.brake import Word
    from bridge.cli.brake import answer

    answer(Where(config, kubeconfig, context), name, Word.CONFIRM)


@brake.command("hold")
@where_options
@click.argument("name")
def brake_hold(config: Path | None, kubeconfig: str | None, context: str | None, name: str) -> None:
    """Hold the pods until their jobs are there again, or until podbridge brake confirm."""
    from bridge.brake import Word
    from bridge.cli.brake import answer

    answer(Where(config, kubeconfig, context), name, Word.HOLD)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: source <(podbridge completion bash)."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(cli, {}, "podbridge", "_PODBRIDGE_COMPLETE").source())


cli.add_command(nats)
cli.add_command(rbac)
cli.add_command(submitter)


def main() -> None:
    """Run the command line; errors of the project end with one line on standard error and status 1."""
    try:
        cli(prog_name="podbridge")
    except BridgeError as error:
        click.echo(f"podbridge: {error}", err=True)
        if error.hint:
            click.echo(f"podbridge: {error.hint}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.exit(0)
