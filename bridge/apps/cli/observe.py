"""The commands that show the state of objects: ``describe``, ``top``, ``version``, and ``explain job`` and ``pool``."""

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


@click.command(
    epilog="Examples:\n\n  podbridge describe pod train-7 -n hpc\n\n  podbridge describe job 1234\n\n"
    "  podbridge describe node node-3 -o yaml\n\n  podbridge describe pool site-a\n\n  podbridge describe queue batch"
)
@click.argument("kind", type=KindType())
@click.argument(
    "name", type=ObjectName(optional=True), required=False, metavar="NAME", shell_complete=completing.names("")
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
@report_option
def describe(
    kind: tuple[str, str], name: str | None, connection: ConnectionOptions, namespace: str | None, output: str
) -> None:
    """Print all facts about a pod, a Slurm job, a node, a pool or a MasterQueue, from Kubernetes and from Slurm.

    KIND/NAME, as in kubectl, is the same as KIND NAME.

    For the reason of a state and the next step, use podbridge explain.
    """
    from bridge.apps.cli.describe import run

    if bool(name) == bool(kind[1]):
        raise click.UsageError("Name one object: KIND NAME or KIND/NAME.")
    run(connection, kind[0], name or kind[1], namespace, output)


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


@click.command("job", epilog="Examples:\n\n  podbridge explain job 1234\n\n  podbridge explain job 1234 -o json")
@click.argument("job_id", type=click.IntRange(min=1), metavar="JOB", shell_complete=completing.names("job"))
@connection_options
@report_option
def explain_job(job_id: int, connection: ConnectionOptions, output: str) -> None:
    """Print why Slurm job JOB is pending or where it runs, its pods, inconsistencies between them, and next steps."""
    from bridge.apps.cli.explain_objects import job

    job(connection, job_id, output)


@click.command("pool", epilog="Examples:\n\n  podbridge explain pool site-a\n\n  podbridge explain pool site-a -o yaml")
@click.argument("name", type=ObjectName(), shell_complete=completing.names("pool"))
@connection_options
@report_option
def explain_pool(name: str, connection: ConnectionOptions, output: str) -> None:
    """Print whether pool NAME is ready, what is in use, and whether each waiting pod that selects it fits."""
    from bridge.apps.cli.explain_objects import pool

    pool(connection, name, output)
