"""The commands that show the state of objects and of the installation: ``explain``, ``top`` and ``version``."""

from __future__ import annotations

import sys

import click

from bridge.apps.cli import completing
from bridge.apps.cli.connection_options import ConnectionOptions, connection_options
from bridge.apps.cli.kinds import KindType, ObjectName

report_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)


def _one_name(context: click.Context, _parameter: click.Parameter, name: str | None) -> str:
    """Return the name of the object, which is the second argument or a part of the first."""
    _, named = context.params["kind"]
    if bool(name) == bool(named):
        raise click.UsageError("Name one object: KIND NAME or KIND/NAME.")
    return name or str(named)


@click.command(
    epilog="Examples:\n\n  podbridge explain pod train-7 -n hpc\n\n  podbridge explain job 1234\n\n"
    "  podbridge explain node node-3 -o yaml\n\n  podbridge explain pool/site-a\n\n  podbridge explain queue batch"
)
@click.argument("kind", type=KindType())
@click.argument(
    "name",
    type=ObjectName(optional=True),
    required=False,
    metavar="NAME",
    shell_complete=completing.names(""),
    callback=_one_name,
)
@connection_options
@click.option(
    "-n",
    "--namespace",
    type=ObjectName(optional=True),
    metavar="TEXT",
    shell_complete=completing.namespaces,
    help="Of a pod. Default: the kubeconfig's, else default.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "wide", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Format of the output; wide: all pending workloads of a MasterQueue.",
)
def explain(
    kind: tuple[str, str], name: str, connection: ConnectionOptions, namespace: str | None, output: str
) -> None:
    """Print why an object is in its state, the next step, and all facts from Kubernetes and from Slurm.

    The object is a pod, a Slurm job, a node, a pool or a MasterQueue. KIND/NAME, as in kubectl, is the same as KIND
    NAME.
    """
    from bridge.apps.cli.explain_objects import run

    run(connection, kind[0], name, namespace, output)


@click.command(epilog="Examples:\n\n  podbridge top\n\n  podbridge top --once\n\n  podbridge top -o json")
@connection_options
@click.option("--once", is_flag=True, help="Print the state once. Always so without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(min=1), default=2.0, show_default=True, help="Seconds between two reads."
)
@report_option
def top(connection: ConnectionOptions, once: bool, interval: float, output: str) -> None:
    """Show pods, jobs, problems, and the use of nodes and pools on one screen, until Ctrl-C.

    JSON and YAML are printed once.
    """
    from bridge.apps.cli.top import run

    try:
        run(connection, output, once=once, interval=interval)
    except KeyboardInterrupt:
        sys.exit(130)


@click.command(epilog="Examples:\n\n  podbridge version\n\n  podbridge version --client\n\n  podbridge version -o json")
@connection_options
@click.option("--client", is_flag=True, help="Only the versions of podbridge and Python; no system is asked.")
@report_option
def version(connection: ConnectionOptions, client: bool, output: str) -> None:
    """Print the versions of podbridge, Python, Kubernetes, Slurm and its REST API.

    The exit status is 1 if a configured system does not answer.
    """
    from bridge.apps.cli.version import run

    sys.exit(run(connection, output, client=client))
