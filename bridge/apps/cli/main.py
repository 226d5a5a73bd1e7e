"""``podbridge``: the command line. Each command imports its own large dependencies, so that ``--help`` is fast."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from bridge import __version__, logs
from bridge.apps.cli import completing
from bridge.apps.cli.brake_command import brake
from bridge.apps.cli.connection_options import FILE, ConnectionOptions, config_option, connection_options
from bridge.apps.cli.convert import convert
from bridge.apps.cli.extras import missing_extra
from bridge.apps.cli.kinds import KindGroup, ObjectName, singular
from bridge.apps.cli.nats_command import nats
from bridge.apps.cli.observe import explain, top, version
from bridge.apps.cli.output import output_option, print_document, printable
from bridge.apps.cli.plugin_command import plugin
from bridge.apps.cli.pool_command import pool
from bridge.apps.cli.rbac import rbac
from bridge.apps.cli.submitter_command import submitter
from bridge.apps.cli.token_command import token
from bridge.errors import BridgeError

DAEMONS = ("run", "admission", "scheduler", "controllers", "submitter", "plugin", "slurm-hint")
"""The commands that a chart, a systemd unit or slurmctld runs."""


class CommandGroup(click.Group):
    """A group whose help has two lists, each description as its whole first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two lists."""
        shown = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        parts = [(name, shown[name]) for name in DAEMONS if name in shown]
        users = [(name, command) for name, command in shown.items() if name not in DAEMONS]
        for title, listed in (("Commands", users), ("Parts of podbridge, which run as services", parts)):
            with formatter.section(title):
                # without a limit, click shortens no description, and the formatter wraps the lines
                formatter.write_dl([(name, command.get_short_help_str(limit=1000)) for name, command in listed])


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:\n\n  podbridge check\n\n  podbridge get pods -A\n\n  podbridge explain pod train-7 -n hpc",
)
@click.version_option(__version__, prog_name="podbridge")
def cli() -> None:
    """Run Kubernetes pods on batch systems: a colocated Slurm, and remote pools."""


def _part(name: str, help_text: str, parts: tuple[str, ...]) -> None:
    @cli.command(name, help=help_text, epilog=f"Example:\n\n  podbridge {name} --config config.yaml")
    @connection_options
    def command(connection: ConnectionOptions) -> None:
        sys.exit(_run(connection, parts))


def _run(connection: ConnectionOptions, parts: tuple[str, ...]) -> int:
    from bridge.apps.hub.hub import Hub
    from bridge.config import hub as configuration

    config = configuration.load(connection.config)
    logs.setup(config.logging.level, config.logging.format)
    return Hub(config, parts, connection.kubeconfig, connection.context).run()


_part("run", "Run admission, scheduler and controllers in one process.", ("admission", "scheduler", "controllers"))
_part(
    "scheduler",
    "Run the scheduler: it submits placeholder jobs to Slurm and binds pods to the allocated nodes.",
    ("scheduler",),
)
_part("controllers", "Run the controllers: they synchronize nodes, pods and jobs.", ("controllers",))


@cli.command(
    "admission",
    help="Run the admission webhook. With --unregister: remove the webhook configurations and exit.",
    epilog="Examples:\n\n  podbridge admission --config config.yaml\n\n  podbridge admission --unregister",
)
@connection_options
@click.option("--unregister", is_flag=True, help="Remove the webhook configurations and exit.")
def admission_command(connection: ConnectionOptions, unregister: bool) -> None:
    """Run or unregister the webhook."""
    if not unregister:
        sys.exit(_run(connection, ("admission",)))
    from admission.admission_app import unregister as remove_webhooks
    from bridge.config import hub as configuration
    from bridge.kube.kube_client import KubeClient

    kube = KubeClient.load(connection.kubeconfig, connection.context)
    for name in remove_webhooks(configuration.load(connection.config), kube):
        click.echo(f"removed {name}")


@cli.command(
    epilog="Examples:\n\n  podbridge check --config config.yaml\n\n  podbridge check -o json\n\n"
    "  podbridge check --before-install --config config.yaml"
)
@connection_options
@output_option("table", "wide", "json", "yaml")
@click.option(
    "--before-install",
    is_flag=True,
    help="Check only what needs no object of podbridge, and name the pods that the taint of Slurm's nodes would evict.",
)
def check(connection: ConnectionOptions, output: str, before_install: bool) -> None:
    """Check connections, permissions, versions, clocks and certificates, and print how to fix each problem.

    As text, each finding is printed as soon as it is known. A slurmrestd that does not answer is asked once. The exit
    status is 1 if a check has failed.
    """
    from bridge.apps.cli.check.check_command import run

    sys.exit(run(connection, output, before_install))


@cli.group(
    cls=KindGroup,
    epilog="Examples:\n\n  podbridge get pods -A\n\n  podbridge get jobs -o json\n\n  podbridge get nodes -o wide\n\n"
    "  podbridge get pools\n\n  podbridge get queues -o wide",
)
def get() -> None:
    """List pods, workloads, jobs, nodes, pools or queues. A row shows the state in Kubernetes and in Slurm."""


def _getter(kind: str, help_text: str, *examples: str) -> None:
    epilog = "Examples:\n\n" + "\n\n".join(f"  podbridge get {kind}{example}" for example in ("", *examples))
    word = singular(kind)

    @get.command(kind, help=help_text, epilog=epilog)
    @click.argument("names", nargs=-1, type=ObjectName(), metavar="[NAME]...", shell_complete=completing.names(word))
    @connection_options
    @completing.namespace_option("Default: all." if kind == "jobs" else "Default: the kubeconfig's, else default.")
    @click.option("-A", "--all-namespaces", is_flag=True, help="All namespaces.")
    @click.option("-l", "--selector", default="", help="Label selector; jobs of Slurm have no labels.")
    @click.option("--sort-by", metavar="COLUMN", help="Sort by a column; -COLUMN: the largest first.")
    @click.option("--no-headers", is_flag=True, help="No line with the names of the columns.")
    @click.option("-w", "--watch", is_flag=True, help="Print changes too, until Ctrl-C; -o json: one object a line.")
    @output_option(
        *("table", "wide", "json", "yaml", "name", "schema"),
        explained="; wide: more columns, name: for scripts, schema: the JSON schema of -o json",
    )
    def command(connection: ConnectionOptions, namespace: str | None, all_namespaces: bool, **settings: Any) -> None:
        from bridge.apps.cli import get as getting

        scope = getting.ALL_NAMESPACES if all_namespaces else namespace
        try:
            getting.run(kind, connection, scope, getting.Listing(**settings))
        except KeyboardInterrupt:
            sys.exit(130)

    if kind == "jobs":
        click.option("--all", "ended", is_flag=True, help="Also list ended jobs without a problem.")(command)


_getter(
    "pods",
    "List the pods of the scheduler with their Slurm jobs.",
    " -A",
    " train-7 -o json",
    " -n training -l app=train --sort-by age",
)
_getter(
    "workloads",
    "List the Jobs, JobSets and LeaderWorkerSets: how many of their pods are done, run, wait and have failed, and why.",
    " -A",
    " -o json",
)
_getter(
    "jobs",
    """List the Slurm jobs of this cluster with their pods. The column PROBLEM shows inconsistencies: a job without a
    pod, a pod without its job, different nodes, or an end on one side only.

    Ended jobs without a problem are omitted; --all lists them while Slurm does. Investigate only problems that last
    longer than a minute: a pod and its job are not read at the same moment.""",
    " -n training",
    " -o wide",
    " --all -o json",
)
_getter("nodes", "List the nodes with their state in Kubernetes and in Slurm.", " -o wide")
_getter("pools", "List the pools: their Ready condition, and the resources in use.", " -o json")

_getter(
    "queues",
    "List the MasterQueues: whether their objects are in step, flavors with quota, workloads, and the quota in use.",
    " -o wide",
    " -o name",
)


@cli.command(epilog="Examples:\n\n  podbridge render -f pod.yaml\n\n  podbridge render -f - --api v0.0.42 < pod.yaml")
@click.option(
    "-f",
    "--filename",
    required=True,
    type=click.File("r", "utf-8"),
    help="Manifest with pods or Jobs; - for standard input.",
)
@config_option
@click.option("--api", default=None, help="API version of slurmrestd. Default: the newest known.")
@output_option("yaml", "json")
def render(filename: Any, config: Path | None, api: str | None, output: str) -> None:
    """Print, without a cluster, the webhook's patch for each pod of a manifest and the job request to Slurm.

    The exit status is 1 if admission would refuse a pod.
    """
    from bridge.apps.cli.render import run

    sys.exit(run(filename, config, api, output))


@cli.group("config")
def config_group() -> None:
    """Check a configuration file, or print the JSON schema."""


@config_group.command("check", epilog="Example:\n\n  podbridge config check config.yaml")
@click.argument("file", type=FILE)
def config_check(file: Path) -> None:
    """Check FILE: print its errors, or the configuration with all defaults."""
    from bridge.config import hub as configuration

    print_document(configuration.load(file).model_dump(mode="json", by_alias=True), "yaml")


@config_group.command("schema", epilog="Example:\n\n  podbridge config schema > podbridge.schema.json")
def config_schema() -> None:
    """Print the JSON schema of the configuration."""
    from bridge.config.hub import Config

    print_document(Config.model_json_schema(by_alias=True), "json")


@cli.command(
    "slurm-hint",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True},
    epilog="Examples:\n\n  podbridge slurm-hint --directory /run/podbridge\n\n"
    "  podbridge slurm-hint --url https://podbridge-hints.example.org:10270 --token-file FILE",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def slurm_hint(arguments: tuple[str, ...]) -> None:
    """Tell podbridge that a job of Slurm began or ended. For PrologSlurmctld and EpilogSlurmctld."""
    from bridge.apps.cli.slurm_hint import run

    sys.exit(run(arguments))


@cli.command(
    epilog="Examples:\n\n  podbridge dashboard\n\n  podbridge dashboard -n training --port 0\n\n"
    "  podbridge dashboard --sign-in --host 0.0.0.0 --tls-cert tls.crt --tls-key tls.key"
)
@connection_options
@click.option("-n", "--namespace", help="Show the pods of this namespace only. Default: all namespaces.")
@click.option("--port", type=click.IntRange(0, 65535), default=8088, show_default=True, help="0: a free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--sign-in",
    is_flag=True,
    help="Users sign in with a token of the API server and see what their roles allow. Required for other addresses "
    "than those of loopback.",
)
@click.option(
    "--allowed-host", "hosts", multiple=True, metavar="NAME[:PORT]", help="With --sign-in: name of the page in URLs."
)
@click.option("--tls-cert", type=FILE, help="Certificate chain. Read on change.")
@click.option("--tls-key", type=FILE, help="Private key. Read on change.")
def dashboard(connection: ConnectionOptions, tls_cert: Path | None, tls_key: Path | None, **settings: Any) -> None:
    """Serve a read-only web page with pools, nodes, pods, the reasons of waiting pods, and logs."""
    from bridge.apps.cli.dashboard_command import run
    from bridge.serving.client_access import Files

    sys.exit(run(connection, {**settings, "files": Files(cert=tls_cert, key=tls_key)}))


@cli.command(epilog="Examples:\n\n  source <(podbridge completion bash)\n\n  podbridge completion fish | source")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL: source <(podbridge completion bash)."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(cli, {}, "podbridge", "_PODBRIDGE_COMPLETE").source())


for _command in (brake, convert, explain, top, version, nats, pool, rbac, plugin, submitter, token):
    cli.add_command(_command)


def main(name: str = "podbridge") -> None:
    """Run the command line, as ``name`` in its help texts.

    A :class:`BridgeError` is printed to standard error, and the exit status is 1. So is a module that is not installed
    because its extra is not.
    """
    try:
        cli(prog_name=name, color=False if os.environ.get("NO_COLOR") else None)  # https://no-color.org
    except BridgeError as error:
        _fail(error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, next(iter(sys.argv[1:]), ""))
        if missing is None:
            raise
        _fail(missing)
    except BrokenPipeError:
        sys.exit(0)


def _fail(error: BridgeError) -> NoReturn:
    """Print an error and its hint to standard error, and exit with status 1."""
    for text in filter(None, (str(error), error.hint)):
        click.echo("podbridge: " + "\n".join(map(printable, text.splitlines())), err=True)
    sys.exit(1)
